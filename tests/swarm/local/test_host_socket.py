"""Messages between processes of one host: they arrive, or `send` says that they did not."""

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
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swarm.link import Link, LinkMessage, LinkOptions, gather
from swarm.local import host_socket
from swarm.local.connections import MOST_CONNECTIONS
from swarm.local.host_socket import LARGEST_MESSAGE, LIVING, HostSocket
from swarm.local.socket_directory import VERSION, SocketDirectory

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no Unix sockets here")


class Process(HostSocket):
    """The socket of a process, and the link that it belongs to."""

    def __init__(self, directory: str, **options: Any) -> None:
        self.link = Link(LinkOptions())
        super().__init__(self.link, directory=directory, **options)

    @property
    def inbox(self) -> str:
        return self.link.options.inbox

    @property
    def errors(self) -> int:
        return self.link.callback_errors


Make = Callable[..., Process]
LIMIT = 5.0  # seconds; only a hang gets there


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    made: list[Process] = []

    def one(**options: Any) -> Process:
        made.append(Process(str(tmp_path), **options))
        return made[-1]

    yield one
    for process in made:
        process.close()


def two(make: Make) -> tuple[Process, Process, str]:
    """Two processes that are reachable, and where the second one is."""
    a, b = make(), make()
    a.open()
    return a, b, b.open()


async def next_of(process: Process, subject: str) -> asyncio.Queue[tuple[bytes, int]]:
    queue: asyncio.Queue[tuple[bytes, int]] = asyncio.Queue()
    process.listen(subject, lambda data, sent, _reply: queue.put_nowait((data, sent)))
    return queue


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[str]:
    """The inbox of a process that is there, and does not read."""
    names = SocketDirectory(str(tmp_path))
    names.enter()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as unread:
        unread.bind(names.path("_INBOX.hung"))
        yield "_INBOX.hung"


def directory(tmp_path: Path) -> Path:
    return tmp_path / f"swarm.{os.geteuid()}.{VERSION}"


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
    assert not a.send(a.inbox, "s", [b"x"])
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
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_socket, "SWEEP_EVERY", 0.0)
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
    assert a.send(inbox, "s", [b"x"]), "though the socket that it was connected to is no more"
    assert gone == []
    kept = (directory(tmp_path) / inbox).stat()
    b.tend()
    assert (directory(tmp_path) / inbox).stat().st_ino == kept.st_ino


async def test_a_process_that_could_not_be_reachable_tries_again(
    make: Make, tmp_path: Path
) -> None:
    a, b = make(), make()
    a.open()
    directory(tmp_path).chmod(0o755)
    assert b.open() == ""
    b.tend()
    directory(tmp_path).chmod(0o700)
    b.tend()
    assert a.send(b.inbox, "s", [b"x"])


async def test_many_may_sweep_at_once(make: Make, tmp_path: Path) -> None:
    """A socket that one of them finds gone was swept by another; those of living processes stay."""
    many = [make() for _ in range(4)]
    inboxes = [each.open() for each in many]
    names = SocketDirectory(str(tmp_path))
    for _ in range(10):
        for number in range(20):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
                dead.bind(str(directory(tmp_path) / f"_INBOX.dead{number}"))
        await asyncio.gather(*(asyncio.to_thread(names.sweep) for _ in many))
        assert {path.name for path in directory(tmp_path).iterdir()} == set(inboxes)
    assert all(many[0].send(inbox, "s", [b"x"]) for inbox in inboxes)


async def test_sweeping_never_raises(make: Make, tmp_path: Path) -> None:
    a = make()
    a.open()
    (directory(tmp_path) / "a directory").mkdir()
    (directory(tmp_path) / "a file").touch()
    (directory(tmp_path) / "a link").symlink_to("nowhere")
    a.tend()
    assert len(list(directory(tmp_path).iterdir())) == 4


async def test_the_question_whether_a_process_lives_is_answered_by_its_loop(make: Make) -> None:
    a = make()
    b = make(on_unheard=lambda subject, data, reply: pytest.fail(f"{subject} is for nobody here"))
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
    b = make(on_unheard=lambda subject, data, _reply: unheard.put_nowait((subject, data)))
    assert a.send(b.open(), "fresh", [b"x"])
    assert await asyncio.wait_for(unheard.get(), LIMIT) == ("fresh", b"x")


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst lasts until its end, however slow the machine is."""
    monkeypatch.setattr(gather, "LONGEST_BURST", math.inf)


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
