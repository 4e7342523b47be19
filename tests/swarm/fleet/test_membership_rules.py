"""The rules of time of members, in simulated time: what they ask, whom they blame, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
from fleet import DISCOVERY, SUBJECTS, Fleet
from simulated_links import SimulatedLinks, now
from support.waiting import eventually

from swarm.fleet.membership import DISCOVER_EVERY, DISCOVER_EVERY_ALONE, SETTLE_FOR
from swarm.gossip import LAN

pytestmark = pytest.mark.simulated

ROUND = LAN.interval
Simulated = tuple[Fleet, SimulatedLinks]


@pytest.fixture
async def simulated() -> AsyncIterator[Simulated]:
    links = SimulatedLinks()
    fleet = Fleet(links, "", clock=now)
    yield fleet, links
    await fleet.close()


async def test_who_is_alone_asks_all_and_who_is_not_asks_someone_and_less_often(
    simulated: Simulated,
) -> None:
    fleet, links = simulated

    async def pauses(subject: str, seconds: float) -> list[float]:
        links.published.clear()
        await asyncio.sleep(seconds)
        return [b - a for a, b in pairwise(at for at, asked in links.published if asked == subject)]

    await fleet.join("a")
    alone = await pauses(DISCOVERY, 60.0)
    assert len(alone) >= 60 / (DISCOVER_EVERY_ALONE + 2 * ROUND) - 2
    assert min(alone) >= DISCOVER_EVERY_ALONE - ROUND
    await fleet.join("b")
    await asyncio.sleep(DISCOVER_EVERY)
    assert await pauses(DISCOVERY, 600.0) == []
    both = await pauses(SUBJECTS.someone, 600.0)
    assert 2 * 600 / (DISCOVER_EVERY + 2 * ROUND) - 2 <= len(both) <= 2 * 600 / DISCOVER_EVERY + 2


async def test_after_a_reconnect_a_missing_subscription_is_no_death_until_all_had_time(
    simulated: Simulated,
) -> None:
    fleet, links = simulated
    a, late, _ = await fleet.start("a", "late", "gone")
    links.cut(*links.links)
    a.events.clear()
    links.reconnect(a.link)
    await asyncio.sleep(SETTLE_FOR - 2 * ROUND)
    assert a.heard("died") == []
    links.reconnect(late.link)
    await asyncio.sleep(2 * ROUND + 1.0)
    assert a.heard("died") == ["gone"]
    assert a.state_of("late") == "alive"
    # And a death afterwards is seen at once, without a suspicion.
    a.events.clear()
    await links.crash(late.link)
    await asyncio.sleep(4 * ROUND)
    assert [event.kind for event in a.events] == ["died"]


async def test_a_question_that_a_lost_connection_left_unanswered_is_asked_again(
    simulated: Simulated,
) -> None:
    """Or a node that hangs after it would be doubted, and never dead."""
    fleet, links = simulated
    [a, b] = await fleet.start("a", "b")
    await fleet.hang(b)
    await eventually(lambda: a.gossip.unanswered > 0)
    links.cut(a.link)
    assert a.gossip.unanswered == 0
    links.reconnect(a.link)  # at once: after a long time it would judge nobody by what it asked
    await asyncio.sleep(60.0)
    assert a.heard("died") == ["b"]


async def test_without_a_server_nobody_is_blamed(simulated: Simulated) -> None:
    """Our own silence must not look like everyone else's."""
    fleet, links = simulated
    members = await fleet.start("a", "b", "c")
    await asyncio.sleep(60.0)
    for member in members:
        member.events.clear()
    links.cut(*links.links)
    await asyncio.sleep(600.0)
    assert [event for m in members for event in m.events] == []
    assert all(len(member.gossip.alive()) == 3 for member in members)
