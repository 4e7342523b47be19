"""A node learns its link from its traffic, or else from a message to itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.cut_cluster import behind
from support.slow_link import slow_link, unavailable
from support.waiting import eventually

import swarm
from nodes.auto.own_link import MOVED_AFTER, PROBE, OwnLink
from nodes.up.embedded_server import EmbeddedServer
from swarm.auto.links import NEAR, NodeLink
from swarm.link import LinkMessage
from swarm.link.send_rate import NEAR_FIRST, SendRate

MBIT = 125_000  # bytes a second


class FakeLink:
    """A link in simulated time: up, down: bytes a second."""

    def __init__(self, round_trip: float, up: float, down: float) -> None:
        self.now, self.up, self.down = 100.0, up, down
        self.connected = True
        self.send_rate = SendRate()
        self.send_rate.tripped(round_trip)
        self.sent = 0
        self.expected: dict[str, Any] = {}

    def expect(self, callback: Any) -> str:
        self.expected["me"] = callback
        return "me"

    def forget(self, reply: str) -> None:
        del self.expected[reply]

    def publish(self, subject: str, data: bytes) -> None:
        self.sent += 1
        sent, trip = self.now, self.send_rate.round_trip
        self.now = sent + trip + len(data) / self.up + len(data) / self.down
        if self.send_rate.sends(len(data), sent):
            self.send_rate.answered(self.now)  # the PONG is behind the message
        self.expected[subject](LinkMessage(subject, "", None, data))


def own(link: FakeLink) -> OwnLink:
    return OwnLink(lambda: link, lambda: link.now)  # type: ignore[arg-type, return-value]


async def test_a_server_nearby_behind_a_fast_link_is_near() -> None:
    link = FakeLink(0.0005, 1000 * MBIT, 1000 * MBIT)
    known = own(link)
    for _ in range(NEAR_FIRST):
        await known.probe()
    assert known.look(0.0) == NEAR


async def test_a_server_within_two_milliseconds_behind_a_slow_link_is_told() -> None:
    link = FakeLink(0.0005, 5 * MBIT, 5 * MBIT)
    known = own(link)
    for _ in range(NEAR_FIRST):
        await known.probe()
    seen = known.look(0.0)
    assert seen.round_trip_us == 500
    assert seen.up == pytest.approx(5 * MBIT, rel=0.01)
    assert seen.down == pytest.approx(5 * MBIT, rel=0.05)


async def test_a_node_probes_a_near_server_as_often_at_first_as_its_link_needs_to_be_known() -> (
    None
):
    link = FakeLink(0.0005, 5 * MBIT, 5 * MBIT)
    known = own(link)
    probing = asyncio.create_task(known.run())
    await eventually(lambda: known.look(0.0) != NEAR, "the link is told")
    probing.cancel()
    assert link.sent == NEAR_FIRST


async def test_a_node_without_traffic_takes_both_ways_of_its_link_as_alike() -> None:
    link = FakeLink(0.02, 4 * MBIT, 12 * MBIT)
    known = own(link)
    await known.probe()
    seen = known.look(0.0)
    assert seen.round_trip_us == 20_000
    assert seen.up == seen.down == pytest.approx(6 * MBIT, rel=0.01), "32 KB take 85 ms both ways"
    assert not link.expected
    for start in (200.0, 300.0):
        link.send_rate.sends(1 << 20, start)
        link.send_rate.answered(start + 0.02 + (1 << 20) / link.up)
    link.now += MOVED_AFTER
    assert known.look(0.0).up == pytest.approx(4 * MBIT, rel=0.01), "traffic tells of one way"
    assert len(PROBE) / (2 * MBIT) < 0.2, "a probe holds up little, even at 2 Mbit/s"


async def test_a_far_link_is_told_once_its_first_probe_is_answered() -> None:
    link = FakeLink(0.02, 4 * MBIT, 4 * MBIT)
    known = own(link)
    assert known.look(0.0) == NEAR, "a rate of 0 says that it is fast"
    await known.probe()
    assert known.look(0.0).up == pytest.approx(4 * MBIT, rel=0.01)


async def test_what_stages_receive_counts_more_than_the_probe_and_small_changes_are_not_told() -> (
    None
):
    link = FakeLink(0.02, 5 * MBIT, 5 * MBIT)
    known = own(link)
    await known.probe()
    assert known.look(1e6).down == 1_000_000
    assert known.look(1.3e6).down == 1_000_000, "just told"
    link.now += MOVED_AFTER
    assert known.look(1.2e6).down == 1_000_000
    assert known.look(1.3e6).down == 1_300_000


async def test_a_link_that_faded_without_traffic_is_seen_by_the_next_probe() -> None:
    link = FakeLink(0.02, 80 * MBIT, 80 * MBIT)
    known = own(link)
    await known.probe()
    good = known.look(0.0).down
    link.up = link.down = 5 * MBIT
    link.now += MOVED_AFTER
    await known.probe()
    assert known.look(0.0).down < good / 5


@pytest.mark.netns
async def test_a_node_sees_a_real_link_that_is_short_and_slow() -> None:
    if reason := unavailable():
        pytest.skip(reason)
    seen: list[NodeLink] = []
    with slow_link(5.0, 0.0005) as link:
        async with EmbeddedServer(host=link.address) as server:

            async def look(over: asyncio.Event) -> None:
                async with swarm.connect(server.url, shm=False) as mesh:
                    known = OwnLink(lambda: mesh.link)
                    probing = asyncio.create_task(known.run())
                    await eventually(lambda: known.look(0.0) != NEAR, "the link is told")
                    probing.cancel()
                    seen.append(known.look(0.0))

            with behind(link.inside[-1], look):
                await eventually(lambda: bool(seen), "it has looked")
    assert 0.5 * MBIT < seen[0].up < 8 * MBIT
    assert 0.5 * MBIT < seen[0].down < 8 * MBIT
