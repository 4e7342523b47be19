"""The mesh itself: the workload's stage files as the shards of one model, a node process each.

Nodes are started as a user starts them (``python -m nodes.cli.node``) and the client is the one a
user imports. Nothing is split: the manifest names the very files that every contender runs.

``Swarm`` is the durable lane; ``SwarmCore`` the fast mode (``delivery core``), which stores
nothing between stages. ``SwarmWire`` and ``SwarmCoreWire`` are the same without what processes of
one host have in common: what nodes on different hosts do, but for the network between them.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from nodes.bench.peers.base import REQUEST_TIMEOUT, START_TIMEOUT, AsyncContender, Unavailable
from nodes.bench.peers.stage_times import stage_times
from nodes.bench.peers.workload import Spec, Tensors, Workload

T = TypeVar("T")

MODEL = "bench"
DURABLE, CORE = "durable", "core"
SETTLE = 3.0
"""Seconds of requests before the measuring, at most."""
LANE_FULL_PAUSE = 0.001
"""Seconds that the client waits at least after its request was refused; as a rule, it is told."""


def manifest_of(workload: Workload) -> tuple[bytes, dict[str, bytes]]:
    """A manifest (JSON) whose stages are exactly the workload's files, and these files by name.

    Stage times are the median of a few runs here: lane depth and ``ack_wait`` follow from them. A
    directory that holds a manifest already (a split of ours) is taken as it is.
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


class Swarm(AsyncContender):
    """The event loop lives in a thread of its own and never pauses between two calls: a client
    that stops answering pings would be disconnected by the server."""

    packages = ("onnxruntime", "msgpack", "nats", "uvloop")
    delivery: ClassVar[str] = DURABLE
    threads: ClassVar[int] = 1
    """Compute threads of one stage."""
    shm: ClassVar[bool] = True
    """Whether processes of one host may do without the server: shared memory, direct messages."""

    def __init__(self, workload: Workload, scratch: Path) -> None:
        super().__init__(workload, scratch)
        self.refused = 0
        """Requests that a full first lane refused; each was sent again."""
        self.latencies: list[float] = []
        """Seconds of each request, in order of their ends."""
        self.ends: list[float] = []
        """`time.perf_counter()` at each."""
        self._version: tuple[bytes, dict[str, bytes]] | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._mesh: Any = None
        self._model = MODEL
        self._nodes: list[Any] = []
        self._restarts = 0
        self._node_arguments: list[str] = []
        self._options: dict[str, Any] = {}
        self._ready = threading.Event()
        self._failure: BaseException | None = None

    def check(self) -> None:
        """Makes the manifest too: a model is split long before a mesh is started."""
        super().check()
        self._version = manifest_of(self.workload)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._live, name="swarm client", daemon=True)
        self._thread.start()
        if not self._ready.wait(START_TIMEOUT):
            raise TimeoutError(f"the mesh was not ready after {START_TIMEOUT:.0f} s")
        if self._failure is not None:
            raise self._failure

    def _live(self) -> None:
        from nodes.life.process import run_event_loop

        try:
            run_event_loop(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        from nodes.local.mesh import local_mesh, push

        manifest, files = self._version or manifest_of(self.workload)
        room = max(16 << 20, 2 * self.workload.largest + (1 << 20))
        async with local_mesh(name="bench", max_payload=min(64 << 20, room), shm=self.shm) as local:
            await push(local, manifest, files)
            self._version = None
            del files
            self._model = json.loads(manifest)["model"]
            arguments = ["--threads", str(self.threads), *self._node_arguments]
            for number in range(1, self.workload.stages + 1):
                local.start(f"shard-{number}", self._model, *arguments)
            await local.ready(START_TIMEOUT)
            self._mesh = local.mesh
            self._nodes = list(local.supervisor.nodes)
            self._restarts = sum(node.restarts for node in self._nodes)
            await self.open()
            self._stopping = asyncio.Event()
            self._loop = asyncio.get_running_loop()
            self._ready.set()
            await self._stopping.wait()

    @property
    def restarts(self) -> int:
        """How often a node's process has ended since all were ready: it should be 0. The mesh
        answers all the same, so the answers alone would not show it."""
        ended = sum(node.restarts + (not node.alive) for node in self._nodes)
        return int(ended) - self._restarts

    @property
    def lent(self) -> int:
        """How often the client handed tensors over in shared memory instead of sending them."""
        return int(self._mesh.claims.lent) if self._mesh is not None else 0

    async def open(self) -> None:
        """A client listens for where the nodes are when it has asked often for a second: what is
        measured is a client that is at work."""
        until = time.monotonic() + SETTLE
        while self.shm and not self._mesh.direct.sent and time.monotonic() < until:
            await self._mesh.infer(self._model, self.workload.input, budget=REQUEST_TIMEOUT)

    async def ask(self, inputs: Tensors) -> Tensors:
        from swarm.errors import ResourceExhausted

        started = time.perf_counter()
        while True:
            try:
                result = await self._mesh.infer(
                    self._model, inputs, budget=REQUEST_TIMEOUT, **self._options
                )
            except ResourceExhausted as error:
                self.refused += 1
                await asyncio.sleep(max(LANE_FULL_PAUSE, error.retry_after))
                continue
            self.ends.append(time.perf_counter())
            self.latencies.append(self.ends[-1] - started)
            outputs: Tensors = result.outputs
            return outputs

    def _run(self, work: Coroutine[Any, Any, T], timeout: float) -> T:
        assert self._loop is not None, "not started"
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, timeout), self._loop).result(
            timeout + 5
        )

    def stop(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._loop = None
        if self._thread is not None:
            self._thread.join(30)
            self._thread = None


class SwarmCore(Swarm):
    """Fast mode: core NATS from stage to stage; only the requester's retries recover a loss."""

    delivery = CORE

    def check(self) -> None:
        super().check()
        self._options = {"delivery": CORE}

    async def open(self) -> None:
        from swarm.errors import SwarmError

        try:
            await self._mesh.infer(self._model, self.workload.input, budget=3.0, **self._options)
        except SwarmError as error:
            raise Unavailable(f"no node answers with delivery core: {error}") from error
        await super().open()


class SwarmWire(Swarm):
    """The durable lane, everything through the server."""

    shm = False


class SwarmCoreWire(SwarmCore):
    """The fast mode, everything through the server."""

    shm = False
