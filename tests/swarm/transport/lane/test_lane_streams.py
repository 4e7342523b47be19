"""Each stage of a model version has a stream of its own; an older swarm had one for all."""

from __future__ import annotations

import pytest
from lane_tools import SUBJECTS, Sender
from real_server import Links
from support.waiting import eventually

from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import ResourceExhausted, SwarmError, Unavailable
from swarm.link import Link, jetstream
from swarm.transport.lane import (
    LaneOptions,
    TwoDomains,
    check_one_domain,
    ensure_lanes,
    find_streams,
    lane_streams,
    make_lanes,
    stream_config,
)

LARGEST = 1 << 20  # bytes: a server as it comes takes no larger message
STAGES = 3
OPTIONS = LaneOptions(depth=64, stage_bytes=STAGES * (4 * LARGEST,))


async def outcome(sender: Sender, message_id: str, subject: str) -> SwarmError | None:
    sender.send(message_id, bytes(LARGEST - 4096), subject)
    calls = sender.outcomes[message_id]
    await eventually(lambda: calls != [])
    return calls[0][0]


async def fills(sender: Sender, subject: str) -> int:
    """The messages that are stored until one is refused."""
    for number in range(OPTIONS.depth):
        if isinstance(await outcome(sender, f"{subject}-{number}", subject), ResourceExhausted):
            return number
    return OPTIONS.depth


@pytest.mark.integration
@pytest.mark.parametrize("lane", ["any", "where"])
async def test_who_fills_the_lane_of_a_stage_leaves_room_in_those_of_all_others(
    server: EmbeddedServer, links: Links, lane: str
) -> None:
    link = await links.connect(server.url)
    await make_lanes(link, SUBJECTS, "m", "1", STAGES, OPTIONS)
    sender = Sender(await links.connect(server.url))
    assert 0 < await fills(sender, SUBJECTS.features("m", "1", 3, lane)) < 5
    for stage in (1, 2):
        assert await outcome(sender, f"r{stage}", SUBJECTS.features("m", "1", stage)) is None


async def common_stream(link: Link) -> str:
    """As an older swarm makes it."""
    config = stream_config(SUBJECTS, "m", "1", 1, LaneOptions())
    name = SUBJECTS.older_stream("m", "1")
    subjects = [SUBJECTS.features_of("m", "1")]
    await jetstream.ensure_stream(link, config | {"name": name, "subjects": subjects})
    return name


@pytest.mark.integration
async def test_the_one_stream_of_an_older_swarm_is_used_and_by_a_push_replaced_once_it_is_empty(
    server: EmbeddedServer, links: Links
) -> None:
    link = await links.connect(server.url)
    old = await common_stream(link)
    check_one_domain(await find_streams(link, SUBJECTS, "m", "1"), "", "m@1")
    await link.request(SUBJECTS.features("m", "1", 2), b"waits", from_server=True)
    assert await ensure_lanes(link, SUBJECTS, "m", "1", STAGES, OPTIONS) == old, "it serves on"
    with pytest.raises(Unavailable, match="1 messages"):
        await make_lanes(link, SUBJECTS, "m", "1", STAGES, OPTIONS)
    assert await jetstream.stream_exists(link, old)
    await jetstream.call(link, f"$JS.API.STREAM.PURGE.{old}")
    await make_lanes(link, SUBJECTS, "m", "1", STAGES, OPTIONS)
    names = [info["config"]["name"] for info in await lane_streams(link, SUBJECTS, "m", "1")]
    assert sorted(names) == [SUBJECTS.stream("m", "1", stage) for stage in (1, 2, 3)]


@pytest.mark.parametrize(
    ("there", "own"), [("hub", ""), ("", "hub"), ("hub", "edge1"), ("stage1", "hub")]
)
def test_lanes_of_another_domain_are_told_from_the_own_ones_of_older_swarms_too(
    there: str, own: str
) -> None:
    common = SUBJECTS.older_stream("m", "1")
    for domain in {own, there} - {"stage1"}:
        older = f"{common}={domain}" if domain else common
        check_one_domain([older], domain, "m@1")
    for stage in (1, 12):
        ours, theirs = (SUBJECTS.stream("m", "1", stage, domain) for domain in (own, there))
        check_one_domain([ours], own, "m@1")
        with pytest.raises(TwoDomains, match="already"):
            check_one_domain([ours, theirs], own, "m@1")
        with pytest.raises(TwoDomains, match="under one name"):
            check_one_domain([ours, ours], own, "m@1")
