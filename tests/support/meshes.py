"""Meshes of real nodes for tests: models, a steady load, waits, and the end that leaves nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import swarm
from nodes.up.mesh import LocalMesh, local_mesh, push
from nodes.up.supervisor import NodeProcess
from shards.runtimes.ort import OrtRuntime
from shards.split.split import SplitResult, split
from shards.zoo import digits_heldout, digits_model
from swarm.errors import NotConnected
from swarm.samehost.memory import claim, sweep
from swarm.samehost.socket_directory import VERSION
from swarm.transport.lane import lane_streams

from .waiting import eventually

LOOPBACK = 1e6  # bytes a millisecond: so that compute decides the cuts
READY = 60.0  # seconds that node processes may take to start on a busy machine
TOLERANCE = 1e-5  # relative, against the whole model


# --- models -----------------------------------------------------------------------------


@cache
def split_digits(version: str = "1", stages: int = 3, edge_layers: int = 0) -> SplitResult:
    """The digits model; stages are timed once a session."""
    return split(
        digits_model(),
        name="digits" if not edge_layers else "digits-edge",
        version=version,
        stages=stages,
        edge_layers=edge_layers or None,
        bandwidth=LOOPBACK,
    )


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Held-out images [n, 1, 8, 8], and the whole model's logits [n, 10] for each alone."""
    images, _ = digits_heldout()
    rows = whole(digits_model(), [{"image": images[i : i + 1]} for i in range(len(images))])
    return images, np.concatenate([row["logits"] for row in rows])


def whole(model: bytes, feeds: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """The uncut model's outputs."""
    runtime = OrtRuntime(model)
    try:
        return [runtime.run(feed) for feed in feeds]
    finally:
        runtime.close()


def close(actual: np.ndarray, expected: np.ndarray, tolerance: float = TOLERANCE) -> bool:
    """Equal to the whole model, relative to its largest value."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return False
    scale = float(np.abs(expected).max()) or 1.0
    return float(np.abs(actual - expected).max()) <= tolerance * scale


async def awake(local: LocalMesh) -> None:
    """Wait until a mesh of the session is connected: while tests run that have an event loop of
    their own, nobody answers the server's pings, and it ends the connection."""
    link = local.mesh.link
    async with asyncio.timeout(READY):
        while True:
            with contextlib.suppress(NotConnected):
                await link.flush()
                return
            await link.ready()


async def add_model(local: LocalMesh, result: SplitResult, *roles: str) -> list[NodeProcess]:
    """Push a version and start nodes for it; returns them, ready."""
    await push(local, result.manifest.to_json(), result.files)
    started = [local.start(role, result.manifest.model) for role in roles]
    await local.ready(READY)
    return started


@asynccontextmanager
async def mesh_of(
    result: SplitResult | None = None, *roles: str, flags: tuple[str, ...] = (), **settings: Any
) -> AsyncIterator[LocalMesh]:
    """A mesh of these nodes, ready, with a name of its own; behind the block nothing of it is left.

    flags: of each node. settings: as of `local_mesh`.
    """
    settings.setdefault("name", f"t{secrets.token_hex(4)}")
    async with local_mesh(**settings) as local:
        if result is not None:
            await push(local, result.manifest.to_json(), result.files)
            for role in roles:
                local.start(role, result.manifest.model, *flags)
            await local.ready(READY)
        yield local
    nothing_is_left_of(local)


def nothing_is_left_of(local: LocalMesh) -> None:
    """No process, folder, socket or shared memory of a mesh that has ended; a node that a test
    killed leaves its socket to the next start."""
    nodes = local.supervisor.nodes
    assert not [node.role for node in nodes if node.alive]
    assert not [server.url for server in local.servers if server.alive]
    assert not local.logs.exists()
    left = [node for node in nodes if node.process and node.process.returncode == 0]
    theirs = {str((local.status_of(node) or {}).get("inbox")) for node in left}
    assert not theirs & sockets()
    if local.name != "default":  # which another run on this machine may have too
        # For claims that still wait, the end of a process leaves its memory to the next sweep.
        sweep(local.name, grace=0.0)
        assert segments(local.name) == []


async def all_ready(local: LocalMesh) -> None:
    """Until every node runs, those that were killed again, and says that it is ready."""
    await eventually(lambda: all(node.alive for node in local.supervisor.nodes), "all run")
    await local.ready(READY)


@asynccontextmanager
async def as_found(local: LocalMesh) -> AsyncIterator[None]:
    """Behind the block a shared mesh is as before it: its nodes, all ready, and nothing that
    waits in its lanes."""
    roles = sorted(node.role for node in local.supervisor.nodes)
    yield
    assert sorted(node.role for node in local.supervisor.nodes) == roles
    await all_ready(local)
    await emptied(local)


async def dismiss(local: LocalMesh, nodes: list[NodeProcess]) -> list[int]:
    """End some nodes of a mesh by SIGTERM; returns their exit codes."""
    for node in nodes:
        node.wanted = False
        node.signal(signal.SIGTERM)
    await eventually(lambda: not any(node.alive for node in nodes), "the nodes end")
    for node in nodes:
        local.supervisor.nodes.remove(node)
    return [node.process.returncode for node in nodes if node.process is not None]


# --- load -------------------------------------------------------------------------------


@dataclass
class Load:
    """A steady stream of digits, each answer compared with the whole model's."""

    mesh: swarm.Mesh
    rate: float
    budget: float = 5.0
    model: str = "digits"
    delivery: str = "durable"
    results: list[swarm.Result] = field(default_factory=list)
    sent_at: list[float] = field(default_factory=list)
    wrong: int = 0

    @asynccontextmanager
    async def steady(self, at_a_time: int = 8) -> AsyncIterator[None]:
        """Ask all the time, at `rate` at the most and so many at a time: a slow machine is asked
        less, and need refuse none. Behind the block each is answered, once and rightly."""
        over = asyncio.Event()

        async def keep_asking() -> None:
            while not over.is_set():
                await self._one(len(self.sent_at))
                await asyncio.sleep(at_a_time / self.rate)  # the pace of the load

        async with asyncio.TaskGroup() as group:
            for _ in range(at_a_time):
                group.create_task(keep_asking())
            try:
                yield
            finally:
                over.set()
        self.check(len(self.sent_at))

    async def answers(
        self, more: int = 20, by: str = "", stage: int = 0, within: float = READY
    ) -> None:
        """Wait for so many answers from now on. by, stage: of which the node of that stage, or of
        any stage, has a name that starts so."""
        before = len(self.results)

        def count() -> int:
            return sum(
                any(h.node.startswith(by) and stage in (0, h.stage) for h in result.hops)
                for result in self.results[before:]
            )

        await eventually(lambda: count() >= more, f"{more} answers by {by or 'anybody'}", within)

    async def run(self, count: int) -> None:
        """Send `count` requests at `rate` a second, answered or not."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                # The pace of the load; nothing is judged by it.
                await asyncio.sleep(max(0.0, began + number / self.rate - time.monotonic()))
                group.create_task(self._one(number))

    async def _one(self, number: int) -> None:
        images, logits = digits()
        at = number % len(images)
        self.sent_at.append(time.monotonic())
        image = {"image": images[at : at + 1]}
        result = await self.mesh.ask(self.model, image, self.budget, delivery=self.delivery)
        self.results.append(result)
        if result.status is swarm.Status.OK and not close(
            result.outputs["logits"], logits[at : at + 1]
        ):
            self.wrong += 1

    @property
    def failures(self) -> list[str]:
        return [
            f"{r.status} at stage {r.stage}: {r.message} (attempt {r.attempt})"
            for r in self.results
            if r.status is not swarm.Status.OK
        ]

    @property
    def slowest(self) -> float:
        """Seconds."""
        return max(r.latency for r in self.results)

    def check(self, count: int) -> None:
        """Every request answered, once, and rightly."""
        assert self.failures == [], self.failures[:3]
        assert self.wrong == 0
        assert len({r.id for r in self.results}) == len(self.results) == count


async def good_request(mesh: swarm.Mesh, model: str = "digits", budget: float = 30.0) -> None:
    """One good request is served, rightly."""
    images, logits = digits()
    result = await mesh.infer(model, {"image": images[:1]}, budget)
    assert close(result.outputs["logits"], logits[:1])


# --- what is left -----------------------------------------------------------------------


async def emptied(local: LocalMesh, model: str = "digits") -> None:
    """Until every lane of the model has nothing stored and nothing handed out."""

    async def is_empty() -> bool:
        try:
            lanes = await lane_streams(local.mesh.link, local.mesh.subjects, model, "1")
        except NotConnected:
            return False  # a server that was killed is on its way back
        return not any(info["state"]["messages"] for info in lanes)

    await eventually(is_empty, f"the lanes of {model} are empty")


def sockets() -> set[str]:
    """Of this user's processes, living or not."""
    folder = Path(f"/dev/shm/swarm.{os.geteuid()}.{VERSION}")
    return set(os.listdir(folder)) if folder.is_dir() else set()


def segments(mesh: str) -> list[str]:
    """Shared memory of a mesh on this host."""
    folder = Path("/dev/shm")
    return (
        [p.name for p in folder.iterdir() if claim.mesh_of(p.name) == mesh]
        if folder.is_dir()
        else []
    )
