"""What leaves a link, and in which order, whoever carries it: the socket or the transport."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from swarm.link import Link, LinkOptions
from swarm.link.gather import LONGEST_BURST, Gather


class Transport:
    """A transport that sends nothing by itself: what it was given lies in `buffer`."""

    def __init__(self, sock: socket.socket | None, tls: object = None) -> None:
        self.extra = {"socket": sock, "sslcontext": tls}
        self.buffer = b""
        self.unsent = 0

    def get_extra_info(self, name: str) -> Any:
        return self.extra[name]

    def get_write_buffer_size(self) -> int:
        return len(self.buffer) + self.unsent

    def write(self, data: bytes) -> None:
        self.buffer += data


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


Pair = tuple[socket.socket, socket.socket]


class Clock:
    """Time stands still until a test moves it."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def over(transport: Transport, clock: Clock | None = None) -> Gather:
    gather = Gather(clock or Clock())
    gather.reset(transport)  # type: ignore[arg-type]
    return gather


def test_what_is_written_is_sent_at_once_and_a_burst_together(pair: Pair) -> None:
    transport = Transport(pair[0])
    gather = over(transport)
    gather.write(b"now")
    assert pair[1].recv(100) == b"now"
    gather.begin()
    gather.write(b"one ")
    gather.write(b"burst")
    with pytest.raises(BlockingIOError):
        pair[1].recv(100)
    gather.end()
    assert pair[1].recv(100) == b"one burst"
    assert transport.buffer == b""
    gather.reset(None)


async def test_what_the_tasks_of_a_burst_write_goes_together_too(pair: Pair) -> None:
    gather = over(Transport(pair[0]))
    before: list[bytes] = [b"first ", b"second "]
    gather.before.append(lambda: gather.write(before.pop(0)) if before else None)
    gather.begin(2)
    gather.write(b"read ")
    gather.end()
    assert pair[1].recv(100) == b"read first ", "what is gathered elsewhere is written before"
    for text in (b"one ", b"two "):
        gather.write(text)
    with pytest.raises(BlockingIOError):
        pair[1].recv(100)
    await asyncio.sleep(0)
    assert pair[1].recv(100) == b"one two second "
    assert not gather.corked
    gather.reset(None)


@pytest.mark.parametrize("second", [0, 1, 2])
async def test_bursts_that_overlap_go_together(pair: Pair, second: int) -> None:
    """Two sockets are read before the tasks of either have run."""
    gather = over(Transport(pair[0]))
    loop = asyncio.get_running_loop()
    together: list[bool] = []
    for messages in (2, second):
        gather.begin(messages)
        for _ in range(2):
            loop.call_soon(lambda: together.append(gather.corked and gather.messages > 1))
        gather.end()
    loop.call_soon(lambda: together.append(gather.corked))
    await asyncio.sleep(0)
    assert together == [True] * 4 + [False]
    gather.begin(1)
    assert gather.messages == 1
    gather.end()
    assert not gather.corked
    gather.reset(None)


async def test_nothing_waits_for_what_the_tasks_of_a_burst_compute(pair: Pair) -> None:
    clock = Clock()
    gather = over(Transport(pair[0]), clock)
    elsewhere: list[str] = []
    gather.before.append(lambda: elsewhere.append("sent"))
    gather.begin(2)
    gather.end()
    assert elsewhere == ["sent"]
    gather.write(b"first")
    clock.now += 0.9 * LONGEST_BURST
    with pytest.raises(BlockingIOError):
        pair[1].recv(100)
    clock.now += 0.2 * LONGEST_BURST
    gather.write(b" second")
    assert pair[1].recv(100) == b"first second"
    assert elsewhere == ["sent"] * 2
    clock.now += 2 * LONGEST_BURST
    gather.gathered()
    assert elsewhere == ["sent"] * 3
    await asyncio.sleep(0)
    assert not gather.corked
    gather.reset(None)


async def test_a_server_that_sends_nonsense_leaves_nothing_gathered(pair: Pair) -> None:
    link = Link(LinkOptions())
    buffer = link.get_buffer(-1)
    nonsense = b"MSG a\r\n"
    buffer[: len(nonsense)] = nonsense
    link.buffer_updated(len(nonsense))
    assert not link.gather.corked
    assert "malformed" in link.last_error


def test_without_a_descriptor_for_its_own_the_transport_sends_alone(pair: Pair) -> None:
    pair[0].close()
    transport = Transport(pair[0])
    over(transport).write(b"all")
    assert transport.buffer == b"all"


def test_nothing_overtakes_what_the_transport_still_holds(pair: Pair) -> None:
    transport = Transport(pair[0])
    gather = over(transport)
    transport.unsent = 1
    gather.write(b"later")
    assert transport.buffer == b"later"
    with pytest.raises(BlockingIOError):
        pair[1].recv(100)
    gather.reset(None)


def test_what_a_full_socket_does_not_take_is_the_transports(pair: Pair) -> None:
    transport = Transport(pair[0])
    gather = over(transport)
    content = os.urandom(4 << 20)
    gather.write(content)
    assert 0 < len(transport.buffer) < len(content)
    gather.write(b"behind it")
    received = b""
    while len(received) + len(transport.buffer) < len(content) + len(b"behind it"):
        received += pair[1].recv(1 << 20)
    assert received + transport.buffer == content + b"behind it"
    gather.reset(None)


def test_under_tls_everything_goes_through_the_transport(pair: Pair) -> None:
    transport = Transport(pair[0], tls=object())
    over(transport).write(b"secret")
    assert transport.buffer == b"secret"


def test_a_broken_connection_is_the_transports_to_report(pair: Pair) -> None:
    transport = Transport(pair[0])
    gather = over(transport)
    pair[1].close()
    gather.write(b"lost")
    assert transport.buffer == b"lost"
    gather.reset(None)


def test_with_the_connection_its_descriptor_goes(pair: Pair) -> None:
    before = len(os.listdir("/proc/self/fd"))
    gather = over(Transport(pair[0]))
    gather.begin()
    gather.write(b"void")
    gather.reset(None)
    gather.end()
    gather.write(b"nowhere to go")
    assert len(os.listdir("/proc/self/fd")) == before
    pair[0].close()
    assert pair[1].recv(100) == b""  # its end is seen at once
