"""A stage's runs: batches, budgets, quotas, cancelled requests, runs on the event loop."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from stage_bench import LIMIT, POISON, Bench, FakeModel
from support.simulated_time import SimulatedLoop
from support.waiting import eventually

from nodes.stage.compute import Compute, Outcomes, StageOptions
from nodes.stage.counters import StageStats
from nodes.stage.jobs import Job
from nodes.stage.selftest import learned
from shards.errors import RunError
from swarm.errors import Status
from swarm.transport.api import Delivery
from swarm.wire.messages import Features

MakeBench = Callable[..., Awaitable[Bench]]


def gated(**options: float) -> FakeModel:
    """Its runs last until the test says so."""
    model = FakeModel(**options)
    model.gate = threading.Event()
    return model


# --- batches ----------------------------------------------------------------------------


async def test_a_batch_gives_each_request_the_result_that_it_would_get_alone(
    bench: MakeBench,
) -> None:
    together = await bench(FakeModel(slow=0.002))
    sent = [together.send(float(n)) for n in range(30)]
    assert set(await together.all_ended(*sent)) == {"ack"}
    assert max(together.model.batches) > 1
    alone = await bench(max_batch=1)
    await alone.all_ended(*[alone.send(float(n)) for n in range(30)])
    assert set(alone.model.batches) == {1}
    batched, single = together.answers(), alone.answers()
    assert set(batched) == set(single) == {f"r{n}" for n in range(1, 31)}
    for name, result in batched.items():
        np.testing.assert_array_equal(result.outputs["x"], single[name].outputs["x"])
    assert max(result.hops[0].batch for result in batched.values()) > 1


async def test_requests_of_different_shapes_are_not_run_together(bench: MakeBench) -> None:
    b = await bench(FakeModel(slow=0.005))
    shapes = [(1, 4) if n % 3 else (1, 6) for n in range(12)]
    await b.all_ended(*[b.send(tensors={"x": np.zeros(s, np.float32)}) for s in shapes])
    assert [b.answers()[f"r{n + 1}"].outputs["x"].shape for n in range(12)] == shapes


@pytest.mark.parametrize("error", [RunError("poison"), ValueError("poison")])
async def test_a_poison_member_does_not_fail_its_companions(
    bench: MakeBench, error: Exception
) -> None:
    b = await bench(gated())
    b.model.error = error
    first = b.send(0.0)  # keeps the worker busy while the others come together
    values = [float(n) if n != 5 else POISON for n in range(1, 9)]
    sent = [b.send(value) for value in values]
    assert b.model.gate is not None
    b.model.gate.set()
    await b.all_ended(first, *sent)
    answers = b.answers()
    assert len(answers) == 9
    for number, value in enumerate(values):
        result = answers[f"r{number + 2}"]
        if value == POISON:
            assert (result.status, result.stage, result.node) == (Status.INTERNAL, 2, "n1")
            assert "poison" in result.message
        else:
            assert result.status is Status.OK
            assert result.outputs["x"][0, 0] == value + 1
    assert b.counters.failed == 1


@pytest.mark.parametrize("compute_ms", [5.0, 0.01], ids=["by the worker", "inline"])
@pytest.mark.parametrize("knows", [True, False])
async def test_a_failure_ends_with_a_hop_where_known_input_passes_beside_it(
    bench: MakeBench, compute_ms: float, knows: bool
) -> None:
    b = await bench(FakeModel(compute_ms))
    if knows:
        b.server.take_weights(b.model, learned(b.model, {"x": np.ones((1, 4), np.float32)}))
    await b.all_ended(b.send(POISON), b.send(1.0))
    failed, other = b.answers()["r1"], b.answers()["r2"]
    assert (failed.status, other.status) == (Status.INTERNAL, Status.OK)
    assert [(hop.stage, hop.node) for hop in failed.hops] == [(2, "n1")] * knows


async def test_a_failure_of_a_stage_that_fails_on_known_input_too_has_no_hop_of_it(
    bench: MakeBench,
) -> None:
    b = await bench(FakeModel())
    b.server.take_weights(b.model, learned(b.model, {"x": np.ones((1, 4), np.float32)}))

    def broken(array: np.ndarray) -> np.ndarray:
        raise RunError("the memory is gone")

    b.model.compute = broken
    await b.all_ended(b.send(1.0))
    result = b.answers()["r1"]
    assert (result.status, list(result.hops)) == (Status.INTERNAL, [])


async def test_an_answer_says_how_long_each_stage_waited_and_computed(bench: MakeBench) -> None:
    b = await bench(FakeModel(slow=0.010))
    await b.all_ended(b.send(age=0.5))
    [hop] = b.answers()["r1"].hops
    assert (hop.stage, hop.node, hop.batch) == (2, "n1", 1)
    assert hop.queue_us >= 500_000
    assert 10_000 <= hop.compute_us < LIMIT * 1e6


# --- budgets ----------------------------------------------------------------------------


@pytest.mark.parametrize("compute_ms", [5.0, 0.01], ids=["by the worker", "inline"])
async def test_work_whose_budget_ended_in_the_lane_is_answered_and_not_computed(
    bench: MakeBench, compute_ms: float
) -> None:
    b = await bench(FakeModel(compute_ms))
    assert await b.all_ended(b.send(budget=1.0, age=1.5)) == ["ack"]
    result = b.answers()["r1"]
    assert (result.status, result.stage) == (Status.DEADLINE_EXCEEDED, 2)
    found = re.search(r"([0-9.]+) ms in the lane of stage 2", result.message)
    assert found is not None
    assert float(found[1]) >= 1490.0, "as exactly as two clocks know each other"
    assert (b.model.batches, b.counters.expired) == ([], 1)


async def test_the_stage_that_used_up_the_time_is_named(bench: MakeBench) -> None:
    b = await bench()
    hop = {"stage": 1, "node": "slow", "queue_us": 500_000, "compute_us": 2_000_000, "batch": 1}
    await b.all_ended(b.send(budget=0.0, age=0.1, hops=[hop]))
    assert "2500.0 ms in stage 1" in b.answers()["r1"].message


async def test_work_that_cannot_finish_in_time_is_not_started(bench: MakeBench) -> None:
    b = await bench(start_check=True)
    now = time.monotonic()
    for _ in range(20):
        b.server.stats.compute.add(5.0, now)
    await b.all_ended(b.send(budget=1.0))
    assert b.answers()["r1"].status is Status.DEADLINE_EXCEEDED
    assert b.model.batches == []


async def test_a_run_past_its_budget_is_ended_and_the_worker_is_free_again(
    bench: MakeBench,
) -> None:
    b = await bench(gated())
    assert await b.all_ended(b.send(budget=0.5)) == ["ack"]
    result = b.answers()["r1"]
    assert result.status is Status.DEADLINE_EXCEEDED
    assert "during the run of stage 2" in result.message
    assert b.model.gate is not None
    b.model.gate.set()
    await b.all_ended(b.send())
    assert b.answers()["r2"].status is Status.OK


async def test_work_that_waits_behind_a_long_run_is_answered_when_its_budget_is_over(
    bench: MakeBench,
) -> None:
    b = await bench(FakeModel(slow=0.15))
    await b.all_ended(b.send(budget=10.0), b.send(budget=0.05))
    assert b.answers()["r1"].status is Status.OK
    assert b.answers()["r2"].status is Status.DEADLINE_EXCEEDED
    assert "ms waiting at stage 2" in b.answers()["r2"].message
    assert b.model.batches == [1]


async def test_the_budget_that_travels_on_is_the_rest_of_it(bench: MakeBench) -> None:
    b = await bench(FakeModel(slow=0.05), stage=1)
    await b.all_ended(b.send(budget=5.0, age=1.0))
    [(subject, features)] = b.publisher.stored
    assert subject == "swarm.t.features.m.1.2.any"
    assert 1.0e6 < features.budget_us < 3.96e6
    assert (features.stage, [hop["stage"] for hop in features.hops]) == (2, [1])
    assert features.hops[0]["queue_us"] >= 1_000_000


# --- quotas -----------------------------------------------------------------------------


async def test_an_agent_over_its_quota_is_refused_and_others_are_not(bench: MakeBench) -> None:
    b = await bench(stage=1, quota=0.001)  # and a burst of one
    rogue = [b.send(agent="rogue") for _ in range(100)]
    good = [b.send(agent=f"good-{n}") for n in range(10)]
    await b.all_ended(*rogue, *good)
    refused = b.answers()
    assert all(result.status is Status.RESOURCE_EXHAUSTED for result in refused.values())
    assert all("'rogue'" in result.message for result in refused.values())
    served = [features.agent for _, features in b.publisher.stored]
    assert served.count("rogue") == 1
    assert len(refused) == 99
    assert sorted(set(served) - {"rogue"}) == sorted(f"good-{n}" for n in range(10))
    assert b.counters.refused == len(refused)
    assert all(900 < result.retry_after <= 1000 for result in refused.values())


async def test_a_message_that_comes_again_is_not_counted_against_its_agent_again(
    bench: MakeBench,
) -> None:
    b = await bench(stage=1, quota=0.001)  # and a burst of one
    assert await b.all_ended(b.send(agent="a")) == ["ack"]
    assert await b.all_ended(b.send(agent="a", delivered=2)) == ["ack"]
    assert len(b.publisher.stored) == 2
    await b.all_ended(b.send(agent="a"))
    assert b.answers()["r3"].status is Status.RESOURCE_EXHAUSTED


async def test_a_quota_is_the_first_stages_business(bench: MakeBench) -> None:
    b = await bench(stage=2, quota=1.0)
    await b.all_ended(*[b.send(agent="one") for _ in range(20)])
    assert {result.status for result in b.answers().values()} == {Status.OK}


# --- cancelled requests -----------------------------------------------------------------


async def test_a_cancelled_request_that_waits_is_dropped_and_the_others_are_served(
    bench: MakeBench,
) -> None:
    b = await bench(gated(), max_batch=1)
    first, second, third = b.send(1.0), b.send(2.0), b.send(3.0)
    b.server.cancel("r2")
    assert second.ended == "ack"
    assert b.model.gate is not None
    b.model.gate.set()
    await b.all_ended(first, third)
    assert sorted(b.answers()) == ["r1", "r3"]
    assert b.counters.cancelled == 1


async def test_a_cancelled_run_is_ended_and_answers_nobody(bench: MakeBench) -> None:
    b = await bench(gated(), max_batch=1)
    only = b.send(1.0, budget=LIMIT)
    await eventually(b.model.begun.is_set)
    b.server.cancel("r1")
    assert await b.all_ended(only) == ["ack"]
    assert b.answers() == {}


async def test_a_batch_of_which_one_member_was_cancelled_runs_to_its_end(
    bench: MakeBench,
) -> None:
    b = await bench(gated(), max_batch=4)
    front = b.send(0.0)  # the others wait behind it, and run together
    second, third = b.send(1.0), b.send(2.0)
    assert b.model.gate is not None
    await eventually(b.model.begun.is_set)
    # A run that is cut short says nothing of how long runs take, however long this one was held.
    b.server.cancel("r1")
    await b.all_ended(front)
    await eventually(lambda: b.model.batches[1:] == [2])
    b.server.cancel("r2")
    b.model.gate.set()
    await b.all_ended(second, third)
    assert b.model.batches == [1, 2]
    assert b.answers()["r3"].status is Status.OK


async def test_an_attempt_that_comes_after_its_cancellation_is_not_computed(
    bench: MakeBench,
) -> None:
    b = await bench()
    b.server.cancel("r1")
    assert await b.all_ended(b.send(1.0), b.send(2.0)) == ["ack", "ack"]
    assert list(b.answers()) == ["r2"]
    assert b.model.batches == [1]


# --- runs on the loop -------------------------------------------------------------------


class Noted:
    """The outcomes of jobs, by their requests."""

    def __init__(self) -> None:
        self.batches: dict[str, int] = {}

    def computed(self, job: Job, outputs: object, seconds: float, batch: int, weights: int) -> None:
        self.batches[job.features.id] = batch


@pytest.mark.simulated
async def test_a_lone_short_run_needs_no_thread() -> None:
    loop = cast(SimulatedLoop, asyncio.get_running_loop())
    model, outcomes, stats = FakeModel(compute_ms=2.0), Noted(), StageStats()

    def compute(array: np.ndarray) -> np.ndarray:
        loop.stop_for(0.002)
        return array

    model.compute = compute
    options = StageOptions(inline_alone_below=0.010)
    stage = Compute(2, model, options, stats, cast(Outcomes, outcomes), loop.time)
    for number in range(3):
        features = Features(f"r{number}", "m", "1", 2, "_INBOX.r", 10**6, {"x": np.zeros((1, 4))})
        received = SimpleNamespace(
            features=features, received=loop.time() * 1e9, age=0.0, least_age=0.0
        )
        stage.take(cast(Delivery, received))
        assert list(outcomes.batches) == [f"r{n}" for n in range(number + 1)], "at once"
        await asyncio.sleep(0.02)  # little comes
    assert set(model.threads) == {threading.get_ident()}
    stage.close()


async def test_of_a_burst_of_short_runs_requests_gather_in_the_thread(bench: MakeBench) -> None:
    b = await bench(FakeModel(compute_ms=2.0, slow=0.002), inline_alone_below=0.010)
    await b.all_ended(*[b.send() for _ in range(20)])
    assert set(b.model.threads) - {threading.get_ident()}, "none went to the worker"
    assert max(b.model.batches) > 1
    assert len(b.answers()) == 20


async def test_a_longer_run_never_blocks_the_loop(bench: MakeBench) -> None:
    b = await bench(FakeModel(compute_ms=20.0, slow=0.02), inline_alone_below=0.010)
    await b.all_ended(b.send())
    assert threading.get_ident() not in b.model.threads


@pytest.mark.parametrize("compute_ms", [2.0, 0.01], ids=["alone", "inline"])
async def test_a_run_on_the_loop_is_ended_from_outside_when_its_budget_is_over(
    bench: MakeBench, compute_ms: float
) -> None:
    """Of a model whose runs are short too: a Loop of it may turn for ever."""
    model = gated(compute_ms=compute_ms)
    b = await bench(model, inline_alone_below=0.010)
    with guarded(b):
        late = b.send(budget=0.05)  # blocks the loop meanwhile
    assert late.ended == "ack"
    assert b.answers()["r1"].status is Status.DEADLINE_EXCEEDED


@contextmanager
def guarded(b: Bench) -> Iterator[None]:
    """The thread that ends runs on the loop goes about meanwhile."""
    over = threading.Event()

    def guard() -> None:
        while not over.wait(0.01):
            b.server.on_loop.end_overdue(time.monotonic())

    thread = threading.Thread(target=guard)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("compute_ms", [2.0, 0.01], ids=["alone", "inline"])
async def test_a_run_that_lasts_on_the_loop_goes_on_in_a_thread_and_so_do_others(
    bench: MakeBench, compute_ms: float
) -> None:
    model = gated(compute_ms=compute_ms)
    b = await bench(model, inline_alone_below=0.010)
    with guarded(b):
        long = b.send(budget=LIMIT)  # blocks the loop until the guard ends it
    assert b.server.on_loop.take_ended()
    assert not b.server.on_loop.take_ended(), "it is told once"
    assert not long.ended
    model.gate.set()  # type: ignore[union-attr]
    assert await b.all_ended(long, b.send()) == ["ack", "ack"]
    assert {result.status for result in b.answers().values()} == {Status.OK}
    assert threading.get_ident() not in model.threads[1:]


async def test_a_run_that_is_ended_for_its_length_is_told_so_and_costs_its_client_alone(
    bench: MakeBench,
) -> None:
    model = gated(compute_ms=1.0)
    b = await bench(model, max_batch=1)
    endless = [b.send(budget=LIMIT, agent="eve") for _ in range(3)]
    honest = b.send(budget=LIMIT, agent="ann")
    since = await eventually(lambda: b.server.running_since)
    await eventually(lambda: time.monotonic() - since > 1.1, "more than it may have at once")
    b.server.end_runs()
    await eventually(lambda: honest.ended or len(model.batches) == 2)
    model.gate.set()  # type: ignore[union-attr]
    assert await b.all_ended(*endless, honest) == ["ack"] * 4
    told = {name: result.status for name, result in b.answers().items()}
    refused = Status.RESOURCE_EXHAUSTED
    assert told == {
        "r1": Status.DEADLINE_EXCEEDED,
        "r2": refused,
        "r3": refused,
        "r4": Status.OK,
    }
    assert b.answers()["r1"].hops[-1].stage == 2, "by it the requester knows that the stage works"
    assert b.answers()["r2"].retry_after > 0
    assert len(model.batches) == 2


async def test_of_a_batch_that_is_ended_for_its_length_each_half_is_run_again(
    bench: MakeBench,
) -> None:
    model = gated(compute_ms=5.0)
    b = await bench(model)
    first = b.send(budget=LIMIT)
    pair = [b.send(budget=LIMIT), b.send(budget=LIMIT)]
    await eventually(model.begun.is_set)
    b.server.end_runs()
    await eventually(lambda: model.batches[1:] == [2])
    b.server.end_runs()
    model.gate.set()  # type: ignore[union-attr]
    assert await b.all_ended(first, *pair) == ["ack"] * 3
    assert [b.answers()[name].status for name in ("r2", "r3")] == [Status.OK] * 2


async def test_a_run_on_the_loop_that_fails_is_answered(bench: MakeBench) -> None:
    b = await bench(FakeModel(compute_ms=2.0), inline_alone_below=0.010)
    b.model.error = ValueError("not one of ours")
    assert await b.all_ended(b.send(POISON)) == ["ack"]
    assert b.answers()["r1"].status is Status.INTERNAL


@pytest.mark.parametrize("compute_ms", [5.0, 2.0, 0.01], ids=["worker", "alone", "inline"])
async def test_tensors_that_do_not_fit_are_answered_and_not_computed(
    bench: MakeBench, compute_ms: float
) -> None:
    b = await bench(FakeModel(compute_ms), inline_alone_below=0.004)
    assert await b.all_ended(b.send(tensors={"y": np.zeros(3, np.float32)})) == ["ack"]
    assert b.answers()["r1"].status is Status.INVALID_ARGUMENT
    assert b.model.batches == []


# --- the self-test ------------------------------------------------------------------------


async def test_the_self_test_notices_a_model_that_computes_otherwise(bench: MakeBench) -> None:
    b = await bench()
    known = {"x": np.arange(4, dtype=np.float32).reshape(1, 4)}
    assert b.server.self_test(), "nothing is known yet"
    b.server.take_weights(b.model, learned(b.model, known))
    assert b.server.self_test()
    b.model.compute = lambda array: array + 2
    assert not b.server.self_test()


async def test_a_model_that_fails_on_its_known_input_does_not_pass(bench: MakeBench) -> None:
    b = await bench()
    known = {"x": np.full((1, 4), 3.0, np.float32)}
    b.server.take_weights(b.model, learned(b.model, known))

    def broken(array: np.ndarray) -> np.ndarray:
        raise RunError("broken")

    b.model.compute = broken
    assert not b.server.self_test()


async def test_a_model_without_known_output_is_not_tested(bench: MakeBench) -> None:
    b = await bench()
    known = {"x": np.full((1, 4), POISON, np.float32)}
    b.server.take_weights(b.model, learned(b.model, known))
    assert b.server.self_test()


async def test_another_session_of_the_model_serves_from_the_next_run_on(bench: MakeBench) -> None:
    b = await bench()
    await b.all_ended(b.send(1.0))
    other = FakeModel()
    other.compute = lambda array: array * 10
    b.server.replace_model(other)
    await b.all_ended(b.send(1.0))
    assert [r.outputs["x"][0, 0] for r in b.answers().values()] == [2.0, 10.0]
