"""An edge's results reach whoever listens, through cuts of its connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.waiting import eventually

from nodes.edge.kept_results import MOST_KEPT, KeptResults
from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import MessageTooLarge, NotConnected
from swarm.link import Link, LinkOptions


class Wire:
    """A link whose server reads what was written when a test says so."""

    def __init__(self) -> None:
        self.up = True
        self.on_up: list[Callable[[], None]] = []
        self.written: list[bytes] = []
        self.read: list[bytes] = []
        self.asked: list[asyncio.Future[None]] = []
        self.largest = 100

    def publish(self, subject: str, data: bytes) -> None:
        if not self.up:
            raise NotConnected("down")
        if len(data) > self.largest:
            raise MessageTooLarge("too large")
        self.written.append(data)

    def sync(self) -> asyncio.Future[None]:
        if not self.up:
            raise NotConnected("down")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.asked.append(future)
        return future

    def server_reads(self) -> None:
        self.read += self.written
        self.written.clear()
        for future in self.asked:
            future.set_result(None)
        self.asked.clear()

    def cut(self) -> None:
        """What the server has not read is lost."""
        self.up = False
        self.written.clear()
        for future in self.asked:
            future.set_exception(NotConnected("cut"))
        self.asked.clear()

    def connect(self) -> None:
        self.up = True
        for tell in self.on_up:
            tell()


@given(steps=st.lists(st.sampled_from(["publish", "read", "cut", "connect"]), max_size=60))
def test_through_any_cuts_every_result_arrives_and_none_before_an_earlier_one(
    steps: list[str],
) -> None:
    async def play() -> None:
        wire = Wire()
        results = KeptResults(wire, "results")  # type: ignore[arg-type]
        count = 0
        for step in [*steps, "cut", "connect", "read", "read"]:
            if step == "publish":
                results.publish(b"%d" % count)
                count += 1
            elif step == "read":
                wire.server_reads()
            elif step == "cut":
                wire.cut()
            elif not wire.up:
                wire.connect()
            await asyncio.sleep(0)
        firsts = list(dict.fromkeys(wire.read))
        assert firsts == [b"%d" % number for number in range(count)]
        assert len(results) == results.dropped == 0

    asyncio.run(play())


async def test_without_a_connection_the_oldest_results_give_way_and_are_counted() -> None:
    wire = Wire()
    results = KeptResults(wire, "results")  # type: ignore[arg-type]
    wire.cut()
    for number in range(MOST_KEPT + 5):
        results.publish(b"%d" % number)
    assert (len(results), results.dropped) == (MOST_KEPT, 5)
    wire.connect()
    wire.server_reads()
    assert wire.read[0] == b"5"
    assert len(wire.read) == MOST_KEPT


async def test_a_result_that_is_too_large_keeps_no_other_back() -> None:
    wire = Wire()
    results = KeptResults(wire, "results")  # type: ignore[arg-type]
    for data in (b"first", b"x" * 101, b"second"):
        results.publish(data)
    wire.server_reads()
    assert wire.read == [b"first", b"second"]
    assert results.dropped == 1


@pytest.mark.integration
async def test_a_result_of_before_the_first_connection_arrives_and_is_forgotten_here() -> None:
    heard: list[bytes] = []
    async with EmbeddedServer() as server, asyncio.TaskGroup() as group:
        links = [Link(LinkOptions(servers=(server.url,))) for _ in range(2)]
        running = [group.create_task(link.run()) for link in links]
        for link in links:
            await link.ready(5.0)
        sends, listens = links
        listens.subscribe("results", lambda message: heard.append(bytes(message.data)))
        await listens.flush()
        results = KeptResults(sends, "results")
        results.publish(b"before")
        await sends.flush()
        await sends.close()
        # A process that has no connection yet: its results wait for the first one.
        again = Link(LinkOptions(servers=(server.url,)))
        later = KeptResults(again, "results")
        later.publish(b"early")
        assert len(later) == 1
        running.append(group.create_task(again.run()))
        await eventually(lambda: b"early" in heard and not len(later))
        for link in (*links, again):
            await link.close()
        for task in running:
            task.cancel()
    assert heard == [b"before", b"early"]
