"""The mesh itself: the workload's stage files as the shards of one model, a node process each.

Nodes are started as a user starts them (``python -m nodes.cli.node``), and the client is the one
that a user imports. Nothing is split: the manifest names the very files that every contender runs.

``Swarm`` uses durable delivery, ``SwarmFast`` the fast mode (``--delivery fast``), which stores
nothing between stages. ``SwarmWire`` and ``SwarmFastWire`` send every message through the server,
without the short cuts of processes on one host. So do nodes on different hosts, with a network
between them in addition.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bench.rivals.contract import REQUEST_TIMEOUT, START_TIMEOUT, Unavailable
from bench.rivals.stage import stage_times
from bench.rivals.systems.mesh_client import FAST, MODEL, MeshContender
from bench.rivals.workload import Spec, Workload

SHORT_CUT_TIMEOUT = 3.0
"""Seconds of requests after which measuring begins, even if none was handed over directly."""
LEAST_MAX_PAYLOAD, MOST_MAX_PAYLOAD = 16 << 20, 64 << 20
"""Bounds of the server's limit on a message, in bytes."""

if TYPE_CHECKING:
    from nodes.up.mesh import LocalMesh


def manifest_of(workload: Workload) -> tuple[bytes, dict[str, bytes]]:
    """A manifest (JSON) whose stages are exactly the workload's files, and these files by name.

    The manifest's stage times are measured here: the depth of lanes and ``ack_wait`` follow from
    them. A directory that already holds a manifest (written by our splitter) is taken as it is.
    """
    from shards.manifest import FILE_NAME, Manifest, Shard, TensorSpec, read_dir, sha256, spec_of

    if (workload.directory / FILE_NAME).exists():
        ready, fetch = read_dir(workload.directory)
        return ready.to_json(), {name: fetch(name) for name in ready.files()}

    def specs(items: tuple[Spec, ...]) -> tuple[TensorSpec, ...]:
        import numpy as np

        return tuple(spec_of(s.name, np.empty(s.shape, s.dtype)) for s in items)

    files = {}
    shards = []
    for number, compute_ms in enumerate(stage_times(workload.directory), 1):
        name = f"stage-{number}.onnx"
        data = files[name] = (workload.directory / name).read_bytes()
        inputs, outputs = specs(workload.inputs[number - 1]), specs(workload.outputs[number - 1])
        shards.append(
            Shard(
                stage=number,
                start=number - 1,
                end=number,
                file=name,
                sha256=sha256(data),
                bytes=len(data),
                inputs=inputs,
                outputs=outputs,
                carries=(),
                receives=inputs,
                sends=outputs,
                compute_ms=compute_ms,
            )
        )
    manifest = Manifest(
        model=MODEL,
        version="1",
        created="2025-01-01T00:00:00Z",
        source_sha256=sha256(b"".join(files.values())),
        opset=17,
        inputs=shards[0].receives,
        outputs=shards[-1].sends,
        shards=tuple(shards),
    )
    return manifest.to_json(), files


class Swarm(MeshContender):
    """Durable delivery on one host."""

    short_cuts: ClassVar[bool] = True
    """Whether processes of one host may do without the server: shared memory, direct messages."""
    mesh_options: ClassVar[dict[str, Any]] = {}
    """More arguments of `local_mesh`."""
    node_flags: ClassVar[tuple[str, ...]] = ()
    """More flags of each node."""

    def __init__(self, workload: Workload, scratch: Path) -> None:
        super().__init__(workload, scratch)
        self._artifacts: tuple[bytes, dict[str, bytes]] | None = None
        self._nodes: list[Any] = []
        self._restarts_at_start = 0

    def check(self) -> None:
        """Makes the manifest too: a model is split long before a mesh is started."""
        super().check()
        self._artifacts = manifest_of(self.workload)

    async def serve(self, ready: Callable[[], None], stopping: asyncio.Event) -> None:
        from nodes.up.mesh import local_mesh, push

        manifest, files = self._artifacts or manifest_of(self.workload)
        room = max(LEAST_MAX_PAYLOAD, 2 * self.workload.largest + (1 << 20))
        async with local_mesh(
            name="bench",
            max_payload=min(MOST_MAX_PAYLOAD, room),
            shm=self.short_cuts,
            **self.mesh_options,
        ) as local:
            await push(local, manifest, files)
            self._artifacts = None
            del files
            self._model = json.loads(manifest)["model"]
            for number in range(1, self.workload.stages + 1):
                local.start(f"shard-{number}", self._model, "--threads", "1", *self.node_flags)
            await local.ready(START_TIMEOUT)
            self._mesh = await self.client(local)
            self._nodes = list(local.supervisor.nodes)
            self._restarts_at_start = sum(node.restarts for node in self._nodes)
            await self.open()
            ready()
            await stopping.wait()

    async def client(self, local: LocalMesh) -> Any:
        """Who asks; the mesh's own connection, unless overridden."""
        return local.mesh

    @property
    def restarts(self) -> int:
        ended = sum(node.restarts + (not node.alive) for node in self._nodes)
        return int(ended) - self._restarts_at_start

    @property
    def lent(self) -> int:
        """How often the client lent tensors in shared memory instead of sending them."""
        return int(self._mesh.lender.lent) if self._mesh is not None else 0

    @property
    def handed_over(self) -> int:
        """How often the client sent a message by the host's sockets instead of the server."""
        return int(self._mesh.socket.sent) if self._mesh is not None else 0

    async def open(self) -> None:
        """A client learns where the nodes are only after it has asked often for a second. The
        client that is measured is one at work, so it asks until a request is handed over."""
        until = time.monotonic() + SHORT_CUT_TIMEOUT
        while self.short_cuts and not self.handed_over and time.monotonic() < until:
            await self._mesh.infer(self._model, self.workload.input, budget=REQUEST_TIMEOUT)


class SwarmFast(Swarm):
    """Fast mode: core NATS from stage to stage; only the requester's retries recover a loss."""

    delivery = FAST

    async def open(self) -> None:
        from swarm.errors import SwarmError

        try:
            await self._mesh.infer(
                self._model, self.workload.input, budget=3.0, delivery=self.delivery
            )
        except SwarmError as error:
            raise Unavailable(f"no node answers with fast delivery: {error}") from error
        await super().open()


class SwarmWire(Swarm):
    """Durable delivery, every message through the server."""

    short_cuts = False


class SwarmFastWire(SwarmFast):
    """The fast mode, every message through the server."""

    short_cuts = False
