"""What a requester of this host hands over: run without a lane, and at most once with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
from stage_bench import Bench, FakeDelivery, FakeModel

from nodes.stage.intake import FORGOTTEN, KEPT, STALE
from swarm.errors import NotConnected, Status, Unavailable
from swarm.fleet.placement import Nearby
from swarm.lanes import DONE, PASSED_ON
from swarm.wire.messages import Features


@pytest.fixture
async def bench() -> AsyncIterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(model: FakeModel | None = None, **options: Any) -> Bench:
        made.append(Bench(model or FakeModel(compute_ms=0.01), **options))
        return made[-1]

    yield make
    for each in made:
        each.server.close()


def came(bench: Bench, data: bytes, ago_ns: int = 0) -> bytes:
    """What the requester's datagram does: it waits for the word where it waits for the answer."""
    bench.server.intake.came(data, time.monotonic_ns() - ago_ns, f"_INBOX.r{bench.number}")
    return data


async def ended(*copies: FakeDelivery) -> list[str]:
    async with asyncio.timeout(5):
        while not all(copy.settled for copy in copies):  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    return [copy.ended for copy in copies]


async def test_the_answer_is_the_only_word_and_a_copy_that_was_stored_meanwhile_is_not_run(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    data = came(b, b.message(3.0))
    assert b.model.batches == [1], "without a lane"
    assert len(b.direct.told + b.link.sent) == 1, "the answer, and no word beside it"
    assert b.answers()["r1"].outputs["x"].tolist() == [[4.0] * 4]
    assert await ended(b.deliver(data)) == ["ack"]
    assert b.model.batches == [1]
    assert b.server.stats.counters.taken == 1
    assert len(b.answers()) == 1


async def test_a_copy_that_comes_during_the_run_is_acked_when_that_is_over(
    bench: Callable[..., Bench],
) -> None:
    b = bench(FakeModel(slow=0.05))
    copy = b.deliver(came(b, b.message()))
    assert not copy.settled
    assert await ended(copy) == ["ack"]
    assert b.model.batches == [1]


async def test_a_stage_in_the_middle_acks_only_what_the_next_lane_has_stored(
    bench: Callable[..., Bench],
) -> None:
    b = bench(stage=1)
    b.publisher.hold = True
    copy = b.deliver(came(b, b.message()))
    await asyncio.sleep(0.02)
    assert [f.stage for _, f in b.publisher.stored] == [2]
    assert not copy.settled, "not yet stored"
    b.publisher.release(None)
    assert await ended(copy) == ["ack"]


async def test_what_the_next_lane_did_not_store_is_worked_on_when_the_copy_comes(
    bench: Callable[..., Bench],
) -> None:
    b = bench(stage=1)
    b.publisher.refusals = [Unavailable("no PubAck within 2 s")]
    data = came(b, b.message())
    await asyncio.sleep(0.02)
    assert await ended(b.deliver(data)) == ["ack"]
    assert b.model.batches == [1, 1]
    assert len(b.publisher.stored) == 1
    assert b.refused == ["r1"], "so that its requester stores it"


async def test_a_message_whose_copy_came_first_is_not_computed_twice(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    data = b.message()
    assert await ended(b.deliver(data)) == ["ack"]
    came(b, data)
    came(b, data, ago_ns=1_000_000)
    assert b.model.batches == [1]


async def test_two_copies_of_a_message_whose_hops_differ_are_the_same_message(
    bench: Callable[..., Bench],
) -> None:
    """The stage before ran on two nodes; one's copy was stored, the other's came directly."""
    b = bench()
    hop = {"stage": 1, "queue_us": 1, "compute_us": 1, "batch": 1}
    first = came(b, b.message(hops=[hop | {"node": "primary"}]))
    b.number -= 1
    other = b.message(hops=[hop | {"node": "fallback"}])
    assert first != other
    assert await ended(b.deliver(other)) == ["ack"]
    assert b.model.batches == [1]


async def test_another_attempt_is_another_message(bench: Callable[..., Bench]) -> None:
    b = bench()
    came(b, b.message())
    b.number -= 1
    assert await ended(b.deliver(b.message(attempt=2))) == ["ack"]
    assert b.model.batches == [1, 1]


@pytest.mark.parametrize("why", ["stale", "quota", "suspended", "another stage", "no connection"])
async def test_what_is_not_taken_is_refused_with_a_word_and_not_run(
    bench: Callable[..., Bench], why: str
) -> None:
    b = bench(stage=1, quota=1000.0 if why == "quota" else 0.0)
    if why == "suspended":
        b.server.suspend()
    b.link.connected = why != "no connection"
    data = b.message(stage=2 if why == "another stage" else 1)
    came(b, data, ago_ns=2 * STALE if why == "stale" else 0)
    assert (b.server.stats.counters.taken, b.model.batches) == (0, [])
    assert b.refused == ["r1"]
    b.link.connected = True
    if why not in ("suspended", "another stage"):
        assert await ended(b.deliver(data)) == ["ack"], "stored by its requester"


async def test_more_than_one_wait_here_for_the_worker(bench: Callable[..., Bench]) -> None:
    b = bench(FakeModel(slow=0.02))
    for _ in range(4):
        came(b, b.message())
    assert b.refused == []
    async with asyncio.timeout(5):
        while len(b.answers()) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("data", [b"", b"garbage", b"\x80", b"\x81\xa1v\x01"])
async def test_what_cannot_be_read_is_left_to_its_lane_which_buries_it_once(
    bench: Callable[..., Bench], data: bytes
) -> None:
    b = bench()
    came(b, data)
    assert b.refused == ["r0"]
    assert await ended(b.deliver(data)) == ["term"]
    assert b.server.stats.counters.dead_lettered == 1


async def test_after_a_lost_connection_the_copy_is_worked_on(bench: Callable[..., Bench]) -> None:
    """What was published before may not have been stored."""
    b = bench(stage=1)
    b.publisher.hold = True
    data = came(b, b.message())
    for callback in b.link.on_down:
        callback()
    b.publisher.release(NotConnected("lost"))
    b.publisher.hold = False
    assert await ended(b.deliver(data, delivered=2)) == ["ack"]
    assert b.model.batches == [1, 1]


async def test_a_suspended_stage_gives_the_copy_back(bench: Callable[..., Bench]) -> None:
    b = bench(FakeModel(slow=0.1))
    data = came(b, b.message())
    b.server.suspend()
    assert b.refused == ["r1"]
    assert await ended(b.deliver(data)) == ["nak"]


async def test_a_failure_is_told_once(bench: Callable[..., Bench]) -> None:
    b = bench(FakeModel())
    data = came(b, b.message(tensors={"y": np.zeros((1, 4), np.float32)}))
    assert b.answers()["r1"].status is Status.INVALID_ARGUMENT
    assert await ended(b.deliver(data)) == ["ack"]
    assert len(b.answers()) == 1


async def test_copies_that_never_come_do_not_end_the_intake(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    for _ in range(3 * KEPT):
        came(b, b.message())
    assert b.server.stats.counters.taken > 1.4 * KEPT
    assert len(b.server.intake._early) <= KEPT


async def test_a_budget_that_ran_out_on_the_way_is_an_answer(bench: Callable[..., Bench]) -> None:
    b = bench()
    data = came(b, b.message(budget=0.001), ago_ns=5_000_000)
    assert b.answers()["r1"].status is Status.DEADLINE_EXCEEDED
    assert b.model.batches == []
    assert await ended(b.deliver(data)) == ["ack"]
    assert Features.decode(data).id == "r1"


@pytest.mark.parametrize("stage", [1, 2])
async def test_a_connection_that_ends_during_the_run_leaves_the_work_to_the_copy(
    bench: Callable[..., Bench], stage: int
) -> None:
    b = bench(stage=stage)
    lost = NotConnected("lost")
    b.link.error, b.publisher.raises = lost, lost
    data = came(b, b.message())
    assert b.model.batches == [1]
    b.link.error = b.publisher.raises = None
    assert await ended(b.deliver(data)) == ["ack"]
    assert b.model.batches == [1, 1]


async def test_a_defect_leaves_the_work_to_the_copy(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    b.link.error = ValueError("a defect")  # type: ignore[assignment]
    with pytest.raises(ValueError, match="a defect"):
        came(b, data := b.message())
    b.link.error = None
    assert await ended(b.deliver(data)) == ["ack"]
    assert b.model.batches == [1, 1]


async def test_an_id_that_is_used_again_much_later_is_another_request(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    data = came(b, b.message())
    for early in b.server.intake._early.values():
        early.received -= FORGOTTEN
    assert await ended(b.deliver(data)) == ["ack"]
    assert b.model.batches == [1, 1]


async def test_a_requester_is_told_when_the_next_lane_has_what_came_of_its_request(
    bench: Callable[..., Bench],
) -> None:
    """Stages of other hosts may take longer than it waits; it need not store it then."""
    b = bench(stage=1)
    b.publisher.hold = True
    came(b, b.message())
    await asyncio.sleep(0.01)
    assert b.direct.told == []
    b.publisher.release(None)
    assert b.direct.told == [("_INBOX.r1", PASSED_ON)]


async def test_what_a_later_stage_has_passed_on_its_requester_is_told_too(
    bench: Callable[..., Bench],
) -> None:
    b = bench(stage=1)
    b.near = Nearby(inboxes={"any": "_INBOX.next"})
    for word, told in ((DONE, []), (PASSED_ON, [("_INBOX.r2", PASSED_ON)])):
        came(b, b.message())
        b.direct.say(b.direct.sent[-1][2], word)
        assert b.direct.told == told, "what is answered needs no word"
    assert b.server.stats.counters.handed_over == 2


async def test_requesters_that_are_many_fill_a_stage_up_to_a_second_of_work(
    bench: Callable[..., Bench],
) -> None:
    b = bench(FakeModel(slow=0.01))
    b.server.stats.compute.add(0.1, time.monotonic())
    for _ in range(13):
        came(b, b.message())
    assert b.refused == ["r13"], "one runs, and eleven of a tenth of a second wait"
    b.server.suspend()
