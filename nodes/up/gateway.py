"""The gateway of `swarm up --http`: a node of the mesh, and the line that asks it."""

from __future__ import annotations

import json
import shlex
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

    async def opened(self, local: LocalMesh) -> None:
        """Wait until clients may ask. Raises `Unavailable`."""
        if not await local.until(lambda: bool(self.door(local, "http")), OPENS_WITHIN):
            raise Unavailable(f"the gateway did not open:\n{local.tail(self.process)}")

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
