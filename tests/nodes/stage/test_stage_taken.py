"""Parcels that processes of this host hand to a stage: worked on once, and their senders know."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Awaitable, Callable

import numpy as np
import pytest
from stage_bench import BEFORE, NEXT, POISON, Bench, FakeModel
from support.waiting import eventually

from swarm.errors import NotConnected, Status, Unavailable
from swarm.transport.handover.acks import ACK, NAK, PASSED_ON
from swarm.transport.handover.policy import HANDOVER
from swarm.transport.handover.receiver import STALE_AFTER

MakeBench = Callable[..., Awaitable[Bench]]
STALE = 2 * STALE_AFTER / 1e9  # seconds


@pytest.fixture
def short(bench: MakeBench) -> MakeBench:
    """A stage whose runs are done at once."""

    async def make(stage: int = 2, **options: object) -> Bench:
        return await bench(FakeModel(compute_ms=0.01), stage=stage, **options)

    return make


def runs_take(b: Bench, seconds: float) -> None:
    """So far."""
    for _ in range(100):
        b.server.stats.compute.add(seconds, time.monotonic())


# --- the word -----------------------------------------------------------------------------


async def test_the_last_stage_answers_first_and_then_says_that_it_is_done(
    short: MakeBench,
) -> None:
    b = await short()
    b.hand(b.message(3.0, host=b.host))
    assert [reply for reply, _ in b.socket.told] == ["_INBOX.r1", BEFORE]
    assert b.socket.told[1][1] == ACK
    assert b.answers()["r1"].outputs["x"].tolist() == [[4.0] * 4]
    assert (b.server.queued, b.counters.taken) == (0, 1)


async def test_a_requester_needs_no_word_beside_its_answer(short: MakeBench) -> None:
    b = await short()
    b.from_requester(b.message(3.0))
    assert len(b.socket.told + b.link.sent) == 1
    assert b.answers()["r1"].status is Status.OK


async def test_the_word_waits_for_the_answer_of_a_burst(short: MakeBench) -> None:
    b = await short()
    b.link.bursting = True
    b.hand(b.message(host=b.host))
    assert [reply for reply, _ in b.socket.told] == ["_INBOX.r1"], "no word yet"
    b.socket.flush()
    assert b.socket.told[1:] == [(BEFORE, ACK)]


async def test_an_answer_that_finds_no_room_goes_by_the_server_and_so_does_the_word(
    short: MakeBench,
) -> None:
    b = await short()
    b.link.bursting = b.socket.full = True
    b.hand(b.message(host=b.host))
    assert (b.socket.told, b.link.sent) == ([], [])
    b.socket.full = False
    b.socket.flush()
    assert [subject for subject, _ in b.link.sent] == ["_INBOX.r1", BEFORE]
    assert b.socket.told == []


@pytest.mark.parametrize("fails", [False, True])
async def test_an_answer_that_goes_by_the_server_is_there_before_the_word(
    short: MakeBench, fails: bool
) -> None:
    """If this node's connection is dead, both are lost, and the stage before stores the parcel."""
    b = await short()
    b.hand(b.message(POISON if fails else 3.0))
    assert b.socket.told == []
    assert [subject for subject, _ in b.link.sent] == ["_INBOX.r1", BEFORE]
    assert b.link.sent[1][1] == ACK
    assert b.answers()["r1"].status is (Status.INTERNAL if fails else Status.OK)


async def test_a_failure_that_could_not_be_reported_gives_the_parcel_back(
    short: MakeBench,
) -> None:
    b = await short()
    b.link.error = NotConnected("lost")
    b.hand(b.message(POISON))
    assert b.socket.told == [(BEFORE, NAK)]


async def test_a_stage_in_the_middle_is_done_when_the_next_one_is(short: MakeBench) -> None:
    b = await short(stage=1)
    b.next_is_here()
    b.hand(b.message())
    assert (b.socket.told, b.server.queued) == ([], 1)
    b.socket.say(b.socket.handed[0][2], ACK)
    assert (b.socket.told, b.server.queued) == ([(BEFORE, ACK)], 0)


async def test_a_stage_in_the_middle_is_done_when_the_next_lane_has_the_result(
    short: MakeBench,
) -> None:
    b = await short(stage=1)
    b.next_is_here()
    b.hand(b.message())
    b.publisher.hold = True
    b.socket.say(b.socket.handed[0][2], NAK)
    assert b.socket.told == []
    b.publisher.release(None)
    assert b.socket.told == [(BEFORE, PASSED_ON)]


async def test_a_requester_is_told_when_a_later_lane_has_the_work_of_its_request(
    short: MakeBench,
) -> None:
    """Stages of other hosts may take longer than it waits; it need not store the request then."""
    b = await short(stage=1)
    b.publisher.hold = True
    b.from_requester(b.message())
    assert b.socket.told == []
    b.publisher.release(None)
    assert b.socket.told == [("_INBOX.r1", PASSED_ON)]


async def test_a_requester_is_told_of_a_result_that_a_later_stage_has_passed_on(
    short: MakeBench,
) -> None:
    b = await short(stage=1)
    b.next_is_here(NEXT)
    for word, told in ((ACK, []), (PASSED_ON, [("_INBOX.r2", PASSED_ON)])):
        b.from_requester(b.message())
        b.socket.say(b.socket.handed[-1][2], word)
        assert b.socket.told == told, "an answered request needs no word"
    assert b.counters.handed_over == 2


async def test_a_failure_ends_a_parcel(short: MakeBench) -> None:
    b = await short()
    b.hand(b.message(budget=0.001), ago=0.005)
    assert b.answers()["r1"].status is Status.DEADLINE_EXCEEDED
    assert b.link.sent[-1] == (BEFORE, ACK)
    assert b.model.batches == []


async def test_a_parcel_of_a_cancelled_request_is_done(short: MakeBench) -> None:
    b = await short()
    b.server.cancel("r1")
    b.hand(b.message())
    assert b.socket.told == [(BEFORE, ACK)]
    assert b.model.batches == []


# --- refusals -----------------------------------------------------------------------------


WHY_NOT = ["stale", "work waits", "many", "suspended", "quotas"]
WHY_NOT += ["no connection", "another stage", "garbage"]


@pytest.mark.parametrize("why", WHY_NOT)
async def test_a_parcel_that_is_not_taken_is_refused_with_a_word_and_not_run(
    short: MakeBench, why: str
) -> None:
    b = await short(stage=1, quota=1000.0 if why == "quotas" else 0.0)
    if why == "work waits":
        b.send(pending=1)  # one more lies in the lane, came first, and takes long
        runs_take(b, 5.0)
    elif why == "suspended":
        b.server.suspend()
    elif why == "many":
        b.send(pending=HANDOVER.most_at_hand)
    runs = len(b.model.batches)
    b.link.connected = why != "no connection"
    data = b.message(stage=2 if why == "another stage" else 1)
    b.hand(b"\x80" if why == "garbage" else data, STALE if why == "stale" else 0.0)
    assert b.socket.told == [(BEFORE, NAK)]
    assert len(b.model.batches) == runs
    assert b.counters.taken == 0


async def test_a_stage_that_ends_refuses_parcels_while_it_finishes_its_run(
    bench: MakeBench,
) -> None:
    model = FakeModel()
    model.gate = threading.Event()
    b = await bench(model)
    running = b.send()
    await eventually(model.begun.is_set)
    draining = asyncio.create_task(b.server.drain())
    await asyncio.sleep(0)
    b.hand(b.message())
    assert b.socket.told == [(BEFORE, NAK)]
    model.gate.set()
    await draining
    assert running.ended == "ack"


async def test_a_stage_that_has_ended_listens_to_no_process_any_more(
    bench: MakeBench,
) -> None:
    b = await bench(FakeModel(), stage=2)
    assert "swarm.t.features.m.1.2.any" in b.socket.listeners
    await b.server.drain()
    assert b.socket.listeners == {}


async def test_messages_that_wait_in_the_lane_are_asked_for_before_more_is_taken(
    short: MakeBench,
) -> None:
    b = await short()
    runs_take(b, 0.025)
    b.send(pending=8)
    asked = sum(b.link.pulls["stage2=any"])
    runs_take(b, 0.025)
    b.hand(b.message())
    assert 4 <= sum(b.link.pulls["stage2=any"]) - asked <= 8, "those that were not asked for yet"
    assert b.counters.taken == 1


async def test_requesters_that_are_many_fill_a_stage_up_to_a_second_of_work(
    bench: MakeBench,
) -> None:
    b = await bench(FakeModel(slow=0.01))
    b.server.stats.compute.add(0.1, time.monotonic())
    for _ in range(13):
        b.from_requester(b.message())
    assert b.refused == ["r13"], "one runs, and eleven of a tenth of a second wait"
    b.server.suspend()


async def test_of_routed_messages_those_in_the_shared_lane_are_for_whichever_node_is_free(
    short: MakeBench,
) -> None:
    b = await short()
    b.server.source.open_lane("n1")
    await eventually(lambda: "stage2=n1" in b.link.inboxes)
    b.send(pending=3, lane="n1")
    runs_take(b, 0.025)
    b.hand(b.message())
    assert b.counters.taken == 1, "its own lane's messages are its own"
    b.send(pending=3)
    runs_take(b, 0.025)
    b.hand(b.message())
    assert b.socket.told[-1] == (BEFORE, NAK)


# --- copies -------------------------------------------------------------------------------


async def test_a_copy_that_was_stored_meanwhile_is_settled_when_the_work_is_done(
    short: MakeBench,
) -> None:
    b = await short(stage=1)
    b.next_is_here()
    data = b.hand(b.message(budget=10.0))
    b.number -= 1
    copy = b.deliver(later := b.message(budget=9.99))
    assert data != later
    assert (copy.ended, b.server.queued) == ("", 1)
    b.socket.say(b.socket.handed[0][2], ACK)
    assert copy.ended == "ack"
    assert b.socket.told == [], "its sender has the lane's word"
    assert b.model.batches == [1]


async def test_two_copies_of_a_message_whose_hops_differ_are_the_same_message(
    short: MakeBench,
) -> None:
    """The stage before ran on two nodes; one's copy was stored, the other's came directly."""
    b = await short()
    hop = {"stage": 1, "queue_us": 1, "compute_us": 1, "batch": 1}
    b.hand(b.message(hops=[hop | {"node": "primary"}]))
    b.number -= 1
    other = b.message(hops=[hop | {"node": "fallback"}])
    assert await b.all_ended(b.deliver(other)) == ["ack"]
    assert b.model.batches == [1]


async def test_a_result_that_the_next_lane_did_not_store_is_made_again_when_the_copy_comes(
    short: MakeBench,
) -> None:
    b = await short(stage=1)
    b.publisher.hold = True
    data = b.from_requester(b.message())
    b.publisher.release(Unavailable("no PubAck within 2 s"))
    b.publisher.hold = False
    assert b.refused == ["r1"], "so that its requester stores it"
    assert await b.all_ended(b.deliver(data)) == ["ack"]
    assert b.model.batches == [1, 1]


@pytest.mark.parametrize("stage", [1, 2])
async def test_a_connection_that_ends_during_the_run_leaves_the_work_to_the_copy(
    short: MakeBench, stage: int
) -> None:
    b = await short(stage=stage)
    lost = NotConnected("lost")
    b.link.error, b.publisher.raises = lost, lost
    data = b.from_requester(b.message())
    assert b.model.batches == [1]
    assert b.refused == ["r1"]
    b.link.error = b.publisher.raises = None
    assert await b.all_ended(b.deliver(data)) == ["ack"]
    assert b.model.batches == [1, 1]


async def test_after_a_lost_connection_the_copy_is_worked_on(short: MakeBench) -> None:
    """Messages that were published before may not have been stored."""
    b = await short(stage=1)
    b.publisher.hold = True
    data = b.from_requester(b.message())
    for callback in list(b.link.on_down):
        callback()
    b.publisher.release(NotConnected("lost"))
    b.publisher.hold = False
    assert await b.all_ended(b.deliver(data, delivered=2)) == ["ack"]
    assert b.model.batches == [1, 1]


async def test_a_defect_leaves_the_work_to_the_copy(short: MakeBench) -> None:
    b = await short()
    b.link.error = ValueError("a defect")
    data = b.message()
    with pytest.raises(ValueError, match="a defect"):
        b.from_requester(data)
    b.link.error = None
    assert await b.all_ended(b.deliver(data)) == ["ack"]
    assert b.model.batches == [1, 1]


async def test_a_parcel_that_is_done_leaves_no_tensors_in_memory(short: MakeBench) -> None:
    """It is remembered for a copy that may come; hundreds of results would fill the memory."""
    b = await short(stage=1)
    results: list[weakref.ref[np.ndarray]] = []

    def compute(array: np.ndarray) -> np.ndarray:
        result = array + 1
        results.append(weakref.ref(result))
        return result

    b.model.compute = compute
    data = b.hand(b.message())
    await eventually(lambda: b.counters.served)
    assert [word for _, word in b.socket.told] == [PASSED_ON]
    b.publisher.stored.clear()
    [result] = results
    assert result() is None
    assert await b.all_ended(b.deliver(data)) == ["ack"]
    assert b.model.batches == [1], "the copy is the same message all the same"


# --- trouble ------------------------------------------------------------------------------


async def test_a_suspended_stage_gives_back_the_parcels_that_it_works_on(
    bench: MakeBench,
) -> None:
    b = await bench(FakeModel(slow=0.05), stage=2)
    data = b.hand(b.message())
    copied = b.message()
    b.hand(copied)
    copy = b.deliver(copied)
    b.server.suspend()
    assert b.socket.told == [(BEFORE, NAK)]
    assert (copy.ended, b.server.queued) == ("nak", 0)
    b.server.resume()
    assert await b.all_ended(b.deliver(data)) == ["ack"], "by its lane then"


async def test_without_a_connection_a_result_that_must_be_stored_gives_its_parcel_back(
    short: MakeBench,
) -> None:
    b = await short(stage=1)
    b.next_is_here()
    b.hand(b.message())
    b.publisher.raises = NotConnected("lost")
    b.socket.say(b.socket.handed[0][2], NAK)
    assert b.socket.told == [(BEFORE, NAK)]
    assert b.server.queued == 0


async def test_more_than_one_parcel_waits_for_the_worker(bench: MakeBench) -> None:
    b = await bench(FakeModel(slow=0.01))
    for _ in range(4):
        b.from_requester(b.message())
    assert b.refused == []
    await eventually(lambda: len(b.answers()) == 4)


async def test_a_bad_parcel_is_answered_once(bench: MakeBench) -> None:
    b = await bench()
    data = b.from_requester(b.message(tensors={"y": np.zeros((1, 4), np.float32)}))
    assert b.answers()["r1"].status is Status.INVALID_ARGUMENT
    assert await b.all_ended(b.deliver(data)) == ["ack"]
    assert len(b.answers()) == 1
