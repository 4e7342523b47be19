"""A stage and messages that it cannot work on, or must not; its restarts and its end; fast mode."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import numpy as np
import pytest
from stage_bench import LIMIT, Bench, FakeModel
from support.waiting import eventually

from swarm.errors import NotConnected, Status
from swarm.link import LinkMessage
from swarm.samehost.memory import MIN_BYTES, unavailable
from swarm.transport.fast import MOST_UNANSWERED, MOST_WAITING
from swarm.wire.messages import Features

MakeBench = Callable[..., Awaitable[Bench]]


def gated() -> FakeModel:
    """Its runs last until the test says so."""
    model = FakeModel()
    model.gate = threading.Event()
    return model


# --- messages that cannot be worked on ------------------------------------------------------


@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
async def test_a_parcel_whose_memory_was_recycled_is_its_senders_again(bench: MakeBench) -> None:
    """A process of this host has the tensors still."""
    b = await bench(stage=2)
    loan = b.lender.lend({"x": np.zeros((MIN_BYTES // 16, 4), np.float32)})
    loan.take_back()
    b.lender.lend({"x": np.ones((MIN_BYTES // 16, 4), np.float32)})  # in the same place
    b.number += 1
    features = Features("r1", "m", "1", 2, "_INBOX.r1", 10_000_000, dict(loan.tensors))
    b.from_requester(b"".join(features.parts(loan.packed)))
    assert (b.refused, b.model.batches) == (["r1"], [])


@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
async def test_memory_that_was_recycled_during_the_run_makes_no_answer(bench: MakeBench) -> None:
    b = await bench(gated(), stage=2)
    loan = b.lender.lend({"x": np.zeros((MIN_BYTES // 16, 4), np.float32)})
    b.number += 1
    features = Features("r1", "m", "1", 2, "_INBOX.r1", 10_000_000, dict(loan.tensors))
    came = b.deliver(b"".join(features.parts(loan.packed)))
    await eventually(b.model.begun.is_set)
    loan.take_back()
    b.lender.lend({"x": np.ones((MIN_BYTES // 16, 4), np.float32)})
    assert b.model.gate is not None
    b.model.gate.set()
    await b.all_ended(came)
    result = b.answers()["r1"]
    assert result.status is Status.UNAVAILABLE
    assert "recycled" in result.message


async def test_a_failure_that_cannot_be_reported_ends_its_message_by_the_lane_alone(
    bench: MakeBench,
) -> None:
    """The connection is gone: the lane hands the message out again by itself."""
    b = await bench(FakeModel(compute_ms=0.01))
    b.link.error = NotConnected("lost")
    came = b.send(tensors={"y": np.zeros(3, np.float32)})
    assert (came.ended, b.answers()) == ("", {})


# --- restarts -----------------------------------------------------------------------------


@pytest.mark.parametrize("compute_ms", [5.0, 0.01], ids=["worker", "inline"])
async def test_a_suspended_stage_gives_back_messages_that_still_arrive(
    bench: MakeBench, compute_ms: float
) -> None:
    """Parked pulls bring messages for another second; a stage that cannot be trusted must
    neither compute them nor hold them."""
    b = await bench(FakeModel(compute_ms))
    b.server.suspend()
    asked = len(b.link.pulls["stage2=any"])
    late = [b.send() for _ in range(5)]
    assert set(await b.all_ended(*late)) == {"nak"}
    assert b.model.batches == []
    assert len(b.link.pulls["stage2=any"]) == asked, "it asks for nothing more"
    b.server.resume()
    assert len(b.link.pulls["stage2=any"]) > asked
    assert await b.all_ended(b.send()) == ["ack"]


async def test_a_lane_that_is_opened_while_the_stage_is_suspended_asks_once(
    bench: MakeBench,
) -> None:
    b = await bench()
    b.server.suspend()
    b.server.source.open_lane("n1")
    await eventually(lambda: "stage2=n1" in b.link.inboxes)
    asked = len(b.link.pulls["stage2=n1"])
    late = [b.send(lane="n1") for _ in range(3)]
    assert set(await b.all_ended(*late)) == {"nak"}
    assert len(b.link.pulls["stage2=n1"]) == asked


async def test_a_hung_run_is_abandoned_and_its_message_given_back(bench: MakeBench) -> None:
    b = await bench(gated())
    hung, queued = b.send(), b.send()
    await eventually(b.model.begun.is_set)
    assert b.server.running_since > 0
    b.server.suspend()
    assert (hung.ended, queued.ended) == ("nak", "nak")
    b.server.resume()
    assert b.model.gate is not None
    b.model.gate.set()  # the hung run ends: nobody wants its result
    assert await b.all_ended(b.send()) == ["ack"]
    assert list(b.answers()) == ["r3"]


async def test_a_suspended_stage_tells_requesters_of_fast_mode_at_once(bench: MakeBench) -> None:
    b = await bench(stage=2)
    b.server.suspend()
    b.fast(b.message())
    assert b.answers()["r1"].status is Status.UNAVAILABLE
    assert b.model.batches == []


@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
async def test_memory_of_fast_mode_that_a_suspended_stage_is_sent_is_free_again(
    bench: MakeBench,
) -> None:
    b = await bench(stage=2)
    loan = b.lender.lend({"x": np.zeros((MIN_BYTES // 16, 4), np.float32)})
    b.server.suspend()
    features = Features("r1", "m", "1", 2, "_INBOX.r1", 1_000_000, {})
    b.fast(b"".join(features.parts(loan.packed)))
    await eventually(lambda: not b.lent)


# --- the end ------------------------------------------------------------------------------


async def test_a_drain_gives_back_the_queue_and_finishes_the_run(bench: MakeBench) -> None:
    b = await bench(gated(), max_batch=1)
    running = b.send()
    await eventually(b.model.begun.is_set)
    queued = [b.send() for _ in range(5)]
    draining = asyncio.create_task(b.server.drain())
    assert set(await b.all_ended(*queued)) == {"nak"}
    assert not running.ended
    assert b.model.gate is not None
    b.model.gate.set()
    await asyncio.wait_for(draining, LIMIT)
    assert running.ended == "ack"
    assert list(b.answers()) == ["r1"]


async def test_a_drain_waits_no_longer_than_it_is_told_to(bench: MakeBench) -> None:
    b = await bench(gated())
    b.send()
    await asyncio.wait_for(b.server.drain(0.05), LIMIT)
    assert b.answers() == {}


# --- fast mode ------------------------------------------------------------------------------


async def test_as_many_messages_of_fast_mode_wait_as_may_and_the_next_is_refused(
    bench: MakeBench,
) -> None:
    b = await bench(gated(), max_batch=1)
    for _ in range(1 + MOST_WAITING):  # one runs
        b.fast(b.message())
    assert b.answers() == {}
    b.fast(b.message())
    [(name, result)] = b.answers().items()
    assert (name, result.status) == (f"r{b.number}", Status.RESOURCE_EXHAUSTED)
    assert b.counters.refused == 1


async def test_a_message_of_fast_mode_that_cannot_be_decoded_is_buried(bench: MakeBench) -> None:
    b = await bench()
    b.fast(b"\xc1 nonsense")
    assert ("swarm.t.dead.m", b"\xc1 nonsense") in b.link.sent
    b.fast(b.message())
    await eventually(lambda: b.answers())


async def test_in_fast_mode_a_next_stage_without_a_node_is_told_to_the_requester_at_once(
    bench: MakeBench,
) -> None:
    b = await bench(FakeModel(compute_ms=0.01), stage=1)
    for _ in range(MOST_UNANSWERED + 5):
        b.fast(b.message())
    assert b.answers() == {}
    last = b.link.replies[-1]
    [told] = [
        callback
        for subject, callback in b.link.callbacks.items()
        if subject.endswith("*") and last.startswith(subject[:-1]) and ".unheard" in subject
    ]

    def nobody(reply: str, headers: bytes = b"NATS/1.0 503\r\n\r\n") -> None:
        told(LinkMessage(reply, "", headers, b""))

    nobody(last)
    nobody(last)  # once is enough
    nobody(b.link.replies[0])  # too long ago
    nobody(b.link.replies[-2], b"NATS/1.0\r\n\r\n")  # no such message
    [(name, result)] = b.answers().items()
    assert (name, result.status, result.stage) == (f"r{b.number}", Status.UNAVAILABLE, 2)
    assert "no node serves stage 2" in result.message
