"""All messages of a stage on a real server: its lanes, its fast queue, and what is beyond work."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable

import numpy as np
import pytest
from contract import FAST, HANDED, INFO, LANE, LIMIT, Path, Receiver, Rig, finish
from support.waiting import eventually

from swarm.errors import DecodeError, Status
from swarm.fleet.priorities import FALLBACK, STANDBY
from swarm.link import LinkMessage, jetstream
from swarm.samehost.memory import MIN_BYTES, unavailable
from swarm.subjects import api
from swarm.transport import source
from swarm.transport.api import Backlog
from swarm.transport.fast import MOST_WAITING
from swarm.wire.messages import Features

MakeRig = Callable[..., Awaitable[Rig]]
on_a_host = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))


async def dead_letters(r: Rig) -> int:
    await r.mesh.link.flush()
    info = await jetstream.call(r.mesh.link, api("STREAM.INFO", r.mesh.subjects.dead_stream))
    return int(info["state"]["messages"])


def publish(r: Rig, data: bytes, lane: str = "any") -> None:
    """Whatever anybody puts into the lane."""
    r.mesh.link.publish(r.mesh.subjects.features("m", "1", r.path.stage, lane), data)


async def emptied(r: Rig, receiver: Receiver) -> None:
    await receiver.mesh.link.flush()
    await r.emptied()


@pytest.mark.parametrize("data", [b"", b"\xc1 nonsense", b"\x80", b"\x81\xa1v\x02"])
async def test_a_message_that_cannot_be_decoded_is_a_dead_letter_and_the_next_one_is_served(
    rig: MakeRig, data: bytes
) -> None:
    r = await rig(LANE)
    receiver = await r.receiver()
    receiver.work = finish
    publish(r, data)
    r.send(2.0)
    await receiver.delivery()
    await emptied(r, receiver)
    assert receiver.values == [2.0]
    assert (await dead_letters(r), receiver.counts.dead_lettered) == (1, 1)
    assert receiver.mesh.link.callback_errors == 0


@pytest.mark.parametrize("path", [LANE, FAST], ids=lambda path: path.name)
async def test_a_message_for_another_stage_is_answered_and_not_worked_on(
    rig: MakeRig, path: Path
) -> None:
    r = await rig(path)
    receiver = await r.receiver()
    sent = r.send(stage=1)
    result = await sent.answer()
    assert result.status is Status.INVALID_ARGUMENT
    assert receiver.came == []
    await emptied(r, receiver)


async def test_a_parcel_for_another_stage_goes_back_to_its_sender(rig: MakeRig) -> None:
    r = await rig(HANDED)
    receiver = await r.receiver()
    sent = r.send(stage=1)
    await sent.final()  # stored, in the lane that its sender chose
    assert (await sent.answer()).status is Status.INVALID_ARGUMENT
    assert (receiver.came, receiver.counts.taken) == ([], 0)


async def test_a_message_that_no_node_survives_is_answered_and_buried(
    rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "DEADLY_DELIVERIES", 3)
    r = await rig(LANE)
    receiver = await r.receiver()
    receiver.work = lambda delivery: delivery.hand_back()
    sent = r.send()
    result = await sent.answer()
    assert result.status is Status.INTERNAL
    assert "handed out 3 times" in result.message
    await emptied(r, receiver)
    assert [d.times_delivered for d in receiver.came] == [1, 2]
    assert (await dead_letters(r), receiver.counts.redelivered) == (1, 2)


@on_a_host
@pytest.mark.parametrize("path", [LANE, FAST], ids=lambda path: path.name)
async def test_a_message_whose_memory_is_gone_is_its_requesters_again(
    rig: MakeRig, path: Path
) -> None:
    r = await rig(path)
    receiver = await r.receiver()
    loan = r.mesh.lender.lend({"x": np.zeros((MIN_BYTES // 16, 4), np.float32)})
    loan.take_back()
    r.mesh.lender.lend({"x": np.ones((MIN_BYTES // 16, 4), np.float32)})  # in the same place
    answers: asyncio.Queue[bytes] = asyncio.Queue()
    reply = r.mesh.link.expect(lambda message: answers.put_nowait(bytes(message.data)))
    features = Features("r1", "m", "1", 2, reply, 5_000_000, dict(loan.tensors))
    data = b"".join(features.parts(loan.packed))
    if path.fast:
        r.mesh.link.publish(r.mesh.subjects.fresh("m", "1", 2), data)
    else:
        publish(r, data)
    async with asyncio.timeout(LIMIT):
        assert b"UNAVAILABLE" in await answers.get()
    assert receiver.came == []
    await emptied(r, receiver)


@on_a_host
@pytest.mark.parametrize("done_elsewhere", [True, False])
async def test_a_woken_node_says_nothing_of_a_message_that_another_node_has_done(
    rig: MakeRig, done_elsewhere: bool
) -> None:
    """Its memory is gone with the work. One that nobody has done comes again, and is answered."""
    r = await rig(LANE)
    receiver = await r.receiver()
    loan = r.mesh.lender.lend({"x": np.zeros((MIN_BYTES // 16, 4), np.float32)})
    loan.take_back()
    r.mesh.lender.lend({"x": np.ones((MIN_BYTES // 16, 4), np.float32)})  # in the same place
    failures: list[LinkMessage] = []
    reply = r.mesh.link.expect(failures.append)
    features = Features("r1", "m", "1", 2, reply, 5_000_000, dict(loan.tensors))
    publish(r, b"".join(features.parts(loan.packed)))
    r.mesh.link.push()
    stands_still(r.lanes.ack_wait)
    if done_elsewhere:
        consumer = r.mesh.subjects.consumer("m", 2)
        stream = r.mesh.subjects.stream("m", "1", 2)
        says(r.url, f"$JS.ACK.{stream}.{consumer}.1.1.1.0.0", b"+ACK")
    stands_still(r.lanes.ack_wait)
    if not done_elsewhere:
        await eventually(lambda: len(failures) == 1)
        assert b"UNAVAILABLE" in bytes(failures[0].data)
    await emptied(r, receiver)
    sent = r.send(2.0, rows=1)
    receiver.work = lambda delivery: delivery.fail(Status.INTERNAL, "the next one", 2, "n1")
    await sent.answer()  # over the connection that a word of the first one takes
    assert len(failures) == (not done_elsewhere)
    assert receiver.values == [2.0]


def stands_still(seconds: float) -> None:
    """The whole process, with what lies in its sockets."""
    time.sleep(seconds * 1.5)


def says(url: str, subject: str, data: bytes) -> None:
    """Another process publishes, while this one stands still."""
    host, port = url.removeprefix("nats://").split(":")
    with socket.create_connection((host, int(port)), 10.0) as other:
        other.recv(1 << 16)
        head = b'CONNECT {"verbose":false}\r\nPUB %b %d\r\n' % (subject.encode(), len(data))
        other.sendall(head + data + b"\r\nPING\r\n")
        assert b"PONG" in other.recv(1 << 16)


async def test_a_dead_letter_says_why_and_from_which_stage(rig: MakeRig) -> None:
    r = await rig(LANE)
    receiver = await r.receiver()
    letters: asyncio.Queue[tuple[bytes, bytes]] = asyncio.Queue()
    r.mesh.link.subscribe(
        r.mesh.subjects.dead("m"), lambda m: letters.put_nowait((m.headers or b"", bytes(m.data)))
    )
    await r.mesh.link.flush()
    r.send()
    (await receiver.delivery()).dead_letter("line\r\nbreaks, and \N{SNOWMAN}")
    async with asyncio.timeout(LIMIT):
        headers, data = await letters.get()
    assert b"Swarm-Reason: line  breaks, and ?\r\n" in headers
    assert b"Swarm-Stage: 2\r\n" in headers
    with pytest.raises(DecodeError):
        Features.decode(data[:-1])
    assert Features.decode(data).id == "r1"
    await emptied(r, receiver)


# --- whose turn it is --------------------------------------------------------------------------


async def test_nodes_that_cover_get_messages_only_when_no_primary_takes_them(
    rig: MakeRig,
) -> None:
    r = await rig(LANE)
    fallback = await r.receiver("fallback", FALLBACK)
    standby = await r.receiver("standby", STANDBY)
    primary = await r.receiver("primary")
    for each in (primary, standby, fallback):
        each.work = finish
    for node in (primary, standby, fallback):
        r.send()
        await node.delivery()
        assert len(node.came) == 1
        await node.close()
    assert sum(len(each.came) for each in (primary, standby, fallback)) == 3


async def test_in_fast_mode_a_node_that_covers_listens_only_when_it_is_told_to(
    rig: MakeRig,
) -> None:
    r = await rig(FAST)
    primary = await r.receiver("primary")
    cover = await r.receiver("cover", FALLBACK)
    assert (primary.source.fast.is_open, cover.source.fast.is_open) == (True, False)
    r.send(1.0)
    await primary.delivery()
    cover.source.fast.open()
    await cover.mesh.link.flush()
    r.send(2.0)
    await primary.delivery()
    await cover.delivery()
    assert (primary.values, cover.values) == ([1.0, 2.0], [2.0]), "each group gets all"
    await cover.source.fast.close()
    r.send(3.0)
    await primary.delivery()
    await r.quiet()
    assert cover.values == [2.0]


async def test_a_message_of_fast_mode_that_comes_twice_is_worked_on_once(rig: MakeRig) -> None:
    """Two nodes may cover for the stage before, and both pass it on."""
    r = await rig(FAST)
    receiver = await r.receiver()
    r.send(1.0)
    await receiver.delivery()
    r.number -= 1
    r.send(1.0)
    r.number -= 1
    r.send(2.0, attempt=2)
    await receiver.delivery()
    assert receiver.values == [1.0, 2.0]


async def test_where_no_more_may_wait_fast_mode_refuses_at_once(rig: MakeRig) -> None:
    r = await rig(FAST)
    receiver = await r.receiver()
    receiver.backlog = Backlog(MOST_WAITING, 0.0, False)
    sent = r.send()
    assert (await sent.answer()).status is Status.RESOURCE_EXHAUSTED
    assert (receiver.came, receiver.counts.refused) == ([], 1)


# --- lanes of single nodes -------------------------------------------------------------------


async def test_a_lane_of_its_own_brings_a_node_messages_as_the_shared_one_does(
    rig: MakeRig,
) -> None:
    r = await rig(LANE)
    receiver = await r.receiver("n1")
    receiver.source.open_lane("n1")
    receiver.source.open_lane("n1")  # it is open
    sent = r.send(4.0)
    await receiver.delivery()
    own = Features("own", "m", "1", 2, sent.parcel.features.reply, 5_000_000, {})
    publish(r, b"".join(own.parts()), "n1")
    delivery = await receiver.delivery()
    assert delivery.features.id == "own"
    assert receiver.source.in_hand == 2
    for each in receiver.came:
        each.ack(True)
    await emptied(r, receiver)


async def test_the_lane_of_a_gone_node_is_drained_and_goes_when_it_has_been_empty_for_a_while(
    rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "IDLE_LANE", 0.0)
    r = await rig(LANE)
    receiver = await r.receiver("n1")
    receiver.source.open_lane("n1")
    receiver.source.open_lane("gone")
    left = Features("left", "m", "1", 2, "_INBOX.r", 5_000_000, {})
    publish(r, b"".join(left.parts()), "gone")
    delivery = await receiver.delivery()
    for _ in range(2):
        await receiver.source.close_idle_lanes("n1")
    assert set(receiver.source.lanes) == {"any", "n1", "gone"}, "a message of it is in hand"
    delivery.ack(True)
    await emptied(r, receiver)
    for _ in range(2):
        await receiver.source.close_idle_lanes("n1")
    assert set(receiver.source.lanes) == {"any", "n1"}
    stream = r.mesh.subjects.stream(INFO.model, INFO.version, 2)
    names = await jetstream.call(r.mesh.link, api("CONSUMER.NAMES", stream))
    subjects = r.mesh.subjects
    assert sorted(names["consumers"]) == [
        subjects.consumer(INFO.model, 2),
        subjects.consumer(INFO.model, 2, "n1"),
    ]
