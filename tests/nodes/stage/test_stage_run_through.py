"""A node that is a primary of consecutive stages computes them without a message between."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import numpy as np
import pytest
from stage_bench import POISON, SPEC, Bench, FakeModel
from support.waiting import eventually

from nodes.stage.server import StageServer
from swarm.errors import ResourceExhausted, Status
from swarm.fleet.priorities import FALLBACK
from swarm.model import ModelInfo, Stage

MakeBench = Callable[..., Awaitable[Bench]]
IN_THREAD, ON_LOOP = 5.0, 0.01  # milliseconds of a run
LAST = 20
LONG = ModelInfo(
    "m", "1", SPEC, SPEC, tuple(Stage(n, SPEC, SPEC, 0.01) for n in range(1, LAST + 1)), True
)


class Node:
    """Stages of one node: stage 1 gets the messages."""

    def __init__(self) -> None:
        self.stages: dict[int, StageServer] = {}

    def beside(self, stage: int) -> StageServer | None:
        return self.stages.get(stage)


@pytest.fixture
async def pair(bench: MakeBench) -> Callable[..., Awaitable[tuple[Bench, Bench]]]:
    async def make(
        compute_ms: float = IN_THREAD, priority: int = 0, first: FakeModel | None = None
    ) -> tuple[Bench, Bench]:
        node = Node()
        one = await bench(first or FakeModel(compute_ms), stage=1, beside=node.beside)
        two = await bench(FakeModel(compute_ms), stage=2, beside=node.beside, priority=priority)
        node.stages = {1: one.server, 2: two.server}
        return one, two

    return make


Pair = Callable[..., Awaitable[tuple[Bench, Bench]]]


@pytest.mark.parametrize("compute_ms", [IN_THREAD, ON_LOOP])
async def test_a_request_passes_through_both_stages_without_a_message_between(
    pair: Pair, compute_ms: float
) -> None:
    one, two = await pair(compute_ms)
    sent = [one.send(float(value)) for value in range(5)]
    assert await one.all_ended(*sent) == ["ack"] * 5
    assert one.publisher.tries == two.publisher.tries == 0
    assert one.socket.handed == []
    for number, result in enumerate(one.answers().values()):
        assert result.status is Status.OK
        assert result.outputs["x"].tolist() == [[number + 2.0] * 4]
        assert [(hop.stage, hop.node) for hop in result.hops] == [(1, "n1"), (2, "n1")]
        assert all(hop.compute_us >= 0 for hop in result.hops)
    assert (one.counters.served, one.counters.continued, two.counters.served) == (5, 5, 5)
    assert (one.server.queued, two.server.queued) == (0, 0)


async def test_the_message_is_acknowledged_only_behind_the_last_stage_of_the_run(
    pair: Pair,
) -> None:
    one, two = await pair()
    two.model.gate = threading.Event()
    sent = one.send()
    await eventually(two.model.begun.is_set)
    assert (sent.ended, two.server.queued) == ("", 1)
    two.model.gate.set()
    assert await one.all_ended(sent) == ["ack"]


async def test_a_redelivery_computes_the_same_anew(pair: Pair) -> None:
    one, two = await pair()
    data = one.message(3.0)
    first = one.deliver(data)
    assert await one.all_ended(first) == ["ack"]
    [result] = one.answers().values()
    one.link.sent.clear()
    again = one.deliver(data, delivered=2)
    assert await one.all_ended(again) == ["ack"]
    [same] = one.answers().values()
    assert np.array_equal(result.outputs["x"], same.outputs["x"])
    assert two.counters.served == 2


async def test_a_stage_that_only_covers_gets_its_work_by_the_lane(pair: Pair) -> None:
    """Its primary is another node."""
    one, two = await pair(priority=FALLBACK)
    assert await one.all_ended(one.send()) == ["ack"]
    assert (len(one.publisher.stored), two.model.batches) == (1, [])


async def test_a_stage_that_leaves_the_node_gets_nothing_more_and_ends_what_it_has(
    pair: Pair,
) -> None:
    one, two = await pair()
    two.model.gate = threading.Event()
    has = one.send()
    await eventually(two.model.begun.is_set)
    draining = asyncio.create_task(two.server.drain())
    await eventually(lambda: not two.server.is_primary)
    late = one.send()
    await eventually(lambda: one.publisher.stored)
    assert [features.stage for _, features in one.publisher.stored] == [2]
    two.model.gate.set()
    assert await one.all_ended(has, late) == ["ack", "ack"]
    assert list(one.answers()) == ["r1"]
    await draining


async def test_a_stage_that_hangs_gives_its_requests_back_to_the_lane_they_came_by(
    pair: Pair,
) -> None:
    one, two = await pair()
    two.model.gate = threading.Event()
    sent = one.send()
    await eventually(two.model.begun.is_set)
    two.server.suspend()
    assert await one.all_ended(sent) == ["nak"]
    assert two.server.queued == 0
    later = one.send()
    await eventually(lambda: one.publisher.stored)
    assert await one.all_ended(later) == ["ack"], "others may serve it meanwhile"


async def test_a_request_that_another_node_has_by_now_is_in_hand_at_no_stage(
    bench: MakeBench,
) -> None:
    """It waited for room in the next lane meanwhile."""
    node = Node()
    one, two = [
        await bench(FakeModel(ON_LOOP), stage=n, info=LONG, beside=node.beside) for n in (1, 2)
    ]
    node.stages = {1: one.server, 2: two.server}
    two.publisher.refusals = [ResourceExhausted("full")] * 1000
    sent = one.send()
    await eventually(lambda: two.counters.blocked)
    assert two.server.queued == 1
    one.server.source.hand_back()
    assert await one.all_ended(sent) == ["nak"]
    await eventually(lambda: two.server.queued == 0)


async def test_a_request_that_fails_at_a_later_stage_names_that_stage(pair: Pair) -> None:
    one, two = await pair()
    poisoned = one.send(POISON - 1)
    assert await one.all_ended(poisoned) == ["ack"]
    result = one.answers()["r1"]
    assert (result.status, result.stage) == (Status.INTERNAL, 2)
    assert two.server.queued == 0


async def test_a_cancelled_request_ends_at_whichever_stage_it_is(pair: Pair) -> None:
    one, two = await pair()
    two.model.slow = 30.0
    sent = one.send()
    await eventually(two.model.begun.is_set)
    two.server.cancel("r1")
    assert await one.all_ended(sent) == ["ack"]
    assert one.answers() == {}


async def test_the_budget_runs_on_through_the_stages_of_a_node(pair: Pair) -> None:
    one, two = await pair()
    two.model.slow = 30.0
    assert await one.all_ended(one.send(budget=0.2)) == ["ack"]
    assert one.answers()["r1"].status is Status.DEADLINE_EXCEEDED


async def test_many_short_stages_need_no_deep_stack_and_end_all(bench: MakeBench) -> None:
    node = Node()
    benches = [
        await bench(FakeModel(ON_LOOP), stage=n, info=LONG, beside=node.beside)
        for n in range(1, LAST + 1)
    ]
    node.stages = {b.stage: b.server for b in benches}
    first = benches[0]
    assert await first.all_ended(first.send(0.0)) == ["ack"]
    assert first.answers()["r1"].outputs["x"][0, 0] == LAST
    assert [hop.stage for hop in first.answers()["r1"].hops] == list(range(1, LAST + 1))
    assert all(b.server.queued == 0 for b in benches)
