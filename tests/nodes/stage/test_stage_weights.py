"""A stage's weights change while it serves: each run has one version, and its hop says which."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable

import numpy as np
import pytest
from stage_bench import LIMIT, Bench, FakeModel, clumsy
from support.waiting import eventually

from nodes.stage.compute import MOST_BEHIND
from nodes.stage.selftest import learned
from swarm.errors import Status

MakeBench = Callable[..., Awaitable[Bench]]
WAYS = pytest.mark.parametrize("compute_ms", [5.0, 2.0, 0.01], ids=["worker", "alone", "inline"])
KNOWN = {"x": np.zeros((1, 4), np.float32)}


def version(n: int, compute_ms: float = 5.0) -> FakeModel:
    """A model that adds its weight version."""
    model = FakeModel(compute_ms)
    model.weights_version = n
    model.compute = lambda array: array + n
    return model


def take(b: Bench, model: FakeModel) -> None:
    b.server.take_weights(model, learned(model, KNOWN))


@WAYS
async def test_each_answer_names_the_weights_that_computed_it(
    bench: MakeBench, compute_ms: float
) -> None:
    b = await bench(version(0, compute_ms), inline_alone_below=0.004)
    for n in range(4):
        if n:
            take(b, version(n, compute_ms))
        await b.all_ended(b.send(0.0))
    results = b.answers().values()
    assert [int(r.outputs["x"][0, 0]) for r in results] == [0, 1, 2, 3]
    assert [r.weights for r in results] == [0, 1, 2, 3]
    assert ["weights" in r.hops[0].as_doc() for r in results] == [False, True, True, True]


async def test_a_run_under_way_ends_on_the_weights_that_it_began_with(bench: MakeBench) -> None:
    first = version(1)
    first.gate = threading.Event()
    b = await bench(first)
    running = b.send(0.0)
    await eventually(first.begun.is_set)
    behind = [b.send(0.0) for _ in range(3)]
    take(b, version(2))
    first.gate.set()
    await b.all_ended(running, *behind)
    answers = b.answers()
    assert [answers[f"r{n}"].weights for n in (1, 2, 3, 4)] == [1, 2, 2, 2]
    assert [int(answers[f"r{n}"].outputs["x"][0, 0]) for n in (1, 2, 3, 4)] == [1, 2, 2, 2]


async def test_the_halves_of_a_failed_batch_name_their_weights_too(bench: MakeBench) -> None:
    first = version(1)
    first.gate = threading.Event()
    b = await bench(first)
    running = b.send(0.0)
    await eventually(first.begun.is_set)
    others = [b.send(value) for value in (1.0, 666.0, 2.0)]
    first.gate.set()
    await b.all_ended(running, *others)
    answers = b.answers()
    assert answers["r3"].status is Status.INTERNAL
    assert [answers[name].weights for name in ("r2", "r4")] == [1, 1]


# --- a least version ----------------------------------------------------------------------


@WAYS
async def test_a_request_for_newer_weights_waits_for_them(
    bench: MakeBench, compute_ms: float
) -> None:
    asked: list[int] = []
    b = await bench(version(1, compute_ms), inline_alone_below=0.004, on_behind=asked.append)
    waiting = b.send(0.0, weights=3)
    others = [b.send(0.0, weights=1), b.send(0.0)]
    assert await b.all_ended(*others) == ["ack", "ack"], "nobody waits behind it"
    take(b, version(2, compute_ms))
    assert not waiting.ended
    take(b, version(3, compute_ms))
    await b.all_ended(waiting)
    answers = b.answers()
    assert [answers[f"r{n}"].weights for n in (1, 2, 3)] == [3, 1, 1]
    assert asked == [3], "the node is told to look for weight version 3"


@WAYS
async def test_a_defect_with_one_request_that_waited_costs_neither_it_nor_the_others(
    bench: MakeBench, compute_ms: float
) -> None:
    model = version(1, compute_ms)
    b = await bench(model, stage=1, next_lane=clumsy, inline_alone_below=0.004)
    waiting = [b.send(0.0, weights=2) for _ in range(3)]
    take(b, version(2, compute_ms))
    assert await b.all_ended(*waiting) == ["nak", "ack", "ack"]
    assert b.server.queued == 0


async def test_weights_that_do_not_come_are_an_error_that_says_which_are_here(
    bench: MakeBench,
) -> None:
    b = await bench(version(4))
    await b.all_ended(b.send(0.0, weights=9, budget=0.5))
    result = b.answers()["r1"]
    assert result.status is Status.UNAVAILABLE
    assert "weight version 4" in result.message
    assert "asks for 9" in result.message
    assert [(hop.stage, hop.weights) for hop in result.hops] == [(2, 4)]
    assert b.model.batches == []


async def test_requests_that_wait_for_weights_take_no_credit_from_the_others(
    bench: MakeBench,
) -> None:
    b = await bench(version(1), credit=2)
    waiting = [b.send(0.0, weights=2) for _ in range(2)]
    assert len(b.link.pulls["stage2=any"]) > 1, "the lane is asked for more"
    assert await b.all_ended(b.send(0.0)) == ["ack"]
    take(b, version(2))
    assert set(await b.all_ended(*waiting)) == {"ack"}


async def test_a_crowd_that_waits_for_weights_is_bounded(bench: MakeBench) -> None:
    b = await bench(version(1))
    sent = [b.send(0.0, weights=2) for _ in range(MOST_BEHIND + 3)]
    assert await b.all_ended(*sent[MOST_BEHIND:]) == ["ack"] * 3
    assert {r.status for r in b.answers().values()} == {Status.UNAVAILABLE}
    take(b, version(2))
    await b.all_ended(*sent)
    assert sum(r.status is Status.OK for r in b.answers().values()) == MOST_BEHIND


async def test_a_cancelled_request_does_not_wait_for_weights_any_more(bench: MakeBench) -> None:
    b = await bench(version(0))
    waiting = b.send(0.0, weights=1)
    b.server.cancel("r1")
    assert await b.all_ended(waiting) == ["ack"]
    take(b, version(1))
    assert b.answers() == {}
    assert b.counters.cancelled == 1


async def test_a_stage_that_drains_gives_back_requests_that_wait_for_weights(
    bench: MakeBench,
) -> None:
    b = await bench(version(0))
    waiting = b.send(0.0, weights=1)
    await b.server.drain()
    assert await b.all_ended(waiting) == ["nak"]
    assert b.answers() == {}


async def test_a_suspended_stage_does_not_hold_requests_that_wait_for_weights(
    bench: MakeBench,
) -> None:
    b = await bench(version(0))
    waiting = b.send(0.0, weights=1)
    b.server.suspend()
    assert await b.all_ended(waiting) == ["nak"]
    b.server.resume()
    take(b, version(1))
    assert b.answers() == {}


# --- the self-test ------------------------------------------------------------------------


async def test_the_self_test_expects_the_answer_of_the_present_weights(bench: MakeBench) -> None:
    b = await bench(version(0))
    take(b, version(1))
    assert b.server.self_test()
    wrong = version(1)
    b.server.replace_model(wrong)  # a session that was loaded anew gives the same answer
    assert b.server.self_test()
    wrong.compute = lambda array: array
    assert not b.server.self_test()


async def test_a_self_test_beside_a_change_never_compares_two_versions(bench: MakeBench) -> None:
    b = await bench(version(0))
    take(b, version(1))
    outcomes: list[bool] = []
    ended = threading.Event()

    def test() -> None:
        while not ended.is_set():
            outcomes.append(b.server.self_test())

    thread = threading.Thread(target=test)
    thread.start()
    n = 1
    while n < 200 or len(outcomes) < 20:
        n += 1
        take(b, version(n))
    ended.set()
    thread.join(LIMIT)
    assert all(outcomes)
