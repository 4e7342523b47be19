"""How long pulls stand: longer in a large fleet, but never where a cut link may forget them."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lane_tools import SUBJECTS
from real_server import Links
from support.linked_sites import HUB, linked_servers
from support.waiting import GENEROUS, eventually

from swarm.link import LinkMessage
from swarm.transport.lane import Lane, LaneOptions, consumer_config, ensure_lanes
from swarm.transport.lane.pulls import EXPIRES, MOST_EXPIRES, expires_for

LARGE = 400  # nodes


@given(st.integers(0, 100_000), st.integers(0, 1000))
def test_pulls_stand_no_shorter_in_a_larger_fleet_within_bounds(nodes: int, more: int) -> None:
    assert EXPIRES <= expires_for(nodes) <= expires_for(nodes + more) <= MOST_EXPIRES


@pytest.mark.integration
async def test_pulls_of_a_large_fleet_stand_longer_but_not_those_that_cross_a_link(
    links: Links,
) -> None:
    async with linked_servers() as servers:
        near = await seconds_of_pulls(links, servers.hub.url, "")
        far = await seconds_of_pulls(links, servers.site.url, HUB)
    assert near == {EXPIRES, expires_for(LARGE)}
    assert far == {EXPIRES}, "a cut would forget longer ones without a word"


async def seconds_of_pulls(links: Links, url: str, domain: str) -> set[float]:
    """For how long the pulls of a lane are to stand, before and after its fleet has grown."""
    link = await links.connect(url, domain=domain)
    pulls: list[float] = []

    def seen(pull: LinkMessage) -> None:
        pulls.append(json.loads(bytes(pull.data))["expires"] / 1e9)

    beside = await links.connect(url)
    beside.subscribe(link.in_domain("$JS.API.CONSUMER.MSG.NEXT.>"), seen)
    await beside.flush()
    options = LaneOptions()
    lane = Lane(
        link,
        SUBJECTS.stream("m", "1", 1, link.domain),
        consumer_config(SUBJECTS, "m", "1", 1, options),
        lambda: ensure_lanes(link, SUBJECTS, "m", "1", 1, options),
        lambda message: None,
    )
    running = asyncio.get_running_loop().create_task(lane.run())
    await lane.ready(5.0)
    await eventually(lambda: bool(pulls), what="the first pull")
    lane.suit(LARGE)
    before = len(pulls)
    await eventually(lambda: len(pulls) > before, what="a pull behind the end of the first one")
    await lane.drain()
    await asyncio.wait_for(running, GENEROUS)
    return set(pulls)
