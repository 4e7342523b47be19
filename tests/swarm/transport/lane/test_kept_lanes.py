"""A lane at the server that somebody deletes or changes is noticed, whatever it was, and mended;
one that is as it has to be is left alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from lane_tools import CONSUMER, STREAM, SUBJECT, SUBJECTS
from real_server import Links
from support.waiting import eventually

from nodes.up.embedded_server import EmbeddedServer
from swarm.link import Link, jetstream
from swarm.link.kept_stream import KeptStream
from swarm.subjects import api
from swarm.transport.lane import (
    LaneOptions,
    follow_depth,
    kept_dead_letters,
    kept_lanes,
    make_lanes,
)
from swarm.transport.lane.depth import Depth

OPTIONS = LaneOptions(depth=64, stage_bytes=(4 << 20,))
Act = Callable[[Link], Awaitable[object]]


def update(**fields: Any) -> Act:
    async def act(link: Link) -> None:
        await jetstream.change_stream(link, STREAM, fields)

    return act


def consumer(**fields: Any) -> Act:
    async def act(link: Link) -> None:
        await jetstream.change_consumer(link, STREAM, CONSUMER, fields)

    return act


def called(verb: str, *names: str, **body: Any) -> Act:
    async def act(link: Link) -> object:
        return await jetstream.call(link, api(verb, *names), body or None)

    return act


async def made_with_other_retention(link: Link) -> None:
    config = (await jetstream.call(link, api("STREAM.INFO", STREAM)))["config"]
    await jetstream.call(link, api("STREAM.DELETE", STREAM))
    await jetstream.call(link, api("STREAM.CREATE", STREAM), config | {"retention": "limits"})


ACTS: dict[str, Act] = {
    "the stream is deleted": called("STREAM.DELETE", STREAM),
    "the consumer is deleted": called("CONSUMER.DELETE", STREAM, CONSUMER),
    "the consumer is paused": called(
        "CONSUMER.PAUSE", STREAM, CONSUMER, pause_until="2100-01-01T00:00:00Z"
    ),
    "the stream is sealed": update(sealed=True),
    "the stream is of another kind": made_with_other_retention,
    "other subjects": update(subjects=["elsewhere.>"]),
    "no message is small enough": update(max_msg_size=10),
    "one message at the most": update(max_msgs_per_subject=1),
    "any number of messages": update(max_msgs_per_subject=-1, discard_new_per_subject=False),
    "so many messages in all": update(max_msgs=1),
    "few bytes": update(max_bytes=1000),
    "no bound in bytes": update(max_bytes=-1),
    "messages that end at once": update(max_age=100_000_000, duplicate_window=100_000_000),
    "the oldest message gives way": update(discard="old", discard_new_per_subject=False),
    "copies for somebody else": update(republish={"src": ">", "dest": "spy.>"}),
    "subjects are changed on their way": update(subject_transform={"src": ">", "dest": "other.>"}),
    "no answer to who stores": update(no_ack=True),
    "deaf after one delivery": consumer(max_deliver=1),
    "one message in hand at the most": consumer(max_ack_pending=1),
    "handed out again at once": consumer(ack_wait=1),
    "handed out again tomorrow": consumer(ack_wait=86_400_000_000_000),
    "headers alone": consumer(headers_only=True),
    "small pulls alone": consumer(max_batch=1),
}


async def lane_of(links: Links, server: EmbeddedServer) -> tuple[Link, KeptStream]:
    link = await links.connect(server.url)
    await make_lanes(link, SUBJECTS, "m", "1", 1, OPTIONS)
    return link, kept_lanes(link, SUBJECTS, "m", "1", 1, OPTIONS)[0]


async def takes_and_gives(link: Link) -> bool:
    """A message is stored, and comes to who pulls."""
    stored = await link.request(SUBJECT, b"x" * 100, from_server=True)
    jetstream.stored_sequence(stored.data)
    pull = b'{"batch":1,"expires":1000000000,"group":"g","priority":0}'
    got: list[bytes] = []
    inbox = f"{link.server_inbox}.pulled"
    link.subscribe(inbox, lambda message: got.append(bytes(message.data)))
    link.publish(api("CONSUMER.MSG.NEXT", STREAM, CONSUMER), pull, inbox)
    await eventually(lambda: got, "a message comes")
    return got == [b"x" * 100]


@pytest.mark.integration
@pytest.mark.parametrize("what", ACTS)
async def test_what_somebody_does_to_a_lane_is_noticed_and_mended(
    what: str, server: EmbeddedServer, links: Links
) -> None:
    link, lane = await lane_of(links, server)
    assert await lane.look() == []
    await ACTS[what](link)
    assert await lane.look() != []
    await lane.mend()
    assert await lane.look() == []
    assert await takes_and_gives(link)


@pytest.mark.integration
async def test_what_nodes_and_recordings_change_themselves_is_no_flaw(
    server: EmbeddedServer, links: Links
) -> None:
    link, lane = await lane_of(links, server)
    await consumer(ack_wait=5_000_000_000)(link)
    assert await follow_depth(link, SUBJECTS, "m", "1", Depth(1000, (8 << 20,)))
    pytest.importorskip("swarm.records", reason="only recordings copy what enters a lane")
    tap = SUBJECTS.under("tap", model="m", version="1") + ".>"
    await update(republish={"src": ">", "dest": tap})(link)
    before = await jetstream.call(link, api("STREAM.INFO", STREAM))
    assert await lane.look() == []
    await lane.mend()
    assert (await jetstream.call(link, api("STREAM.INFO", STREAM)))["config"] == before["config"]
    assert await follow_depth(link, SUBJECTS, "m", "1", Depth(16, (1 << 20,)))
    assert await lane.look() == []


@pytest.mark.integration
async def test_a_lane_that_is_mended_in_place_keeps_its_messages(
    server: EmbeddedServer, links: Links
) -> None:
    link, lane = await lane_of(links, server)
    await link.request(SUBJECT, b"waits", from_server=True)
    await update(max_msg_size=10, max_bytes=-1)(link)
    await called("CONSUMER.DELETE", STREAM, CONSUMER)(link)
    await lane.mend()
    assert (await jetstream.call(link, api("STREAM.INFO", STREAM)))["state"]["messages"] == 1


@pytest.mark.integration
async def test_an_operators_limits_of_dead_letters_are_no_flaw_and_its_loss_is(
    server: EmbeddedServer, links: Links
) -> None:
    link, _ = await lane_of(links, server)
    dead = kept_dead_letters(link, SUBJECTS, "type this")
    limits = {"max_msgs": 5, "max_bytes": 9999}
    await jetstream.change_stream(link, SUBJECTS.dead_stream, limits)
    assert await dead.look() == []
    await jetstream.call(link, api("STREAM.DELETE", SUBJECTS.dead_stream))
    assert await dead.look() != []
    await dead.mend()
    assert await dead.look() == []
