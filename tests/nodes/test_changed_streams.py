"""Whatever changes a stream or a consumer at the server keeps what it was not asked to change: the
copies of a cluster, and what an operator has set there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from support.commands import said
from support.waiting import GENEROUS

import swarm
from nodes.records.recording import Recording, RecordLimits
from nodes.up.embedded_cluster import EmbeddedCluster, elected
from nodes.up.embedded_server import EmbeddedServer
from shards.split.split import SplitResult, split
from shards.zoo import digits_model
from swarm.clock import ServerClock
from swarm.fleet.events import ensure_events
from swarm.link import Link, LinkOptions, jetstream
from swarm.models.replicas import raise_all_replicas
from swarm.records.stream import ensure_audit
from swarm.sites.store import Limits, SiteStore
from swarm.subjects import api
from swarm.transport.lane import make_lanes
from swarm.transport.lane.depth import Depth
from swarm.transport.lane.server_consumer import ServerConsumer
from swarm.transport.lane.streams import LaneOptions, consumer_config, follow_depth

pytestmark = pytest.mark.integration

DAY_NS = 86_400 * 10**9
OF_AN_OPERATOR = {
    "description": "asked for by the night shift",
    "metadata": {"team": "line-7", "ticket": "4711"},
    "max_msg_size": 6 << 20,
    "max_consumers": 40,
    "consumer_limits": {"max_ack_pending": 5000},
}
IN_FILES = {"compression": "s2"}
SITE = "hub"


@cache
def digits() -> SplitResult:
    return split(digits_model(), name="digits", version="1", stages=2, profile=False)


@dataclass
class Kept:
    """A mesh whose streams an operator has changed, and what they were then."""

    mesh: swarm.Mesh
    url: str
    before: dict[str, dict[str, Any]]

    @property
    def link(self) -> Link:
        return self.mesh.link

    async def configs(self) -> dict[str, dict[str, Any]]:
        page = await jetstream.call(self.link, api("STREAM.LIST"))
        found = {info["config"]["name"]: info["config"] for info in page["streams"]}
        assert len(found) == page["total"]
        return found

    async def changed(self) -> dict[str, dict[str, Any]]:
        """By stream: the settings that are other ones than before."""
        after = await self.configs()
        assert after.keys() >= self.before.keys()
        return {
            name: told
            for name, was in self.before.items()
            if (
                told := {
                    k: after[name].get(k)
                    for k in was.keys() | after[name].keys()
                    if was.get(k) != after[name].get(k)
                }
            )
        }

    def lane(self, stage: int) -> str:
        return self.mesh.subjects.stream("digits", "1", stage, self.link.domain)


@asynccontextmanager
async def kept(url: str, with_site: bool, copies: int) -> AsyncIterator[Kept]:
    async with swarm.connect(url, shm=False, replicas=copies) as mesh:
        link, subjects, result = mesh.link, mesh.subjects, digits()
        await mesh.registry.push(result.manifest.to_json(), result.files)
        await mesh.registry.promote("digits", "1")
        await make_lanes(link, subjects, "digits", "1", 2, LaneOptions(copies=copies))
        await ensure_audit(link, subjects)
        await ensure_events(link, subjects)
        recording = Recording(link, subjects, "digits", "1", 1.0)
        await recording.start(RecordLimits())
        await recording.stop()
        if with_site:
            await SiteStore(link, subjects, SITE).prepare(Limits())
        made = Kept(mesh, url, {})
        for name, config in (await made.configs()).items():
            more = OF_AN_OPERATOR | (IN_FILES if config["storage"] == "file" else {})
            if config["retention"] == "workqueue":
                more = {k: v for k, v in more.items() if k != "consumer_limits"}
            await jetstream.change_stream(link, name, more | {"num_replicas": copies})
        made.before = await made.configs()
        assert len(made.before) >= 7 + 3 * with_site
        assert {config["num_replicas"] for config in made.before.values()} == {copies}
        yield made


Op = Callable[[Kept], Awaitable[Any]]


async def record(made: Kept) -> None:
    recording = Recording(made.link, made.mesh.subjects, "digits", "1", 1.0)
    await recording.start(RecordLimits(max_age=7200.0))
    tapped = await made.changed()
    assert all(tapped.pop(made.lane(stage)).keys() == {"republish"} for stage in (1, 2))
    await recording.stop()


async def command(made: Kept, *words: str) -> None:
    done = await asyncio.to_thread(said, *words, "--nats", made.url)
    assert done.code == 0, done


async def depth(made: Kept) -> None:
    wanted = Depth(messages=4096, stage_bytes=(1 << 20, 1 << 20))
    assert await follow_depth(made.link, made.mesh.subjects, "digits", "1", wanted)


async def again(made: Kept) -> None:
    """All that makes a stream where there is none."""
    link, subjects, result = made.link, made.mesh.subjects, digits()
    await made.mesh.registry.push(result.manifest.to_json(), result.files)
    await made.mesh.registry.promote("digits", "1")
    await make_lanes(link, subjects, "digits", "1", 2, LaneOptions())
    await ensure_audit(link, subjects)
    await ensure_events(link, subjects)
    await raise_all_replicas(link, subjects)


def audit(made: Kept) -> str:
    return made.mesh.subjects.audit_stream


def recorded(made: Kept) -> str:
    return made.mesh.subjects.record_stream("digits")


def lanes(made: Kept, settings: dict[str, Any]) -> dict[str, Any]:
    return {made.lane(stage): settings for stage in (1, 2)}


OPERATIONS: dict[str, tuple[Op, Callable[[Kept], dict[str, dict[str, Any]]]]] = {
    "made again": (again, lambda made: {}),
    "audit init": (lambda made: command(made, "audit", "init"), lambda made: {}),
    "audit days": (
        lambda made: command(made, "audit", "init", "--max-days", "30"),
        lambda made: {audit(made): {"max_age": 30 * DAY_NS}},
    ),
    "audit bytes": (
        lambda made: command(made, "audit", "init", "--max-mb", "9"),
        lambda made: {audit(made): {"max_bytes": 9_000_000}},
    ),
    "record": (record, lambda made: {recorded(made): {"max_age": 7200 * 10**9}}),
    "depth": (
        depth,
        lambda made: lanes(made, {"max_msgs_per_subject": 4096, "max_bytes": 1 << 20}),
    ),
}
OF_A_SITE: dict[str, tuple[Op, Callable[[Kept], dict[str, dict[str, Any]]]]] = {
    "site add": (lambda made: command(made, "site", "add", SITE), lambda made: {}),
    "site bytes": (
        lambda made: command(made, "site", "add", SITE, "--max-mb", "5"),
        lambda made: {
            name: {"max_bytes": 5_000_000}
            for name in (
                made.mesh.subjects.submitted_stream,
                made.mesh.subjects.answers_stream,
            )
        },
    ),
}


async def check(made: Kept, operations: dict[str, Any]) -> None:
    for name, (operate, asked) in operations.items():
        await operate(made)
        assert await made.changed() == asked(made), name
        made.before = await made.configs()


async def test_each_change_keeps_what_it_was_not_asked_to_change() -> None:
    async with (
        EmbeddedServer(domain=SITE) as server,
        kept(server.url, with_site=True, copies=1) as made,
    ):
        await check(made, OPERATIONS | OF_A_SITE)


async def test_each_change_keeps_the_copies_of_a_cluster() -> None:
    async with EmbeddedCluster(3) as cluster:
        await elected(LinkOptions(servers=cluster.url), GENEROUS)
        async with kept(cluster.url, with_site=False, copies=3) as made:
            await check(made, OPERATIONS)


async def test_another_ack_wait_keeps_what_an_operator_has_set_for_a_lane() -> None:
    async with EmbeddedServer() as server, kept(server.url, with_site=False, copies=1) as made:
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
