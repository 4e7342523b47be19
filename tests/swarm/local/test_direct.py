"""Datagrams between processes of one host: they arrive, or `send` says that they did not."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swarm.link import Link, LinkMessage, LinkOptions
from swarm.link.gather import Gather
from swarm.local.connections import MOST_CONNECTIONS
from swarm.local.host_socket import LARGEST_MESSAGE, LIVING, VERSION, HostSocket

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no Unix sockets here")

Make = Callable[..., HostSocket]
LIMIT = 5.0  # seconds; only a hang gets there


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    made: list[HostSocket] = []

    def one(**options: Any) -> HostSocket:
        direct = HostSocket(Link(LinkOptions()), directory=str(tmp_path), **options)
        made.append(direct)
        return direct

    yield one
    for direct in made:
        direct.close()


def two(make: Make) -> tuple[HostSocket, HostSocket, str]:
    """Two processes that are reachable, and where the second one is."""
    a, b = make(), make()
    a.open()
    return a, b, b.open()


async def next_of(direct: HostSocket, subject: str) -> asyncio.Queue[tuple[bytes, int]]:
    queue: asyncio.Queue[tuple[bytes, int]] = asyncio.Queue()
    direct.listen(subject, lambda data, sent, _reply: queue.put_nowait((data, sent)))
    return queue


def directory(tmp_path: Path) -> Path:
    return tmp_path / f"swarm.{os.geteuid()}.{VERSION}"


async def test_a_message_reaches_the_process_with_that_inbox_and_whoever_listens_there(
    make: Make,
) -> None:
    a, b, other = make(), make(), make()
    assert all(d.open() for d in (a, b, other))
    got, nothing = await next_of(b, "lane"), await next_of(other, "lane")
    inbox = b._link.options.inbox
    assert a.send(inbox, "lane", [b"head", memoryview(b"tensor")])
    data, sent = await asyncio.wait_for(got.get(), LIMIT)
    assert data == b"headtensor"
    assert sent > 0
    assert a.send(inbox, "nobody listens", [b"x"])  # it is dropped: the lane has it
    b.forget("lane")
    assert a.send(inbox, "lane", [b"x"])
    await asyncio.sleep(0.05)
    assert got.empty()
    assert nothing.empty()
    assert b._link.callback_errors == 0


async def test_an_answer_reaches_whoever_expects_it(make: Make) -> None:
    a, b = make(), make()
    a.open(), b.open()
    answers: asyncio.Queue[LinkMessage] = asyncio.Queue()
    reply = b._link.expect(answers.put_nowait)
    told: list[bool] = []
    a.answer(reply, [b"result"], told.append)
    assert told == [True]
    message = await asyncio.wait_for(answers.get(), LIMIT)
    assert (message.subject, bytes(message.data), message.status) == (reply, b"result", b"")


async def test_what_cannot_be_delivered_is_refused_and_nothing_is_raised(make: Make) -> None:
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


async def test_only_its_user_can_send_to_a_process(make: Make, tmp_path: Path) -> None:
    a = make()
    a.open()
    assert stat.S_IMODE(directory(tmp_path).stat().st_mode) == 0o700
    (only,) = directory(tmp_path).iterdir()
    assert stat.S_IMODE(only.stat().st_mode) == 0o600


@pytest.mark.parametrize("trap", ["open to others", "a link", "a file"])
async def test_a_directory_that_others_could_have_made_is_not_used(
    make: Make, tmp_path: Path, trap: str
) -> None:
    target = directory(tmp_path)
    if trap == "open to others":
        target.mkdir()
        target.chmod(0o777)
    elif trap == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        target.symlink_to(tmp_path / "elsewhere")
    else:
        target.touch()
    a = make()
    assert a.open() == ""
    assert not a.send(a._link.options.inbox, "s", [b"x"])
    a.close()


async def test_nothing_is_left_of_a_process_that_closed(make: Make, tmp_path: Path) -> None:
    a, b = make(), make()
    a.open(), b.open()
    a.close()
    a.close()
    assert len(list(directory(tmp_path).iterdir())) == 1
    b.close()
    assert not directory(tmp_path).exists()
    assert a.open(), "it can come again"


async def test_the_socket_of_a_killed_process_is_swept_and_that_of_a_living_one_is_not(
    make: Make, tmp_path: Path
) -> None:
    code = (
        "import asyncio, sys\n"
        "from swarm.local.host_socket import HostSocket\n"
        "from swarm.link import Link, LinkOptions\n"
        "async def main():\n"
        "    d = HostSocket(Link(LinkOptions()), directory=sys.argv[1])\n"
        "    print(d.open(), flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    a = make()
    mine = a.open()
    with subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        theirs = (await asyncio.to_thread(child.stdout.readline)).strip()
        assert a.send(theirs, "s", [b"x"])
        a.tend()
        assert {p.name for p in directory(tmp_path).iterdir()} == {mine, theirs}
        child.send_signal(signal.SIGKILL)
    assert not a.send(theirs, "s", [b"x"])
    a._swept = -1e9
    a.tend()
    assert {p.name for p in directory(tmp_path).iterdir()} == {mine}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(directory(tmp_path) / "_INBOX.dead"))
    a.close()
    assert not directory(tmp_path).exists(), "the last one to leave cleans up"


async def test_a_directory_that_was_taken_away_is_made_again(make: Make, tmp_path: Path) -> None:
    a, b, inbox = two(make)
    shutil.rmtree(directory(tmp_path))
    assert not a.send(inbox, "s", [b"x"])
    for each in (a, b):
        each.tend()
    assert a.send(inbox, "s", [b"x"])
    directory(tmp_path).chmod(0o755)  # or made by somebody else
    a.tend()
    assert not a.send(inbox, "s", [b"x"])
    directory(tmp_path).chmod(0o700)


async def test_a_socket_that_was_taken_away_is_made_again_and_one_that_was_not_is_kept(
    make: Make, tmp_path: Path
) -> None:
    a, b, inbox = two(make)
    (directory(tmp_path) / inbox).unlink()
    gone: list[str] = []
    a.on_gone.append(gone.append)
    b.tend()
    assert a.send(inbox, "s", [b"x"])
    (directory(tmp_path) / inbox).unlink()
    b.tend()
    assert a.send(inbox, "s", [b"x"]), "though what it was connected to is no more"
    assert gone == []
    kept = b._socket
    b.tend()
    assert b._socket is kept


async def test_who_could_not_be_reachable_tries_again(make: Make, tmp_path: Path) -> None:
    a, b = make(), make()
    a.open()
    directory(tmp_path).chmod(0o755)
    assert b.open() == ""
    b.tend()
    directory(tmp_path).chmod(0o700)
    b.tend()
    assert a.send(b._link.options.inbox, "s", [b"x"])


async def test_many_may_sweep_at_once(make: Make, tmp_path: Path) -> None:
    """What one of them finds gone was swept by another: its own socket stays."""
    many = [make() for _ in range(4)]
    for each in many:
        each.open()
    sockets = [each._socket for each in many]

    def sweep(direct: HostSocket) -> None:
        direct._swept = -1e9
        direct.tend()

    for _ in range(10):
        for number in range(20):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
                dead.bind(str(directory(tmp_path) / f"_INBOX.dead{number}"))
        await asyncio.gather(*(asyncio.to_thread(sweep, each) for each in many))
        assert len(list(directory(tmp_path).iterdir())) == len(many)
    assert [each._socket for each in many] == sockets


async def test_sweeping_never_raises(make: Make, tmp_path: Path) -> None:
    a = make()
    a.open()
    (directory(tmp_path) / "a directory").mkdir()
    (directory(tmp_path) / "a file").touch()
    (directory(tmp_path) / "a link").symlink_to("nowhere")
    a.tend()
    assert len(list(directory(tmp_path).iterdir())) == 4


async def test_who_asks_whether_a_process_lives_is_answered_by_its_loop(make: Make) -> None:
    a = make()
    b = make(on_unheard=lambda subject, data, reply: pytest.fail(f"{subject} is for nobody here"))
    a.open()
    inbox = b.open()
    answers: asyncio.Queue[LinkMessage] = asyncio.Queue()
    reply = a._link.expect(answers.put_nowait)
    assert a.send(inbox, LIVING, [])  # nobody waits
    assert a.send(inbox, LIVING, [], reply)
    assert a.send(inbox, LIVING, [], "_INBOX.nobody.1")  # who asked has ended
    message = await asyncio.wait_for(answers.get(), LIMIT)
    assert (message.subject, bytes(message.data)) == (reply, b"")
    await asyncio.sleep(0.02)
    assert answers.empty()
    assert (a._link.callback_errors, b._link.callback_errors) == (0, 0)


async def test_what_nobody_listens_for_any_more_is_told(make: Make) -> None:
    a = make()
    a.open()
    unheard: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
    b = make(on_unheard=lambda subject, data, _reply: unheard.put_nowait((subject, data)))
    assert a.send(b.open(), "fresh", [b"x"])
    assert await asyncio.wait_for(unheard.get(), LIMIT) == ("fresh", b"x")


def burst(direct: HostSocket) -> Gather:
    """Several messages come at once, until `end()`, however long that takes."""
    gather = direct._link.gather
    gather.begin(2)
    gather._since = math.inf
    return gather


@pytest.mark.parametrize("bundled", [False, True])
async def test_one_process_that_hangs_leaves_room_for_the_others(make: Make, bundled: bool) -> None:
    a, hung, well = make(), make(), make()
    a.open()
    stuck, fine = hung.open(), well.open()
    asyncio.get_running_loop().remove_reader(hung._socket)  # type: ignore[arg-type]
    if bundled:
        told: list[bool] = []
        gather = burst(a)
        for _ in range(200):
            a.post(stuck, "s", [b"x" * LARGEST_MESSAGE], told.append)
        gather.end()
        assert len(told) == 200
        assert not all(told)
    else:
        while a.send(stuck, "s", [b"x" * LARGEST_MESSAGE]):
            pass
    assert a.send(fine, "s", [b"x" * LARGEST_MESSAGE])


async def test_what_a_burst_causes_goes_in_one_datagram_and_is_read_as_a_burst(
    make: Make,
) -> None:
    a, b, inbox = two(make)
    got: list[tuple[bytes, str, bool]] = []
    b.listen("s", lambda data, sent, reply: got.append((data, reply, b._link.bursting)))
    told: list[bool] = []
    a.post(inbox, "s", [b"alone"], told.append)
    assert told == [True], "nothing to wait for"
    gather = burst(a)
    for number in range(40):
        a.post(inbox, "s", [b"x", b"%d" % number], told.append, "_INBOX.me.1")
    a.post("_INBOX.nobody", "s", [b"x"], told.append)
    a.post(inbox, "s", [b"x" * (LARGEST_MESSAGE + 1)], told.append)
    assert told == [True, False], "too large, which is known at once"
    gather.end()
    assert told == [True, False, *[True] * 40, False]
    assert a.sent == 41
    async with asyncio.timeout(LIMIT):
        while len(got) < 41:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert got == [(b"alone", "", False)] + [
        (b"x%d" % number, "_INBOX.me.1", True) for number in range(40)
    ]
    assert b.received == 41
    await asyncio.sleep(0)
    assert not b._link.bursting


async def test_a_burst_of_large_messages_arrives_whole(make: Make) -> None:
    a, b, inbox = two(make)
    got = await next_of(b, "s")
    told: list[bool] = []
    gather = burst(a)
    messages = [bytes([number]) * (LARGEST_MESSAGE - number) for number in range(24)]
    for message in messages:
        a.post(inbox, "s", [message], told.append)
    gather.end()
    arrived = sum(told)
    assert arrived >= 8, "as much as one datagram holds"
    for message in [m for m, sent in zip(messages, told, strict=True) if sent]:
        assert (await asyncio.wait_for(got.get(), LIMIT))[0] == message


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EMSGSIZE, errno.ENOBUFS, errno.ENOMEM])
async def test_what_a_kernel_has_no_room_for_says_nothing_of_the_other_process(
    make: Make, number: int
) -> None:
    a, _, inbox = two(make)
    gone: list[str] = []
    a.on_gone.append(gone.append)
    assert a.send(inbox, "s", [b"x"])
    real = a._senders._open[inbox]

    class Full:
        def sendmsg(self, pieces: object) -> None:
            raise OSError(number, "no room")

    a._senders._open[inbox] = Full()  # type: ignore[assignment]
    assert not a.send(inbox, "s", [b"x"])
    a._senders._open[inbox] = real
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


async def test_a_defect_in_what_follows_an_end_spares_the_others(make: Make) -> None:
    a, b, inbox = two(make)
    got = await next_of(b, "s")

    def fails(inbox: str) -> None:
        raise ValueError("a defect")

    a.on_gone.append(fails)
    told: list[bool] = []
    gather = burst(a)
    a.post("_INBOX.nobody", "s", [b"x"], told.append)
    a.post(inbox, "s", [b"x"], told.append)
    gather.end()
    assert told == [False, True]
    assert (await asyncio.wait_for(got.get(), LIMIT))[0] == b"x"
    assert a._link.callback_errors == 1


async def test_a_defect_in_what_follows_a_message_spares_the_others(make: Make) -> None:
    a, _, inbox = two(make)
    told: list[bool] = []

    def fails(sent: bool) -> None:
        raise ValueError("a defect")

    gather = burst(a)
    a.post(inbox, "s", [b"1"], fails)
    a.post(inbox, "s", [b"2"], told.append)
    gather.end()
    assert told == [True]
    assert a._link.callback_errors == 1


async def test_a_defect_in_a_listener_spares_the_rest_of_the_burst(make: Make) -> None:
    a, b, inbox = two(make)
    got = await next_of(b, "lane")

    def fails(data: bytes, sent: int, reply: str) -> None:
        raise ValueError("a defect")

    b.listen("bad", fails)
    gather = burst(a)
    for subject in ("bad", "lane"):
        a.post(inbox, subject, [b"x"], lambda sent: None)
    gather.end()
    assert (await asyncio.wait_for(got.get(), LIMIT))[0] == b"x"
    assert b._link.callback_errors == 1


async def test_who_closes_sends_what_was_gathered(make: Make) -> None:
    a, b, inbox = two(make)
    got = await next_of(b, "s")
    gather = burst(a)
    a.post(inbox, "s", [b"last"], lambda sent: None)
    a.close()
    assert (await asyncio.wait_for(got.get(), LIMIT))[0] == b"last"
    told: list[bool] = []
    a.post(inbox, "s", [b"x"], told.append)
    assert told == [False]
    gather.end()


async def test_that_a_process_is_gone_is_told_and_one_that_comes_back_is_reached(
    make: Make,
) -> None:
    a, b, inbox = two(make)
    gone: list[str] = []
    a.on_gone.append(gone.append)
    assert a.send(inbox, "s", [b"x"])
    asyncio.get_running_loop().remove_reader(b._socket)  # type: ignore[arg-type]
    while a.send(inbox, "s", [b"x" * LARGEST_MESSAGE]):
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
    make: Make, garbage: list[bytes]
) -> None:
    a, b = make(), make()
    a.open()
    got = await next_of(b, "lane")
    inbox = b.open()
    raised: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as attacker:
        for data in [*garbage, b"damaged"]:
            attacker.sendto(data, b._path(inbox))
    assert a.send(inbox, "lane", [b"good"])
    while True:
        data, _ = await asyncio.wait_for(got.get(), LIMIT)
        if data == b"good":
            break
    assert raised == []
    assert b._link.callback_errors >= 1
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
    got: list[str] = []
    inbox = b.open()
    b.listen("lane", lambda data, sent, reply: got.append(reply))
    for inbox_seen in ("_INBOX.a", "_INBOX.b") if known else ():
        assert a.send(inbox, "other", [b"x"], f"{inbox_seen}.1")
    assert a.send(inbox, "lane", [b"x"], reply)
    assert a.send(inbox, "lane", [b"x"], "_INBOX.a.1")
    async with asyncio.timeout(LIMIT):
        while not got:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    assert got == ["_INBOX.a.1"]
