"""Whatever changes a stream or a consumer at the server keeps what it was not asked to change: the
copies of a cluster, and what an operator has set there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.changed_streams import Kept, Operations, check, kept, prepared
from support.waiting import GENEROUS

from nodes.up.embedded_cluster import EmbeddedCluster, elected
from nodes.up.embedded_server import EmbeddedServer
from swarm.clock import ServerClock
from swarm.link import LinkOptions, jetstream
from swarm.models.replicas import raise_all_replicas
from swarm.subjects import api
from swarm.transport.lane.depth import Depth
from swarm.transport.lane.server_consumer import ServerConsumer
from swarm.transport.lane.streams import LaneOptions, consumer_config, follow_depth

pytestmark = pytest.mark.integration


async def depth(made: Kept) -> None:
    wanted = Depth(messages=4096, stage_bytes=(1 << 20, 1 << 20))
    assert await follow_depth(made.link, made.mesh.subjects, "digits", "1", wanted)


async def again(made: Kept) -> None:
    """All that makes a stream where there is none."""
    await prepared(made.mesh, LaneOptions())
    await raise_all_replicas(made.link, made.mesh.subjects)


def lanes(made: Kept, settings: dict[str, Any]) -> dict[str, Any]:
    return {made.lane(stage): settings for stage in (1, 2)}


OPERATIONS: Operations = {
    "made again": (again, lambda made: {}),
    "depth": (
        depth,
        lambda made: lanes(made, {"max_msgs_per_subject": 4096, "max_bytes": 1 << 20}),
    ),
}


async def test_each_change_keeps_what_it_was_not_asked_to_change() -> None:
    async with EmbeddedServer() as server, kept(server.url, 1) as made:
        await check(made, OPERATIONS)


async def test_each_change_keeps_the_copies_of_a_cluster() -> None:
    async with EmbeddedCluster(3) as cluster:
        await elected(LinkOptions(servers=cluster.url), GENEROUS)
        async with kept(cluster.url, 3) as made:
            await check(made, OPERATIONS)


async def test_another_ack_wait_keeps_what_an_operator_has_set_for_a_lane() -> None:
    async with EmbeddedServer() as server, kept(server.url, 1) as made:
        options, stream = LaneOptions(), made.lane(1)
        config = consumer_config(made.mesh.subjects, "digits", "1", 1, options)
        name, more = config["durable_name"], {"description": "mine", "metadata": {"team": "x"}}
        await jetstream.change_consumer(made.link, stream, name, more | {"max_ack_pending": 77})

        async def nothing() -> str:
            return ""

        consumer = ServerConsumer(made.link, stream, config, nothing, ServerClock())
        await consumer.ensure()
        await consumer.set_ack_wait(2.5)
        info = await jetstream.call(made.link, api("CONSUMER.INFO", stream, name))
        now = info["config"]
        assert (now["ack_wait"], now["max_ack_pending"]) == (2_500_000_000, 77)
        assert (now["description"], now["metadata"]["team"]) == ("mine", "x")


def test_a_configuration_is_changed_where_it_was_asked_to() -> None:
    config = {"a": 1, "b": {"c": 2}, "d": 3}
    assert jetstream.changed(config, {"a": 2, "d": None, "e": 4}) == {"a": 2, "b": {"c": 2}, "e": 4}
    assert json.dumps(config) == '{"a": 1, "b": {"c": 2}, "d": 3}'
