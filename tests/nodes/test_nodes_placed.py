"""An edge that places its requests runs the stages before the entry, and the result says why."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.waiting import eventually

from nodes.config import EdgeOptions, NodeConfig
from nodes.requests.answering import InferAnswerer
from nodes.requests.placer import Placer
from nodes.versions.loaded import Loaded
from swarm.errors import InvalidArgument, Status
from swarm.link.send_rate import SendRate
from swarm.model import ModelInfo, Spec, Stage
from swarm.models.trials import Trials
from swarm.requests.request import Ask
from swarm.routing import Candidate
from swarm.wire.hops import Hop
from swarm.wire.messages import Request, Result
from swarm.wire.oip import as_doc

NAMES = ("x", "y", "z", "out")
SPECS = [Spec(name, "FP32", (-1, 4)) for name in NAMES]
STAGES = tuple(Stage(at, (SPECS[at - 1],), (SPECS[at],), 1.0) for at in (1, 2, 3))
INFO = ModelInfo("m", "1", (SPECS[0],), (SPECS[3],), STAGES)
EXPECTED = 2.0 * 3.0 * 4.0


class Doubled:
    """Stage K: multiplies by K + 1, and renames."""

    compute_ms, weights_version = 0.01, 0

    def __init__(self, stage: int) -> None:
        self.stage = stage

    def run(self, tensors: Any, cancel: Any = None) -> dict[str, np.ndarray]:
        (array,) = tensors.values()
        assert list(tensors) == [NAMES[self.stage - 1]]
        return {NAMES[self.stage]: array * (self.stage + 1)}

    def close(self) -> None:
        pass


class Mesh:
    """As much of a mesh as an edge asks; it computes what it is asked, unless `status` is none."""

    def __init__(self) -> None:
        self.status = Status.OK
        self.asks: list[Ask] = []
        self.requester = self.catalog = self
        self.rollouts = Trials()
        self.tracer = None
        self.link = SimpleNamespace(send_rate=SendRate(), connected=True)
        self.placement = self
        self.routes = self

    def routes_for(self, info: ModelInfo) -> Mesh:
        return self

    def serving(self, info: ModelInfo, stage: int) -> frozenset[str]:
        return frozenset({"s"})

    async def version_for(self, model: str, agent: str, session: str, request_id: str) -> str:
        return "1"

    async def infer(self, ask: Ask) -> Result:
        self.asks.append(ask)
        await asyncio.sleep(0)
        if self.status is not Status.OK:
            return Result(ask.id, "m", "1", self.status, message="gone")
        tensors, hops = dict(ask.tensors), [Hop.from_doc(hop) for hop in ask.hops]
        for stage in range(ask.stage, 4):
            tensors = Doubled(stage).run(tensors)
            hops.append(Hop(stage, "s", 1, 2, 1))
        return Result(ask.id, "m", "1", outputs=tensors, hops=tuple(hops))


class Edge:
    def __init__(self, held: int, **options: Any) -> None:
        self.mesh = Mesh()
        stages: Any = {stage: Doubled(stage) for stage in range(1, held + 1)}
        self.loaded = Loaded(INFO, {}, None, None, 0.0, local=stages)
        self.loads: list[Candidate] = []
        placer = Placer(EdgeOptions(**options), self.mesh, lambda: self.loads)  # type: ignore[arg-type]
        self.answerer = InferAnswerer(self.mesh, "edge", self._lookup, 1.0, placer=placer)  # type: ignore[arg-type]

    async def _lookup(self, model: str, version: str) -> Loaded:
        return self.loaded

    async def answer(self) -> Result:
        return await self.answerer.answer("m", Request({"x": np.ones((1, 4), np.float32)}))


@pytest.mark.parametrize(
    ("mode", "held", "way", "here"),
    [
        ("edge", 3, "edge", [1, 2, 3]),
        ("split", 1, "split@2", [1]),
        ("core", 0, "core", []),
        ("auto", 3, "edge", [1, 2, 3]),
    ],
)
async def test_every_way_has_the_same_result(
    mode: str, held: int, way: str, here: list[int]
) -> None:
    edge = Edge(held, placement=mode, allow_picture=True)
    result = await edge.answer()
    assert result.status is Status.OK
    assert (result.outputs["out"] == EXPECTED).all()
    assert (result.way, [hop.stage for hop in result.hops if hop.node == "edge"]) == (way, here)
    assert [hop.stage for hop in result.hops] == [1, 2, 3]
    assert result.why


async def test_without_leave_the_input_does_not_leave() -> None:
    edge = Edge(0, placement="auto")
    result = await edge.answer()
    assert result.status is Status.UNAVAILABLE
    assert "--allow-picture is off" in result.message
    assert not edge.mesh.asks
    late = Edge(1, placement="auto", placement_from=3)
    assert (await late.answer()).status is Status.UNAVAILABLE
    assert not late.mesh.asks


async def test_what_the_mesh_does_not_answer_is_computed_here() -> None:
    edge = Edge(3, placement="auto", allow_picture=True)
    edge.mesh.status = Status.UNAVAILABLE
    for runtime in edge.loaded.local.values():
        runtime.compute_ms = 30.0  # of a device that is slower than the mesh
    result = await edge.answer()
    assert [ask.stage for ask in edge.mesh.asks] == [1]
    assert (result.outputs["out"] == EXPECTED).all()
    assert result.way == "edge"
    assert result.why == "core failed: UNAVAILABLE: gone"


async def test_a_probe_is_a_copy_whose_answer_nobody_gets() -> None:
    edge = Edge(3, placement="auto", allow_picture=True)
    results = [await edge.answer() for _ in range(49)]
    assert not edge.mesh.asks
    results.append(await edge.answer())
    await eventually(lambda: edge.mesh.asks)
    assert [result.way for result in results] == ["edge"] * 50
    assert [ask.shadow for ask in edge.mesh.asks] == [True]


async def test_queues_of_the_mesh_keep_requests_here() -> None:
    edge = Edge(3, placement="auto", allow_picture=True)
    for runtime in edge.loaded.local.values():
        runtime.compute_ms = 5.0
    edge.loads = [
        Candidate("s", stage, {"m": frozenset({"1"})}, load=9, compute_ewma_s=0.01)
        for stage in (1, 2, 3)
    ]
    assert (await edge.answer()).way == "edge"


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="--allow-picture"):
        EdgeOptions(placement="core")
    with pytest.raises(InvalidArgument, match="--role edge"):
        NodeConfig("shard-1", "m", edge=EdgeOptions(placement="auto"))


def test_two_versions_of_a_rollout_keep_what_was_learned_of_each() -> None:
    edge = Edge(3, placement="auto", allow_picture=True)
    placer = Placer(EdgeOptions(placement="auto"), edge.mesh, lambda: ())  # type: ignore[arg-type]
    other = replace(edge.loaded, info=replace(INFO, version="2"))
    first, second = placer.of(edge.loaded), placer.of(other)
    assert first is not second
    assert placer.of(edge.loaded) is first
    assert placer.of(other) is second
    assert set(placer.status()) == {"m@1", "m@2"}


async def test_a_client_that_asks_the_edge_is_told_the_way_and_why() -> None:
    result = await Edge(3, placement="edge").answer()
    read = Result.decode(b"".join(map(bytes, result.parts())))
    assert (read.way, read.why) == ("edge", "the only way that may be taken")
    assert as_doc(result)["parameters"]["way"] == "edge"
    forged = Result.decode(b"".join(map(bytes, replace(result, way=7).parts())))  # type: ignore[arg-type]
    assert forged.way == ""
