"""Requests that wait for a stage's worker: first in, first out, equal shapes together."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import numpy as np
from stage_bench import LIMIT

from nodes.stage.jobs import Job
from nodes.stage.waiting import Waiting
from swarm.transport.api import Delivery
from swarm.wire.messages import Features


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
