"""The gateway of `swarm up --http`: a node of the mesh, and the line that asks it."""

from __future__ import annotations

import asyncio
import json
import shlex
import time
import urllib.request
from dataclasses import dataclass

from nodes.gateway.access.rules import block, new_key
from nodes.gateway.page.lines import Lines, lines_for
from nodes.up.mesh import LocalMesh
from nodes.up.supervisor import NodeProcess
from shards.manifest import Manifest
from swarm.errors import Unavailable
from swarm.model import Spec
from swarm.security.files import create

OPENS_WITHIN = 20.0  # seconds from a node that is ready to its open doors
KNOWS_WITHIN = 20.0  # seconds from there to nodes that gossip has told it of
ASK_EVERY, ASK_TIMEOUT = 0.05, 5.0  # seconds
# No other gateway goes on for it: the mesh ends with it.
ENDS_AT_ONCE = ("--gateway-settle", "0", "--gateway-connection-age", "0")


@dataclass
class UpGateway:
    """key: what its clients show, "" where anybody on this machine may ask."""

    process: NodeProcess
    key: str

    def door(self, local: LocalMesh, name: str) -> str:
        """Where clients of `http` or `grpc` ask; "" while that door is not open."""
        status = local.status_of(self.process) or {}
        return str(status.get("gateway", {}).get("doors", {}).get(name, {}).get("address", ""))

    async def opened(self, local: LocalMesh, model: str) -> None:
        """Wait until clients may ask for a model: the gateway hears of the nodes that serve it by
        gossip, later than this command by their statuses. Raises `Unavailable`."""
        if not await local.until(lambda: bool(self.door(local, "http")), OPENS_WITHIN):
            raise Unavailable(f"the gateway did not open:\n{local.tail(self.process)}")
        url = f"{self.door(local, 'http')}/v2/models/{model}/ready"
        deadline = time.monotonic() + KNOWS_WITHIN
        while not await asyncio.to_thread(self._says_yes, url):
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"the gateway hears of no nodes that serve {model!r}:\n"
                    f"{local.tail(self.process)}"
                )
            await asyncio.sleep(ASK_EVERY)

    def _says_yes(self, url: str) -> bool:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        request = urllib.request.Request(url, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=ASK_TIMEOUT) as answer:
                return bool(answer.status == 200)
        except OSError:  # 404 and 503 while it knows no nodes
            return False

    def lines(self, local: LocalMesh, manifest: Manifest) -> Lines:
        """That ask a model which the mesh serves."""
        inputs = [
            Spec(spec.name, spec.datatype, spec.shape, spec.any_rank) for spec in manifest.inputs
        ]
        examples = manifest.extra.get("examples", {})
        return lines_for(manifest.model, inputs, examples, self.door(local, "http"), self.key)

    def completion(self, local: LocalMesh, model: str) -> str:
        """The line that has a language model go on with a text."""
        body = json.dumps({"model": model, "prompt": "Once", "max_tokens": 32, "stream": True})
        shown = f" -H {shlex.quote(f'Authorization: Bearer {self.key}')}" if self.key else ""
        url = f"{self.door(local, 'http')}/v1/completions"
        return f"curl -N {url}{shown} --json {shlex.quote(body)}"


def start_gateway(local: LocalMesh, http_port: int, grpc_port: int | None, *more: str) -> UpGateway:
    """On loopback. Where the mesh knows users, its clients show a key, which ends with it. more:
    flags of the node. Raises `OSError`."""
    flags, key = ["--http", str(http_port), *ENDS_AT_ONCE, *more], ""
    if grpc_port is not None:
        flags += ["--grpc", str(grpc_port)]
    if local.rights is not None:
        callers, key = local.logs / "rights" / "gateway.toml", new_key()
        create(callers, block("up", key, 0.0).encode())
        flags += ["--gateway-callers", str(callers)]
    return UpGateway(local.start("gateway", "", *flags), key)
