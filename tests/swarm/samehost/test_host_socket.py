"""Messages between processes of one host: they arrive, or `send` says that they did not."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
from pathlib import Path
from typing import Any

import pytest
from host_processes import LIMIT, Make, directory, next_of, two
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swarm.link import LinkMessage
from swarm.samehost.host_socket import LARGEST_MESSAGE, LIVING, MOST_CONNECTIONS

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no Unix sockets here")


async def test_a_message_reaches_the_listener_in_the_process_with_that_inbox(
    make: Make,
) -> None:
    a, b, other = make(), make(), make()
    assert all(d.open() for d in (a, b, other))
    got, nothing = await next_of(b, "lane"), await next_of(other, "lane")
    inbox = b.inbox
    assert a.send(inbox, "lane", [b"head", memoryview(b"tensor")])
    data, sent = await asyncio.wait_for(got.get(), LIMIT)
    assert data == b"headtensor"
    assert sent > 0
    assert a.send(inbox, "nobody listens", [b"x"])  # it is dropped: the lane has it
    b.forget("lane")
    assert a.send(inbox, "lane", [b"x"])
    behind = await next_of(b, "behind")
    assert a.send(inbox, "behind", [b"x"])
    await asyncio.wait_for(behind.get(), LIMIT)
    assert got.empty()
    assert nothing.empty()
    assert b.errors == 0


async def test_what_has_come_can_be_taken_before_the_loop_reads_it(make: Make) -> None:
    a, b = make(), make()
    inbox = b.open()
    b.take_waiting()
    a.open()
    got = await next_of(b, "lane")
    for number in range(3):
        assert a.send(inbox, "lane", [bytes([number])])
    b.take_waiting()
    assert [got.get_nowait()[0] for _ in range(3)] == [b"\0", b"\1", b"\2"]
    b.take_waiting()
    assert got.empty()


async def test_an_answer_reaches_the_process_that_expects_it(make: Make) -> None:
    a, b = make(), make()
    a.open(), b.open()
    answers: asyncio.Queue[LinkMessage] = asyncio.Queue()
    reply = b.link.expect(answers.put_nowait)
    told: list[bool] = []
    a.answer(reply, [b"result"], told.append)
    assert told == [True]
    message = await asyncio.wait_for(answers.get(), LIMIT)
    assert (message.subject, bytes(message.data), message.status) == (reply, b"result", b"")


async def test_a_message_that_cannot_be_delivered_is_refused_and_nothing_is_raised(
    make: Make,
) -> None:
    a, b = make(), make()
    inbox = b.open()
    assert not a.send(inbox, "s", [b"x"]), "it has no socket itself"
    a.open()
    assert not a.send(inbox, "s", [b"x" * (LARGEST_MESSAGE + 1)])
    assert a.send(inbox, "s", [b"x" * LARGEST_MESSAGE])
    b.close()
    assert not a.send(inbox, "s", [b"x"]), "the other is gone"
    assert not a.send("_INBOX.never-there", "s", [b"x"])
    told: list[bool] = []
    a.answer("", [b"x"], told.append)
    assert told == [False]
    assert a.sent == 1


async def test_a_process_that_does_not_read_is_a_refusal_and_no_wait(make: Make) -> None:
    a, b, inbox = two(make)
    taken = 0
    while a.send(inbox, "s", [b"x" * 1000]):
        taken += 1
        assert taken < 100_000
    got = await next_of(b, "s")
    for _ in range(taken):
        await asyncio.wait_for(got.get(), LIMIT)
    assert a.send(inbox, "s", [b"x"]), "there is room again"


@pytest.mark.parametrize(
    "inbox",
    [
        "",
        "..",
        "_INBOX",
        "_INBOX.",
        "_INBOX.../x",
        "_INBOX.a/b",
        "../_INBOX.a",
        "_INBOX.a\x00b",
        "_INBOX." + "a" * 100,
        "_INBOX.a\n",
        "/dev/log",
    ],
)
async def test_an_inbox_from_elsewhere_never_names_another_file(
    make: Make, tmp_path: Path, inbox: str
) -> None:
    a = make()
    a.open()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as victim:
        victim.bind(str(tmp_path / "x"))
        victim.setblocking(False)
        assert not a.send(inbox, "s", [b"x"])
        told: list[bool] = []
        a.answer(inbox + ".1", [b"x"], told.append)
        assert told == [False]
        with pytest.raises(BlockingIOError):
            victim.recv(10)


async def test_the_question_whether_a_process_lives_is_answered_by_its_loop(make: Make) -> None:
    a = make()
    b = make(
        on_no_listener=lambda subject, data, reply: pytest.fail(f"{subject} is for nobody here")
    )
    a.open()
    inbox = b.open()
    answers: asyncio.Queue[LinkMessage] = asyncio.Queue()
    reply = a.link.expect(answers.put_nowait)
    assert a.send(inbox, LIVING, [])  # nobody waits
    assert a.send(inbox, LIVING, [], reply)
    assert a.send(inbox, LIVING, [], "_INBOX.nobody.1")  # who asked has ended
    later = a.link.expect(answers.put_nowait)
    assert a.send(inbox, LIVING, [], later)
    for expected in (reply, later):
        message = await asyncio.wait_for(answers.get(), LIMIT)
        assert (message.subject, bytes(message.data)) == (expected, b"")
    assert answers.empty()
    assert (a.errors, b.errors) == (0, 0)


async def test_a_message_that_nobody_listens_for_any_more_is_told(make: Make) -> None:
    a = make()
    a.open()
    unheard: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
    b = make(on_no_listener=lambda subject, data, _reply: unheard.put_nowait((subject, data)))
    assert a.send(b.open(), "fresh", [b"x"])
    assert await asyncio.wait_for(unheard.get(), LIMIT) == ("fresh", b"x")


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EMSGSIZE, errno.ENOBUFS, errno.ENOMEM])
async def test_a_kernel_without_room_for_a_message_says_nothing_of_the_other_process(
    make: Make, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    full = False

    class Moody(socket.socket):
        def sendmsg(self, *pieces: Any) -> int:
            if full:
                raise OSError(number, "no room")
            return super().sendmsg(*pieces)

    monkeypatch.setattr(socket, "socket", Moody)
    a, _, inbox = two(make)
    gone: list[str] = []
    a.on_gone.append(gone.append)
    assert a.send(inbox, "s", [b"x"])
    full = True
    assert not a.send(inbox, "s", [b"x"])
    full = False
    assert a.send(inbox, "s", [b"x"])
    assert gone == []


async def test_a_process_without_a_file_to_spare_takes_nobody_for_gone(make: Make) -> None:
    a, _, inbox = two(make)
    gone: list[str] = []
    a.on_gone.append(gone.append)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) // 2, hard))
    try:
        assert not a.send(inbox, "s", [b"x"])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert a.send(inbox, "s", [b"x"])
    assert gone == []


async def test_that_a_process_is_gone_is_told_and_one_that_comes_back_is_reached(
    make: Make, hung: str
) -> None:
    a, b, inbox = two(make)
    gone: list[str] = []
    a.on_gone.append(gone.append)
    assert a.send(inbox, "s", [b"x"])
    while a.send(hung, "s", [b"x" * LARGEST_MESSAGE]):
        pass
    assert gone == [], "it is busy only"
    b.close()
    assert not a.send(inbox, "s", [b"x"])
    assert gone == [inbox]
    b.open()
    assert a.send(inbox, "s", [b"x"])


async def test_any_number_of_processes_is_reached_with_a_bounded_number_of_files(
    make: Make,
) -> None:
    a = make()
    a.open()
    others = [make() for _ in range(MOST_CONNECTIONS + 10)]
    inboxes = [other.open() for other in others]
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        assert all(a.send(inbox, "s", [b"x"]) for inbox in inboxes)
    assert len(os.listdir("/proc/self/fd")) - before <= MOST_CONNECTIONS
    a.close()
    assert len(os.listdir("/proc/self/fd")) < before


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(garbage=st.lists(st.binary(max_size=60), max_size=4))
async def test_garbage_in_the_socket_costs_nobody_a_message(
    make: Make, tmp_path: Path, garbage: list[bytes]
) -> None:
    a, b = make(), make()
    a.open()
    got = await next_of(b, "lane")
    inbox = b.open()
    raised: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as attacker:
        for data in [*garbage, b"damaged"]:
            attacker.sendto(data, str(directory(tmp_path) / inbox))
    assert a.send(inbox, "lane", [b"good"])
    while True:
        data, _ = await asyncio.wait_for(got.get(), LIMIT)
        if data == b"good":
            break
    assert raised == []
    assert b.errors >= 1
    a.close(), b.close()


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    "reply",
    ["_INBOX.a b", "_INBOX.a\r\nPUB x", "elsewhere", "_INBOX.", "_INBOX.b.c d", "_INBOX.b."],
)
async def test_a_message_whose_reply_subject_is_none_is_dropped(
    make: Make, reply: str, known: bool
) -> None:
    """It may become a command to the server."""
    a, b = make(), make()
    a.open()
    got: asyncio.Queue[str] = asyncio.Queue()
    inbox = b.open()
    b.listen("lane", lambda data, sent, reply: got.put_nowait(reply))
    for inbox_seen in ("_INBOX.a", "_INBOX.b") if known else ():
        assert a.send(inbox, "other", [b"x"], f"{inbox_seen}.1")
    assert a.send(inbox, "lane", [b"x"], reply)
    assert a.send(inbox, "lane", [b"x"], "_INBOX.a.1")
    assert await asyncio.wait_for(got.get(), LIMIT) == "_INBOX.a.1"
    assert got.empty()
