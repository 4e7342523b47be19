"""What the messages of one read cause is written together; what is pushed need not wait for it."""

from __future__ import annotations

import asyncio

import pytest

from swarm.link import Link, LinkMessage, LinkOptions


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
async def link(wire: Wire) -> Link:
    made = Link(LinkOptions())
    made.connection_made(wire)
    made.connected = True
    return made


def read(link: Link, *payloads: bytes) -> None:
    """One read with a message for each payload."""
    data = b"".join(b"MSG in 2 %d\r\n%b\r\n" % (len(one), one) for one in payloads)
    link.get_buffer(-1)[: len(data)] = data
    link.buffer_updated(len(data))


async def settled(wire: Wire) -> list[bytes]:
    await asyncio.sleep(0)
    return wire.writes


async def test_a_burst_is_answered_by_one_write(link: Link, wire: Wire) -> None:
    link.subscribe("in", lambda message: link.publish("out", bytes(message.data)))
    wire.writes.clear()
    read(link, b"a", b"b", b"c")
    [write] = await settled(wire)
    assert write.count(b"PUB out") == 3


async def test_what_is_pushed_by_the_callback_of_a_lone_message_is_sent_before_it_ends(
    link: Link, wire: Wire
) -> None:
    before: list[int] = []

    def answer(message: LinkMessage) -> None:
        link.publish("out", bytes(message.data))
        link.push()
        before.append(len(wire.writes))
        link.publish("later", b"")

    link.subscribe("in", answer)
    wire.writes.clear()
    read(link, b"a")
    assert before == [1]
    assert [b"out" in write for write in await settled(wire)] == [True, False]


async def test_a_push_in_a_burst_waits_for_the_others(link: Link, wire: Wire) -> None:
    def answer(message: LinkMessage) -> None:
        link.publish("out", bytes(message.data))
        link.push()

    link.subscribe("in", answer)
    wire.writes.clear()
    read(link, b"a", b"b")
    [write] = await settled(wire)
    assert write.count(b"PUB out") == 2
