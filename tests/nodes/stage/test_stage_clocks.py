"""Budgets at a stage while its server's clock is set: no clock ends a request by itself."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

import pytest
from stage_bench import Bench, FakeModel
from support.waiting import eventually

from swarm.errors import Status

MakeBench = Callable[..., Awaitable[Bench]]
STEPS = [-600.0, -5.0, -0.05, 0.05, 5.0, 600.0]
RUNS = [5.0, 0.01]
RUN_IDS = ["by the worker", "inline"]


@pytest.mark.parametrize("compute_ms", RUNS, ids=RUN_IDS)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("budget", [0.04, 0.8, 5.0])
async def test_a_step_of_the_servers_clock_ends_no_budget(
    bench: MakeBench, budget: float, step: float, compute_ms: float
) -> None:
    b = await bench(FakeModel(compute_ms), credit=16)
    b.send(budget=30.0)
    b.link.ahead += step
    sent = [b.send(budget=30.0 if n % 2 else budget) for n in range(8)]
    await b.all_ended(*sent)
    answers = b.answers()
    assert len(answers) == 9
    late = [r for r in answers.values() if r.status is not Status.OK]
    # A short budget may end on a busy machine, by this machine's own clock.
    assert [r.message for r in late if budget > 1.0 or "in the lane" in r.message] == []


@pytest.mark.parametrize("compute_ms", RUNS, ids=RUN_IDS)
async def test_what_really_lay_too_long_is_refused_with_its_true_age_behind_a_step(
    bench: MakeBench, compute_ms: float
) -> None:
    b = await bench(FakeModel(compute_ms))
    b.link.ahead -= 600.0
    await b.all_ended(b.send(budget=1.0))  # and the step is known
    await asyncio.sleep(0.3)  # the time that the next message lies in the lane
    await b.all_ended(b.send(budget=0.2, age=0.25))
    result = b.answers()["r2"]
    assert result.status is Status.DEADLINE_EXCEEDED
    found = re.search(r"([0-9.]+) ms in the lane of stage 2", result.message)
    assert found is not None
    assert 240.0 <= float(found[1]) < 600_000.0, "the machine may be busy meanwhile"


@pytest.mark.parametrize("compute_ms", RUNS, ids=RUN_IDS)
async def test_what_seems_too_old_is_computed_where_nobody_can_tell_its_age(
    bench: MakeBench, compute_ms: float
) -> None:
    b = await bench(FakeModel(compute_ms))
    b.link.is_deaf = True
    await b.all_ended(b.send(budget=5.0, age=600.0))
    assert b.answers()["r1"].status is Status.OK


async def test_one_question_about_the_time_answers_for_all_that_came_before_it(
    bench: MakeBench,
) -> None:
    b = await bench(credit=64)
    sent = [b.send(budget=1.0, age=3.0) for _ in range(50)]
    await b.all_ended(*sent)
    assert {r.status for r in b.answers().values()} == {Status.DEADLINE_EXCEEDED}
    assert b.link.asked == 1


async def test_the_time_is_not_asked_for_while_messages_are_young(bench: MakeBench) -> None:
    b = await bench()
    for _ in range(20):
        await b.all_ended(b.send(budget=60.0, age=0.2))
    assert b.link.asked == 0


async def test_a_request_that_is_cancelled_while_its_age_is_measured_is_dropped(
    bench: MakeBench,
) -> None:
    b = await bench()
    b.link.is_deaf = True
    message = b.send(budget=1.0, age=3.0)
    assert b.server.queued == 1
    b.server.cancel("r1")
    assert await b.all_ended(message) == ["ack"]
    assert (b.answers(), b.counters.cancelled) == ({}, 1)


async def test_a_stage_that_ends_while_ages_are_measured_leaves_no_message_in_hand(
    bench: MakeBench,
) -> None:
    b = await bench(credit=16)
    b.link.is_deaf = True
    sent = [b.send(budget=1.0, age=3.0) for _ in range(5)]
    await b.server.drain(0.0)
    verbs = await b.all_ended(*sent)
    assert verbs.count("nak") >= 4, "what does not run is another node's"
    await eventually(lambda: b.server.queued == 0)
    assert {r.status for r in b.answers().values()} <= {Status.OK}


async def test_the_rest_of_a_budget_travels_on_without_the_time_that_no_clock_has_proven(
    bench: MakeBench,
) -> None:
    b = await bench(FakeModel(0.01), stage=1)
    b.link.ahead -= 5.0
    await b.all_ended(b.send(budget=10.0))  # 5 s of it in the lane, as it seems
    [(_, features)] = b.publisher.stored
    assert features.budget_us > 6e6, "without the 5 s; the machine may be busy meanwhile"
