"""The gateway of `swarm up --http`: a node of the mesh, and the line that asks it."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from nodes.cli.command import option, seldom
from nodes.feature import Given
from nodes.gateway.access.rules import block, new_key
from nodes.gateway.page.lines import lines_for
from nodes.up.companion import Companion, Line
from nodes.up.mesh import LocalMesh
from nodes.up.supervisor import NodeProcess
from shards.manifest import Manifest
from swarm.errors import Unavailable
from swarm.model import ModelInfo
from swarm.security.files import create

OPENS_WITHIN = 20.0  # seconds from a node that is ready to its open doors
KNOWS_WITHIN = 20.0  # seconds from there to nodes that gossip has told it of
ASK_EVERY, ASK_TIMEOUT = 0.05, 5.0  # seconds
# No other gateway goes on for it: the mesh ends with it.
ENDS_AT_ONCE = ("--gateway-settle", "0", "--gateway-connection-age", "0")


@dataclass(frozen=True)
class UpGatewayOptions:
    """Of `swarm up`."""

    http: bool = option(
        False, "Start a gateway too, which HTTP clients of the Open Inference Protocol ask."
    )
    http_port: int = seldom(8000, "Port of --http; 0 takes a free one.", min=0, max=65535)
    grpc_port: int | None = seldom(
        None, "Port where the gateway of --http takes gRPC clients too.", min=0, max=65535
    )


class UpGateway(Companion):
    """Without rights anybody on this machine may ask it. Where the mesh knows users its clients
    show a key, which ends with the mesh."""

    def __init__(self, options: UpGatewayOptions) -> None:
        self._options = options
        self._process: NodeProcess | None = None
        self._key = ""
        self._info: ModelInfo | None = None

    def start(self, local: LocalMesh, model: str, flags: Sequence[str]) -> None:
        """On loopback."""
        more = ["--http", str(self._options.http_port), *ENDS_AT_ONCE, *flags]
        if self._options.grpc_port is not None:
            more += ["--grpc", str(self._options.grpc_port)]
        if local.rights is not None:
            callers, self._key = local.logs / "rights" / "gateway.toml", new_key()
            create(callers, block("up", self._key, 0.0).encode())
            more += ["--gateway-callers", str(callers)]
        self._process = local.start("gateway", "", *more)

    async def opened(self, local: LocalMesh, model: str) -> None:
        """The gateway hears of the nodes that serve the model by gossip, later than this command by
        their statuses."""
        assert self._process is not None
        log = partial(local.tail, self._process)
        if not await local.until(lambda: bool(self._door(local, "http")), OPENS_WITHIN):
            raise Unavailable(f"the gateway did not open:\n{log()}")
        url = f"{self._door(local, 'http')}/v2/models/{model}/ready"
        deadline = time.monotonic() + KNOWS_WITHIN
        while not await asyncio.to_thread(self._says_yes, url):
            if time.monotonic() > deadline:
                raise Unavailable(f"the gateway hears of no nodes that serve {model!r}:\n{log()}")
            await asyncio.sleep(ASK_EVERY)
        self._info = await local.mesh.model(model)

    def document(self, local: LocalMesh) -> dict[str, Any]:
        doors = {name: self._door(local, name) for name in ("http", "grpc")}
        return doors | ({"http_key": self._key} if self._key else {})

    def lines(self, local: LocalMesh, manifest: Manifest) -> list[Line]:
        http, grpc = self._door(local, "http"), self._door(local, "grpc")
        assert self._info is not None
        examples = manifest.extra.get("examples", {})
        curl = lines_for(self._info, examples, http, self._key).curl
        lines = [(f"over HTTP, at {http}", curl)]
        if grpc:
            lines.append(("over gRPC, with a client of Triton or KServe, at", grpc))
        return lines

    def _door(self, local: LocalMesh, name: str) -> str:
        """Where clients of `http` or `grpc` ask; "" while that door is not open."""
        assert self._process is not None
        status = local.status_of(self._process) or {}
        return str(status.get("gateway", {}).get("doors", {}).get(name, {}).get("address", ""))

    def _says_yes(self, url: str) -> bool:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        request = urllib.request.Request(url, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=ASK_TIMEOUT) as answer:
                return bool(answer.status == 200)
        except OSError:  # 404 and 503 while it knows no nodes
            return False


def companions(given: Given) -> list[Companion]:
    options = given.of(UpGatewayOptions)
    return [] if options is None or not options.http else [UpGateway(options)]
