"""Results on their way to the next stage: stored in its lane, or handed over and stored if need be.

A stage's own message is settled only when its result is safe."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

import numpy as np
import pytest
from stage_bench import INFO, LARGE, LATE, LIMIT, NEXT, SPEC, Bench, FakeModel, clumsy
from support.waiting import eventually

from swarm.errors import (
    NoLeader,
    NoResponders,
    NotConnected,
    ResourceExhausted,
    Status,
    SwarmError,
    Unavailable,
)
from swarm.fleet.advertised import StagePeer
from swarm.fleet.priorities import FALLBACK
from swarm.model import ModelInfo, Stage
from swarm.samehost.host_socket import LARGEST_MESSAGE
from swarm.samehost.memory import unavailable
from swarm.transport.handover.acks import ACK, NAK
from swarm.transport.lane import NoPubAck, NotStored

MakeBench = Callable[..., Awaitable[Bench]]

on_a_host = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))


# --- the next lane ----------------------------------------------------------------------


async def test_while_the_next_lane_is_full_the_message_is_held_and_then_passed_on(
    bench: MakeBench,
) -> None:
    b = await bench(stage=1)
    b.publisher.refusals = [ResourceExhausted("full") for _ in range(10)]
    sent = b.send(5.0)
    await eventually(lambda: b.publisher.tries > 2)
    assert not sent.ended, "this lane fills up in turn"
    assert await b.all_ended(sent) == ["ack"]
    assert (b.publisher.tries, len(b.model.batches), b.counters.blocked) == (11, 1, 10)
    [(_, features)] = b.publisher.stored
    assert features.tensors["x"][0, 0] == 6
    assert b.answers() == {}


async def test_a_lane_that_stays_full_is_a_refusal_when_the_budget_is_over(
    bench: MakeBench,
) -> None:
    b = await bench(stage=1)
    b.publisher.refusals = [ResourceExhausted("full") for _ in range(1000)]
    assert await b.all_ended(b.send(budget=0.5)) == ["ack"]
    result = b.answers()["r1"]
    assert result.status is Status.RESOURCE_EXHAUSTED
    assert "stage 2 is full" in result.message
    assert result.retry_after > 0.004  # as long again as it has waited


async def test_a_message_that_was_given_back_is_not_sent_on_later(bench: MakeBench) -> None:
    b = await bench(stage=1)
    b.publisher.refusals = [ResourceExhausted("full")] * 1000
    sent = b.send()
    await eventually(lambda: b.publisher.tries)
    b.server.suspend()
    assert sent.ended == "nak"
    before, b.publisher.refusals = b.publisher.tries, []
    b.server.resume()
    b.send(9.0)
    await eventually(lambda: b.publisher.stored)
    assert [f.id for _, f in b.publisher.stored] == ["r2"]
    assert b.publisher.tries == before + 1


@pytest.mark.parametrize(
    ("error", "ended"), [(Unavailable("no PubAck"), "nak"), (NotConnected("lost"), "")]
)
async def test_a_result_that_was_not_stored_leaves_its_message_to_the_lane(
    bench: MakeBench, error: SwarmError, ended: str
) -> None:
    """By a nak; or, with the connection, the lane hands it out again by itself."""
    b = await bench(stage=1)
    b.publisher.hold = True
    sent = b.send()
    await eventually(lambda: b.publisher.tries)
    b.publisher.release(error)
    assert (sent.ended, b.answers()) == (ended, {})


@pytest.mark.parametrize(
    "error",
    [
        NoResponders("nobody"),
        NoLeader("an election"),
        NotStored("the stream is sealed"),
        NoPubAck("no PubAck within 2 s"),
    ],
    ids=repr,
)
async def test_a_result_is_kept_while_no_server_keeps_the_next_lane(
    bench: MakeBench, error: SwarmError
) -> None:
    b = await bench(stage=1)
    b.publisher.refusals = [error, error]
    sent = b.send()
    assert await b.all_ended(sent) == ["ack"]
    assert (b.publisher.tries, len(b.publisher.stored)) == (3, 1)
    assert b.model.batches == [1], "it was computed once"


@pytest.mark.parametrize("stage", [1, 2])
async def test_an_output_that_cannot_be_sent_is_a_failure_and_no_hang(
    bench: MakeBench, stage: int
) -> None:
    b = await bench(stage=stage)
    b.model.compute = lambda array: np.zeros(3, np.complex64)
    assert await b.all_ended(b.send()) == ["ack"]
    assert b.answers()["r1"].status is not Status.OK
    # It was computed: a stage that cannot send must not look like one that does nothing.
    assert b.server.stats.compute.count == 1
    assert b.counters.served == 0
    b.model.compute = lambda array: array
    assert await b.all_ended(b.send()) == ["ack"]
    assert b.counters.served == 1


async def test_a_result_goes_to_the_lane_that_its_models_policy_picks(bench: MakeBench) -> None:
    b = await bench(stage=1, next_lane=lambda info, stage, features: f"node-{info.model}-{stage}")
    await b.all_ended(b.send())
    assert [subject for subject, _ in b.publisher.stored] == ["swarm.t.features.m.1.2.node-m-2"]


async def test_a_policy_that_raises_gives_its_message_back_and_spares_the_rest_of_the_batch(
    bench: MakeBench,
) -> None:
    """In the thread, where nobody above could catch it."""
    b = await bench(FakeModel(compute_ms=50.0), stage=1, next_lane=clumsy, credit=4)
    b.model.gate = threading.Event()
    first = b.send()
    await eventually(b.model.begun.is_set)
    others = [b.send(), b.send()]
    b.model.gate.set()
    assert await b.all_ended(first, *others) == ["nak", "ack", "ack"]
    assert await b.all_ended(b.send()) == ["ack"], "the stage goes on"
    assert b.server.queued == 0


async def test_a_defect_after_a_result_was_stored_gives_the_message_back(bench: MakeBench) -> None:
    """Left in hand it would be kept alive for ever, and cost a credit."""
    b = await bench(stage=1)
    b.publisher.hold = True
    sent = b.send()
    await eventually(lambda: b.publisher.tries)
    counters = b.server.stats.counters
    b.server.stats.counters = None  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        b.publisher.release(None)
    b.server.stats.counters = counters
    assert sent.ended == "nak"
    assert b.server.queued == 0


# --- handed over --------------------------------------------------------------------------


async def test_a_result_that_the_next_process_says_to_be_done_is_acked_and_never_stored(
    first: MakeBench,
) -> None:
    b = await first(credit=1)
    copy = b.send(3.0)
    [(inbox, features, reply)] = b.socket.handed
    assert (inbox, features.stage, features.tensors["x"].tolist()) == (NEXT, 2, [[4.0] * 4])
    assert not copy.ended, "until it is known to be safe"
    assert b.link.pulls["stage1=any"] == [1, 1], "which takes no credit"
    b.socket.say(reply, ACK)
    assert copy.ended == "ack"
    assert b.counters.served == b.counters.handed_over == 1
    assert b.link.expected == set()
    b.send()  # of which nothing is heard
    await eventually(lambda: b.publisher.tries)
    assert [features.id for _, features in b.publisher.stored] == ["r2"]


async def test_a_result_that_the_next_process_refuses_is_stored_at_once(first: MakeBench) -> None:
    b = await first()
    b.publisher.hold = True
    copy = b.send()
    b.socket.say(b.socket.handed[0][2], NAK)
    assert [features.stage for _, features in b.publisher.stored] == [2]
    assert not copy.ended
    b.publisher.release(None)
    assert copy.ended == "ack"
    assert (b.counters.served, b.counters.handed_over) == (1, 0)


async def test_a_result_of_which_nothing_is_heard_is_stored_with_the_budget_that_is_left(
    first: MakeBench,
) -> None:
    b = await first()
    b.publisher.hold = True
    copy = b.send(3.0)
    await eventually(lambda: b.publisher.stored)
    [(_, late)] = b.publisher.stored
    [(_, handed, reply)] = b.socket.handed
    assert (late.message_id, late.hops) == (handed.message_id, handed.all_hops)
    assert late.tensors["x"].tolist() == handed.tensors["x"].tolist()
    assert handed.budget_us - late.budget_us >= 1000
    assert not copy.ended
    b.socket.say(reply, ACK)  # too late to spare the lane: the word counts all the same
    assert copy.ended == "ack"
    b.publisher.release(None)
    assert (b.counters.served, b.link.verb(copy.reply)) == (1, "ack")


async def test_a_result_that_no_datagram_holds_is_stored_and_says_nothing_of_the_next_process(
    first: MakeBench,
) -> None:
    b = await first()
    b.peers.append(StagePeer("n3", FALLBACK, "another host", False))  # shares no memory
    b.placement.forget()
    large = b.send(tensors={"x": np.zeros((LARGEST_MESSAGE // 16, 4), np.float32)})
    assert (b.socket.handed, len(b.publisher.stored)) == ([], 1)
    assert await b.all_ended(large) == ["ack"]
    b.send()
    assert len(b.socket.handed) == 1


async def test_results_of_a_burst_are_stored_when_their_sending_fails(first: MakeBench) -> None:
    b = await first()
    b.link.bursting = b.socket.full = True
    copies = [b.send() for _ in range(5)]
    assert b.publisher.stored == []
    b.socket.flush()
    assert len(b.publisher.stored) == 5
    assert await b.all_ended(*copies) == ["ack"] * 5
    assert (b.counters.handed_over, b.link.expected) == (0, set())


def long_runs(seconds: float) -> ModelInfo:
    """The last stage's runs take so long."""
    last = Stage(2, SPEC, SPEC, seconds * 1e3)
    return ModelInfo("m", "1", SPEC, SPEC, (INFO.stages[0], last), batchable=True)


@pytest.mark.parametrize("slow", ["this stage", "a stage behind"])
async def test_no_more_than_a_second_of_runs_is_handed_over(first: MakeBench, slow: str) -> None:
    b = await first(info=long_runs(0.1 if slow == "a stage behind" else 1e-5))
    for _ in range(14):
        for _ in range(60 if slow == "this stage" else 0):
            b.server.stats.compute.add(0.1, time.monotonic())
        b.send()
    assert 10 <= len(b.socket.handed) <= 12
    assert len(b.publisher.stored) == 14 - len(b.socket.handed), "the lane does the others as well"


async def test_a_word_that_came_while_this_process_stood_still_counts(first: MakeBench) -> None:
    """Timers are called before sockets are read."""
    b = await first()
    copy = b.send()
    reply = b.socket.handed[0][2]
    asyncio.get_running_loop().call_later(LATE, b.socket.say, reply, ACK)
    time.sleep(2 * LATE)  # noqa: ASYNC251 - it is the process that stands still
    await b.all_ended(copy)
    assert (copy.ended, b.publisher.tries) == ("ack", 0)


async def test_a_loop_that_is_blocked_again_and_again_puts_nothing_off_for_ever(
    first: MakeBench,
) -> None:
    b = await first()
    b.send()
    ends = time.monotonic() + LIMIT
    while not b.publisher.stored and time.monotonic() < ends:
        time.sleep(0.009)  # noqa: ASYNC251 - it is the loop that is blocked
        await asyncio.sleep(0)
    assert b.publisher.stored


async def test_a_late_result_is_stored_in_the_lane_of_the_node_that_has_it(
    bench: MakeBench,
) -> None:
    lanes = iter(["here", "elsewhere"])
    b = await bench(FakeModel(compute_ms=0.01), stage=1, next_lane=lambda *about: next(lanes))
    b.next_is_here(NEXT, "here")
    b.send()
    await eventually(lambda: b.publisher.stored)
    assert [inbox for inbox, _, _ in b.socket.handed] == [NEXT]
    assert [subject for subject, _ in b.publisher.stored] == ["swarm.t.features.m.1.2.here"]


async def test_a_defect_in_storing_gives_the_message_back_and_spares_the_others(
    first: MakeBench,
) -> None:
    b = await first()
    copies = [b.send(), b.send()]
    b.publisher.raises = ValueError("a defect")
    b.socket.say(b.socket.handed[0][2], NAK)
    assert copies[0].ended == "nak"
    assert b.link.callback_errors == 1
    b.publisher.raises = None
    b.socket.say(b.socket.handed[1][2], NAK)
    assert await b.all_ended(copies[1]) == ["ack"]
    assert b.link.callback_errors == 1


async def test_a_full_lane_is_tried_again_with_a_result_that_was_handed_over_in_vain(
    first: MakeBench,
) -> None:
    b = await first()
    b.publisher.refusals = [ResourceExhausted("full")]
    copy = b.send()
    b.socket.say(b.socket.handed[0][2], NAK)
    assert await b.all_ended(copy) == ["ack"]
    assert (len(b.publisher.stored), b.counters.blocked) == (1, 1)
    assert b.link.expected == set()


async def test_a_late_result_that_finds_no_room_is_done_when_its_process_says_so(
    first: MakeBench,
) -> None:
    b = await first()
    b.publisher.refusals = [ResourceExhausted("full")] * 1000
    copy = b.send()
    await eventually(lambda: b.publisher.tries > 2)
    b.socket.say(b.socket.handed[0][2], ACK)
    assert (copy.ended, b.counters.handed_over) == ("ack", 1)
    assert (b.publisher.stored, b.answers()) == ([], {})


@on_a_host
async def test_a_late_result_that_was_stored_when_there_was_room_ends_with_that(
    first: MakeBench,
) -> None:
    """The lane's copy is read from the memory that was lent, whatever the late process says."""
    b = await first()
    b.publisher.refusals = [ResourceExhausted("full")] * 3
    copy = b.send(tensors=LARGE)
    assert await b.all_ended(copy) == ["ack"]
    assert (len(b.publisher.stored), b.counters.served) == (1, 1)
    assert b.link.expected == set(), "no word is waited for"
    b.socket.say(b.socket.handed[0][2], ACK)
    assert (b.lent, b.counters.served, b.counters.handed_over) == (1, 1, 0)


async def test_a_late_result_that_is_done_while_it_is_stored_again_counts_once(
    first: MakeBench,
) -> None:
    b = await first()
    b.publisher.refusals = [ResourceExhausted("full")] * 1000
    b.send()
    await eventually(lambda: b.counters.blocked)
    b.publisher.hold, b.publisher.refusals = True, []
    await eventually(lambda: b.publisher.stored)
    b.socket.say(b.socket.handed[0][2], ACK)
    b.publisher.release(None)
    assert (b.counters.served, b.counters.handed_over) == (1, 1)


async def test_a_word_for_a_result_that_was_given_up_changes_nothing(first: MakeBench) -> None:
    b = await first()
    b.publisher.refusals = [ResourceExhausted("full")] * 1000
    assert await b.all_ended(b.send(budget=0.5)) == ["ack"]
    b.socket.say(b.socket.handed[0][2], ACK)
    assert b.answers()["r1"].status is Status.RESOURCE_EXHAUSTED
    assert (b.counters.served, b.counters.handed_over) == (0, 0)


async def test_a_result_that_waits_for_room_takes_its_lanes_credit_again(first: MakeBench) -> None:
    """So that a full lane holds up the stages before it."""
    b = await first(credit=1)
    b.send()
    b.publisher.refusals = [ResourceExhausted("full")] * 1000
    b.socket.say(b.socket.handed[0][2], NAK)
    await eventually(lambda: b.counters.blocked)
    b.publisher.refusals = []
    other = b.send(tensors={"y": np.zeros(3, np.float32)})  # is answered at once
    assert (other.reply, b"+ACK") in b.link.sent, "and asks for no other"


async def test_messages_that_went_to_the_lane_are_waited_for_too(first: MakeBench) -> None:
    b = await first(info=long_runs(0.020), credit=64)
    b.socket.lives = True
    for _ in range(6):
        b.send(attempt=2)
    assert (len(b.publisher.stored), b.socket.handed) == (6, [])
    sent_at = time.monotonic()
    b.send()
    await eventually(lambda: len(b.publisher.stored) == 7)
    assert time.monotonic() - sent_at > 7 * 2 * 0.020


async def test_a_stage_that_ends_stores_all_that_it_has_handed_over(first: MakeBench) -> None:
    b = await first()
    copies = [b.send() for _ in range(3)]
    await b.server.drain(0.05)
    assert len(b.publisher.stored) == 3
    assert await b.all_ended(*copies) == ["ack"] * 3
    b.send()
    assert len(b.socket.handed) == 3


# --- memory that is lent --------------------------------------------------------------------


async def test_fast_mode_stores_nothing_and_hands_nothing_over(bench: MakeBench) -> None:
    b = await bench(FakeModel(compute_ms=0.01), stage=1)
    b.fast(b.message())
    assert [subject for subject, _ in b.link.sent] == ["swarm.t.fresh.m.1.2"]
    b.next_is_here()
    b.fast(b.message())
    assert [features.id for _, features, _ in b.socket.handed] == ["r2"]
    assert (b.publisher.tries, b.counters.handed_over, b.counters.served) == (0, 0, 2)
