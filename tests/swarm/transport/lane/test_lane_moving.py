"""Who makes lost lanes anew, and when; whether any server has them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from real_server import Links

from nodes.up.embedded_server import EmbeddedServer
from swarm.link import jetstream
from swarm.subjects import Subjects, api
from swarm.transport.lane import (
    LaneOptions,
    ensure_lanes,
    is_due,
    is_kept,
    make_anew,
    stream_config,
)
from swarm.transport.lane.moving import FIRST_AFTER, NEXT_AFTER

NODES = st.sets(st.from_regex("[a-z]{1,6}", fullmatch=True), min_size=1, max_size=5)


@settings(max_examples=30)
@given(nodes=NODES, stream=st.text(max_size=20))
def test_at_first_one_node_is_due_and_in_the_end_every_one(nodes: set[str], stream: str) -> None:
    def due(lost_for: float) -> set[str]:
        return {node for node in nodes if is_due(stream, node, nodes, lost_for)}

    assert due(FIRST_AFTER / 2) == set()
    assert len(due(FIRST_AFTER)) == 1
    assert len(due(FIRST_AFTER + NEXT_AFTER)) == min(2, len(nodes))
    assert due(FIRST_AFTER + NEXT_AFTER * len(nodes)) == nodes


@pytest.mark.integration
async def test_lanes_are_known_to_be_gone_at_once_and_the_question_is_not_stored(
    server: EmbeddedServer, links: Links
) -> None:
    link, subjects = await links.connect(server.url), Subjects("m")
    asked = subjects.whereabouts("digits", "1", 1)
    assert not await is_kept(link, asked)
    await ensure_lanes(link, subjects, "digits", "1", 1, LaneOptions())
    assert await is_kept(link, asked)
    config = stream_config(subjects, "digits", "1", 1, LaneOptions())
    await make_anew(link, config)
    assert await is_kept(link, asked)
    await links.close()


@pytest.mark.integration
async def test_an_ack_of_the_old_lane_means_no_message_of_the_new_one(
    server: EmbeddedServer, links: Links
) -> None:
    link, subjects = await links.connect(server.url), Subjects("m")
    config = stream_config(subjects, "digits", "1", 1, LaneOptions())
    lane, stream = subjects.features("digits", "1", 1), config["name"]

    async def numbers() -> list[int]:
        found = []
        for _ in range(2):
            ack = await link.request(lane, b"x", from_server=True)
            found.append(jetstream.stored_sequence(ack.data))
        return found

    old = []
    for _ in range(2):
        await make_anew(link, config)
        new = await numbers()
        assert not set(old) & set(new)
        old = new
    # Its depth can be changed as before.
    info = await jetstream.call(link, api("STREAM.INFO", stream))
    await jetstream.change_stream(link, info["config"]["name"], {"max_msgs_per_subject": 99})
    await links.close()
