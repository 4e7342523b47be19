"""Messages that several others cause at once go together, and one does not spoil the rest."""

from __future__ import annotations

import asyncio
import socket

import pytest
from host_processes import LIMIT, Make, Process, next_of, two

from swarm.link import gather
from swarm.samehost.host_socket import LARGEST_MESSAGE

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no Unix sockets here")


def burst(process: Process) -> gather.Gather:
    """Several messages come at once, until `end()`."""
    process.link.gather.begin(2)
    return process.link.gather


@pytest.mark.parametrize("bundled", [False, True])
async def test_one_process_that_hangs_leaves_room_for_the_others(
    make: Make, hung: str, endless: None, bundled: bool
) -> None:
    a, well = make(), make()
    a.open()
    fine = well.open()
    if bundled:
        told: list[bool] = []
        coming = burst(a)
        for _ in range(200):
            a.post(hung, "s", [b"x" * LARGEST_MESSAGE], told.append)
        coming.end()
        assert len(told) == 200
        assert not all(told)
    else:
        while a.send(hung, "s", [b"x" * LARGEST_MESSAGE]):
            pass
    assert a.send(fine, "s", [b"x" * LARGEST_MESSAGE])


async def test_messages_that_a_burst_causes_go_in_one_datagram_and_are_read_as_a_burst(
    make: Make, endless: None
) -> None:
    a, b, inbox = two(make)
    got: asyncio.Queue[tuple[bytes, str, bool]] = asyncio.Queue()
    b.listen("s", lambda data, sent, reply: got.put_nowait((data, reply, b.link.bursting)))
    told: list[bool] = []
    a.post(inbox, "s", [b"alone"], told.append)
    assert told == [True], "nothing to wait for"
    coming = burst(a)
    for number in range(40):
        a.post(inbox, "s", [b"x", b"%d" % number], told.append, "_INBOX.me.1")
    a.post("_INBOX.nobody", "s", [b"x"], told.append)
    a.post(inbox, "s", [b"x" * (LARGEST_MESSAGE + 1)], told.append)
    assert told == [True, False], "too large, which is known at once"
    coming.end()
    assert told == [True, False, *[True] * 40, False]
    assert a.sent == 41
    for expected in [(b"alone", "", False)] + [
        (b"x%d" % number, "_INBOX.me.1", True) for number in range(40)
    ]:
        assert await asyncio.wait_for(got.get(), LIMIT) == expected
    assert b.received == 41
    await asyncio.sleep(0)
    assert not b.link.bursting


async def test_a_burst_of_large_messages_arrives_whole(make: Make, endless: None) -> None:
    a, b, inbox = two(make)
    got = await next_of(b, "s")
    told: list[bool] = []
    coming = burst(a)
    messages = [bytes([number]) * (LARGEST_MESSAGE - number) for number in range(24)]
    for message in messages:
        a.post(inbox, "s", [message], told.append)
    coming.end()
    arrived = sum(told)
    assert arrived >= 8, "as much as one datagram holds"
    for message in [m for m, sent in zip(messages, told, strict=True) if sent]:
        assert (await asyncio.wait_for(got.get(), LIMIT))[0] == message


async def test_a_failing_callback_behind_an_end_spares_the_other_messages(
    make: Make, endless: None
) -> None:
    a, b, inbox = two(make)
    got = await next_of(b, "s")

    def fails(inbox: str) -> None:
        raise ValueError("a defect")

    a.on_gone.append(fails)
    told: list[bool] = []
    coming = burst(a)
    a.post("_INBOX.nobody", "s", [b"x"], told.append)
    a.post(inbox, "s", [b"x"], told.append)
    coming.end()
    assert told == [False, True]
    assert (await asyncio.wait_for(got.get(), LIMIT))[0] == b"x"
    assert a.errors == 1


async def test_a_failing_callback_behind_a_message_spares_the_other_messages(
    make: Make, endless: None
) -> None:
    a, _, inbox = two(make)
    told: list[bool] = []

    def fails(sent: bool) -> None:
        raise ValueError("a defect")

    coming = burst(a)
    a.post(inbox, "s", [b"1"], fails)
    a.post(inbox, "s", [b"2"], told.append)
    coming.end()
    assert told == [True]
    assert a.errors == 1


async def test_a_failing_listener_spares_the_rest_of_the_burst(make: Make, endless: None) -> None:
    a, b, inbox = two(make)
    got = await next_of(b, "lane")

    def fails(data: bytes, sent: int, reply: str) -> None:
        raise ValueError("a defect")

    b.listen("bad", fails)
    coming = burst(a)
    for subject in ("bad", "lane"):
        a.post(inbox, subject, [b"x"], lambda sent: None)
    coming.end()
    assert (await asyncio.wait_for(got.get(), LIMIT))[0] == b"x"
    assert b.errors == 1


async def test_a_process_that_closes_sends_the_messages_that_were_gathered(
    make: Make, endless: None
) -> None:
    a, b, inbox = two(make)
    got = await next_of(b, "s")
    coming = burst(a)
    a.post(inbox, "s", [b"last"], lambda sent: None)
    a.close()
    assert (await asyncio.wait_for(got.get(), LIMIT))[0] == b"last"
    told: list[bool] = []
    a.post(inbox, "s", [b"x"], told.append)
    assert told == [False]
    coming.end()
