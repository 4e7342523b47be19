"""Requests that wait for a stage's worker: first in, first out, equal shapes together."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from stage_bench import LIMIT

from nodes.stage.jobs import Job
from nodes.stage.waiting import Waiting
from swarm.transport.api import Delivery
from swarm.wire.messages import Features
from swarm.wire.urgency import HIGH, LOW, NORMAL


def job(request_id: str, shape: tuple[Any, ...] = ((4,),)) -> Job:
    features = Features(request_id, "m", "1", 1, "_INBOX.r", 1, {"x": np.zeros((1, 4))})
    now = time.monotonic()
    return Job(cast(Delivery, None), features, now + LIMIT, now, 0.0, shape=shape)


def waiting(*jobs: Job, **options: Any) -> Waiting:
    settings: dict[str, Any] = {
        "max_batch": 8,
        "max_wait": 0.0,
        "batchable": True,
        "again": lambda: None,
    }
    made = Waiting(**settings | options)
    for each in jobs:
        made.add(each)
    return made


def ids(jobs: list[Job]) -> list[str]:
    return [each.features.id for each in jobs]


async def test_requests_leave_in_the_order_in_which_they_came() -> None:
    queue = waiting(*(job(name) for name in "abcdef"), max_batch=1)
    assert [ids(queue.take(0.0)) for _ in range(7)] == [*([name] for name in "abcdef"), []]


async def test_a_run_takes_no_more_than_a_batch_holds() -> None:
    queue = waiting(*(job(name) for name in "abcde"), max_batch=3)
    assert [ids(queue.take(0.0)), ids(queue.take(0.0))] == [["a", "b", "c"], ["d", "e"]]


async def test_a_model_that_cannot_be_batched_runs_one_request_at_a_time() -> None:
    queue = waiting(*(job(name) for name in "ab"), batchable=False)
    assert ids(queue.take(0.0)) == ["a"]


async def test_requests_of_another_shape_do_not_overtake() -> None:
    other = ((6,),)
    queue = waiting(job("a"), job("b", other), job("c"))
    assert [ids(queue.take(0.0)) for _ in range(3)] == [["a"], ["b"], ["c"]]


async def test_all_attempts_at_one_request_are_taken_out() -> None:
    queue = waiting(job("a"), job("b"), job("a"))
    assert ids(queue.take_out("a")) == ["a", "a"]
    assert ids(queue.take_out("a")) == []
    assert ids(queue.take_all()) == ["b"]
    assert len(queue) == 0


async def test_a_wait_for_company_ends_by_itself() -> None:
    over = asyncio.Event()
    queue = waiting(max_wait=0.005, again=over.set)
    now = time.monotonic()
    for n in range(50):  # a request a millisecond, so far: the next one will come soon
        queue.arrived(now - 0.050 + n / 1e3)
    queue.add(job("a"))
    assert queue.take(0.020) == [], "company pays"
    async with asyncio.timeout(LIMIT):
        await over.wait()
    assert ids(queue.take(0.020)) == ["a"], "it was waited for long enough"


# --- priorities -----------------------------------------------------------------------------------


def urgent(request_id: str, urgency: int, shape: tuple[Any, ...] = ((4,),)) -> Job:
    made = job(request_id, shape)
    made.features.urgency = urgency
    return made


async def test_a_high_one_is_in_the_next_run_whatever_waits() -> None:
    queue = waiting(*(job(name) for name in "abcdef"), max_batch=4)
    queue.add(urgent("high", HIGH))
    assert len(queue) == 7
    # It runs alone: company would make its run longer.
    assert [ids(queue.take(0.0)) for _ in range(4)] == [["high"], [*"abcd"], [*"ef"], []]


async def test_high_ones_beyond_their_share_run_together_behind_a_normal_one() -> None:
    queue = waiting(job("a"), urgent("h1", HIGH), urgent("h2", HIGH), urgent("h3", HIGH))
    assert [ids(queue.take(0.0)) for _ in range(3)] == [["h1"], ["a"], ["h2", "h3"]]


async def test_low_ones_wait_behind_normal_ones_and_have_their_share() -> None:
    jobs = [urgent(f"low{n}", LOW) for n in range(4)] + [job(f"n{n}") for n in range(8)]
    queue = waiting(*jobs, max_batch=1)
    served = [ids(queue.take(0.0))[0] for _ in range(12)]
    assert served[:6] == ["n0", "low0", "n1", "n2", "n3", "n4"]
    assert [each for each in served if each.startswith("low")] == [f"low{n}" for n in range(4)]
    assert queue.take(0.0) == []


async def test_without_company_a_high_one_does_not_wait_for_it() -> None:
    queue = waiting(max_wait=10.0, max_batch=8)
    now = time.monotonic()
    for number in range(20):
        queue.arrived(now - 0.02 + number / 1000)
    queue.add(job("a"))
    assert queue.take(1.0) == []
    queue.add(urgent("high", HIGH))
    assert ids(queue.take(1.0)) == ["high"]
    queue.take_all()


async def test_a_request_of_any_priority_can_be_taken_out() -> None:
    queue = waiting(job("a"), urgent("h", HIGH), urgent("l", LOW), urgent("h", HIGH))
    assert ids(queue.take_out("h")) == ["h", "h"]
    assert ids(queue.take_out("l")) == ["l"]
    assert sorted(ids(queue.take_all())) == ["a"]
    queue.add(urgent("h", HIGH))
    assert ids(queue.take_out("h")) == ["h"]
    assert len(queue) == 0


@given(st.lists(st.sampled_from([LOW, NORMAL, HIGH]), max_size=60), st.integers(1, 8))
async def test_each_request_is_taken_once_and_equals_stay_in_order(
    urgencies: list[int], most: int
) -> None:
    queue = waiting(max_batch=most)
    taken: list[Job] = []
    for number, urgency in enumerate(urgencies):
        queue.add(urgent(str(number), urgency))
        if number % 3 == 0:
            taken += queue.take(0.0)
    while len(queue):
        taken += queue.take(0.0)
    assert sorted(map(int, ids(taken))) == list(range(len(urgencies)))
    for urgency in (LOW, NORMAL, HIGH):
        alike = [int(j.features.id) for j in taken if j.features.urgency == urgency]
        assert alike == sorted(alike)
