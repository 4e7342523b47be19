"""Requests of any client: budgets, refusals, and degraded answers by a lighter model."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import numpy as np
import pytest
from noted_tracer import NotedTracer
from support.waiting import GENEROUS, eventually

from nodes.requests.answering import LIGHTER_ROOM, InferAnswerer
from nodes.versions.loaded import Loaded
from shards.errors import RunError, RunTerminated
from swarm.errors import NotFound, Status
from swarm.model import ModelInfo, Spec, Stage
from swarm.models.trials import Trials, TriedRequest
from swarm.requests.lighter import LIGHTER_ANSWERS
from swarm.requests.request import Ask
from swarm.wire.hops import Hop
from swarm.wire.messages import Request, Result

SPEC = (Spec("x", "FP32", (-1, 4)),)
STAGE = Stage(1, SPEC, SPEC, 1.0)
INFO = ModelInfo("m", "1", SPEC, SPEC, (STAGE,))
WITH_EDGE = ModelInfo("m", "1", SPEC, SPEC, (STAGE,), edge=Stage(0, SPEC, SPEC, 0.1))


class Model:
    """A runtime that multiplies."""

    def __init__(self, factor: float, error: Exception | None = None) -> None:
        self.factor = factor
        self.error = error
        self.compute_ms = 0.01
        self.weights_version = 0
        self.runs = 0

    def run(self, tensors: Any, cancel: Any = None) -> dict[str, np.ndarray]:
        self.runs += 1
        if self.error is not None:
            raise self.error
        return {"x": tensors["x"] * self.factor}

    def close(self) -> None:
        pass


class Scene:
    """An answerer whose mesh answers with `status`."""

    def __init__(self, loaded: Loaded, status: Status = Status.OK) -> None:
        self.loaded = loaded
        self.status = status
        self.asks: list[Ask] = []
        self.requester = self.catalog = self
        self.rollouts = Trials()
        self.tracer = None
        self.lookups: list[tuple[str, str]] = []
        self.answerer = InferAnswerer(self, "n1", self._lookup, 1.0)  # type: ignore[arg-type]

    async def version_for(self, model: str, agent: str, session: str, request_id: str) -> str:
        return "1"

    async def _lookup(self, model: str, version: str) -> Loaded:
        self.lookups.append((model, version))
        if version == "absent":
            raise NotFound("no such version")
        if version == "slow":
            await asyncio.Event().wait()  # for ever
        return self.loaded

    async def infer(self, ask: Ask) -> Result:
        self.asks.append(ask)
        outputs = {"x": ask.tensors["x"] * 2} if self.status is Status.OK else {}
        hops = (Hop(1, "s", 1, 2, 1),)
        return Result(ask.id, "m", "1", self.status, outputs, "why", attempt=3, hops=hops)

    async def answer(self, value: float = 1.0, **options: Any) -> Result:
        x = np.full((1, 4), value, np.float32)
        return await self.answerer.answer("m", Request({"x": x}, **options))


def loaded(lighter: Model | None = None, seconds: float = 0.0, edge: Model | None = None) -> Loaded:
    info = WITH_EDGE if edge is not None else INFO
    return Loaded(info, {}, edge, lighter, 0.0, seconds)  # type: ignore[arg-type]


async def test_the_answer_of_the_mesh_is_passed_on_whole() -> None:
    scene = Scene(loaded(Model(10)))
    result = await scene.answer(3.0, id="mine")
    assert (result.status, result.degraded, result.id) == (Status.OK, False, "mine")
    assert result.outputs["x"][0, 0] == 6
    assert scene.asks[0].id != "mine"  # clients reuse theirs
    assert result.latency > 0


@pytest.mark.parametrize(
    "status", [Status.DEADLINE_EXCEEDED, Status.UNAVAILABLE, Status.RESOURCE_EXHAUSTED]
)
@pytest.mark.parametrize("seconds", [0.0, 0.01], ids=["inline", "thread"])
async def test_what_the_mesh_cannot_answer_a_lighter_model_does_and_says_so(
    status: Status, seconds: float
) -> None:
    scene = Scene(loaded(Model(10), seconds), status)
    result = await scene.answer(3.0, id="mine")
    assert (result.status, result.degraded, result.id) == (Status.OK, True, "mine")
    assert result.outputs["x"][0, 0] == 30
    assert result.message == f"degraded: {status}: why"
    assert (result.attempt, [hop.node for hop in result.hops]) == (3, ["n1"])
    scene.answerer.close()


@pytest.mark.parametrize("status", [s for s in Status if s not in LIGHTER_ANSWERS])
async def test_any_other_outcome_is_the_meshs_own(status: Status) -> None:
    """A wrong request is wrong for a lighter model too."""
    lighter = Model(10)
    result = await Scene(loaded(lighter), status).answer()
    assert (result.status, result.degraded, lighter.runs) == (status, False, 0)


async def test_without_a_lighter_model_the_failure_is_the_answer() -> None:
    result = await Scene(loaded(), Status.UNAVAILABLE).answer(id="mine")
    assert (result.status, result.degraded, result.id) == (Status.UNAVAILABLE, False, "mine")


@pytest.mark.simulated
async def test_the_lighter_models_time_is_kept_free_inside_the_budget() -> None:
    ends = asyncio.get_running_loop().time() + 2.0
    for lighter, deadline in ((Model(10), ends - 0.2 - LIGHTER_ROOM), (None, ends)):
        scene = Scene(loaded(lighter, seconds=0.1))
        await scene.answer(budget=2.0)
        assert scene.asks[0].deadline == pytest.approx(deadline)


async def test_a_lighter_model_that_fails_is_an_internal_error_and_no_crash() -> None:
    scene = Scene(loaded(Model(10, RunError("broken"))), Status.UNAVAILABLE)
    result = await scene.answer(id="mine")
    assert (result.status, result.degraded, result.id) == (Status.INTERNAL, False, "mine")


@pytest.mark.parametrize(
    ("budget", "status"),
    [
        (0.0, Status.DEADLINE_EXCEEDED),
        (-1.0, Status.DEADLINE_EXCEEDED),
        (601.0, Status.INVALID_ARGUMENT),
        (float("inf"), Status.INVALID_ARGUMENT),
        (float("nan"), Status.INVALID_ARGUMENT),
    ],
)
async def test_an_impossible_budget_is_refused_before_anything_is_sent(
    budget: float, status: Status
) -> None:
    scene = Scene(loaded(Model(10)))
    result = await scene.answer(budget=budget)
    assert (result.status, scene.asks) == (status, [])


@pytest.mark.parametrize(
    "inputs",
    [
        {},
        {"y": np.zeros((1, 4), np.float32)},
        {"x": np.zeros((1, 5), np.float32)},
        {"x": np.zeros((1, 4), np.float64)},
        {"x": np.zeros((0, 4), np.float32)},
        {"x": np.zeros((1, 4), np.float32), "z": np.zeros(1)},
    ],
)
async def test_wrong_inputs_go_no_further_and_get_no_degraded_answer(
    inputs: dict[str, np.ndarray],
) -> None:
    lighter = Model(10)
    scene = Scene(loaded(lighter))
    result = await scene.answerer.answer("m", Request(inputs, id="mine"))
    assert (result.status, result.id) == (Status.INVALID_ARGUMENT, "mine")
    assert (scene.asks, lighter.runs) == ([], 0)


async def test_outputs_that_are_named_come_and_no_others_and_an_unknown_one_is_not_computed() -> (
    None
):
    several = (*SPEC, Spec("y", "FP32", (-1, 4)))
    scene = Scene(loaded())
    scene.loaded.info = ModelInfo("m", "1", SPEC, several, (STAGE,))
    assert list((await scene.answer(outputs=("x",))).outputs) == ["x"]
    asked = len(scene.asks)
    result = await scene.answer(outputs=("x", "z"), id="mine")
    assert (result.status, result.id) == (Status.INVALID_ARGUMENT, "mine")
    assert "'z'" in result.message
    assert "x, y" in result.message
    assert len(scene.asks) == asked


@pytest.mark.simulated
async def test_a_lookup_that_takes_too_long_ends_with_the_budget() -> None:
    scene = Scene(loaded())
    result = await scene.answer(budget=5.0, version="slow")
    assert result.status is Status.DEADLINE_EXCEEDED
    assert (await scene.answer(version="absent")).status is Status.NOT_FOUND


async def test_the_edges_layers_run_first_and_are_a_hop() -> None:
    scene = Scene(loaded(edge=Model(100)))
    await scene.answer(1.0)
    assert scene.asks[0].tensors["x"][0, 0] == 100
    assert [hop["stage"] for hop in scene.asks[0].hops] == [0]


async def test_a_lighter_model_gets_the_raw_input_not_the_edges_features() -> None:
    scene = Scene(loaded(Model(10), edge=Model(100)), Status.UNAVAILABLE)
    assert (await scene.answer(1.0)).outputs["x"][0, 0] == 10


async def test_an_edge_that_fails_is_an_internal_error() -> None:
    scene = Scene(loaded(edge=Model(1, RunError("broken"))))
    result = await scene.answer()
    assert (result.status, scene.asks) == (Status.INTERNAL, [])
    assert "stage 0" in result.message


# --- weight versions ------------------------------------------------------------------------


async def test_a_least_weight_version_is_asked_of_the_mesh_too() -> None:
    scene = Scene(loaded())
    await scene.answer(weights=3)
    assert scene.asks[0].weights == 3


async def test_the_edges_layers_wait_for_the_weights_that_the_request_asks_for() -> None:
    scene = Scene(loaded(edge=Model(10)))
    waiting = asyncio.ensure_future(scene.answer(3.0, weights=2))
    await eventually(lambda: scene.loaded.on_replaced, "it waits")
    newer = Model(100)
    newer.weights_version = 2
    scene.loaded.replace({0: newer}, {})  # type: ignore[dict-item]
    result = await waiting
    assert result.status is Status.OK
    assert scene.asks[0].tensors["x"][0, 0] == 300
    assert scene.asks[0].hops[0]["weights"] == 2


@pytest.mark.simulated
async def test_weights_that_the_edges_layers_do_not_get_are_an_error() -> None:
    scene = Scene(loaded(edge=Model(10)))
    result = await scene.answer(weights=2, budget=5.0)
    assert result.status is Status.UNAVAILABLE
    assert "weight version 0" in result.message
    assert not scene.asks


class Hanging(Model):
    """A runtime whose runs end when a test lets them."""

    def __init__(self) -> None:
        super().__init__(1)
        self.compute_ms = 50.0
        self.began, self.released = threading.Event(), threading.Event()

    def run(self, tensors: Any, cancel: Any = None) -> dict[str, np.ndarray]:
        self.began.set()
        self.released.wait(5.0)
        return super().run(tensors)


async def test_first_layers_that_hang_end_with_the_budget() -> None:
    edge = Hanging()
    scene = Scene(loaded(edge=edge))
    result = await scene.answer(budget=0.05)
    assert edge.runs == 0, "the run still hangs"
    edge.released.set()
    assert result.status is Status.DEADLINE_EXCEEDED
    assert scene.asks == []
    scene.answerer.close()


class Endless(Model):
    """A Loop that turns for ever until it is told to end; on zeros it ends at once."""

    def __init__(self, compute_ms: float) -> None:
        super().__init__(2)
        self.compute_ms = compute_ms
        self.threads: list[int] = []

    def run(self, tensors: Any, cancel: Any = None) -> dict[str, np.ndarray]:
        self.threads.append(threading.get_ident())
        until = time.monotonic() + GENEROUS
        while tensors["x"].any():
            if cancel.cancelled:
                raise RunTerminated("told to")
            assert time.monotonic() < until, "nobody ends it"
            time.sleep(0.001)
        return super().run(tensors)


@pytest.mark.parametrize("compute_ms", [0.01, 50.0], ids=["inline", "thread"])
async def test_first_layers_that_never_end_on_some_values_end_with_the_budget_however_often(
    compute_ms: float,
) -> None:
    edge = Endless(compute_ms)
    scene = Scene(loaded(edge=edge))
    over = threading.Event()

    def guard() -> None:  # as of the node's watchdog
        while not over.wait(0.01):
            scene.answerer.on_loop.end_overdue(time.monotonic())

    thread = threading.Thread(target=guard)
    thread.start()
    for _ in range(6):
        assert (await scene.answer(budget=0.05)).status is Status.DEADLINE_EXCEEDED
        assert (await scene.answer(0.0, budget=GENEROUS)).status is Status.OK
    over.set()
    thread.join()
    assert len(set(edge.threads) - {threading.get_ident()}) == 1, "no thread was given up"
    scene.answerer.close()


async def test_a_lighter_model_that_hangs_ends_with_the_budget() -> None:
    lighter = Hanging()
    scene = Scene(loaded(lighter, seconds=0.01), Status.UNAVAILABLE)
    result = await scene.answer(budget=0.1)
    lighter.released.set()
    assert (result.status, result.degraded) == (Status.DEADLINE_EXCEEDED, False)
    scene.answerer.close()


async def test_a_run_that_nobody_waits_for_any_more_is_not_made() -> None:
    edge = Hanging()
    scene = Scene(loaded(edge=edge))
    first = asyncio.create_task(scene.answer(budget=GENEROUS))
    await eventually(edge.began.is_set, "the first run")
    await asyncio.gather(*(scene.answer(budget=0.01) for _ in range(2)))
    edge.released.set()
    await first
    await scene.answer(budget=GENEROUS)
    assert edge.runs == 2  # the first, and the last
    scene.answerer.close()


@pytest.mark.simulated
async def test_what_waits_in_vain_for_weights_a_lighter_model_answers() -> None:
    scene = Scene(loaded(Model(10), edge=Model(1)))
    result = await scene.answer(3.0, weights=7, budget=5.0)
    assert (result.status, result.degraded) == (Status.OK, True)
    assert result.outputs["x"][0, 0] == 30
    assert "weight version" in result.message


class Watched(Trials):
    """A trial of version 1, and what was observed of it."""

    follows = True

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, Status]] = []

    async def ask(self, tried: TriedRequest) -> Result:
        result = await tried.request
        self.seen.append((tried.version, result.status))
        if result.status is Status.OK or tried.instead is None:
            return result
        return await tried.instead("0") or result


class Left:
    """Two versions, of which the one under rollout fails in its first layers."""

    def __init__(self, fails: Loaded, serves: Loaded) -> None:
        self.scene = Scene(fails)
        self.watched = Watched()
        self.scene.rollouts = self.watched
        self.scene.left = lambda *_: None  # type: ignore[attr-defined]
        self.loaded = {"1": fails, "0": serves}
        self.answerer = InferAnswerer(self.scene, "n1", self._lookup, 1.0)  # type: ignore[arg-type]

    async def _lookup(self, model: str, version: str) -> Loaded:
        return self.loaded[version]


async def test_a_version_under_rollout_whose_first_layers_fail_is_judged_by_it_and_left() -> None:
    fails = loaded(edge=Model(1, RunError("broken")))
    left = Left(fails, loaded())
    x = np.full((1, 4), 3.0, np.float32)
    result = await left.answerer.answer("m", Request({"x": x}))
    assert left.watched.seen == [("1", Status.INTERNAL)]
    assert result.status is Status.OK, "the version that serves has answered"
    assert result.outputs["x"][0, 0] == 6


async def test_copies_of_requests_are_no_requests_in_the_figures() -> None:
    scene = Scene(loaded())
    assert (await scene.answer(shadow=True)).status is Status.OK
    assert scene.answerer.by_status == {}
    await scene.answer()
    assert scene.answerer.by_status == {Status.OK: 1}


# --- traces ---------------------------------------------------------------------------------


async def test_the_trace_of_a_request_that_is_cancelled_says_so() -> None:
    scene = Scene(loaded())
    scene.tracer = tracer = NotedTracer()  # type: ignore[assignment]
    asking = asyncio.create_task(scene.answer(version="slow"))
    await eventually(lambda: scene.lookups, "the lookup")
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    [trace] = tracer.begun
    assert isinstance(trace.ended, asyncio.CancelledError)


async def test_a_copy_of_a_request_begins_no_trace() -> None:
    scene = Scene(loaded())
    scene.tracer = tracer = NotedTracer()  # type: ignore[assignment]
    assert (await scene.answer(shadow=True)).status is Status.OK
    assert tracer.begun == []
    result = await scene.answer()
    assert [trace.ended for trace in tracer.begun] == [result]
