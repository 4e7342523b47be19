"""A mesh whose streams an operator has changed: what a command leaves as it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import swarm
from shards.split.split import SplitResult, split
from shards.zoo import digits_model
from support.commands import said
from swarm.fleet.events import ensure_events
from swarm.link import Link, jetstream
from swarm.subjects import api
from swarm.transport.lane import make_lanes
from swarm.transport.lane.streams import LaneOptions

OF_AN_OPERATOR = {
    "description": "asked for by the night shift",
    "metadata": {"team": "line-7", "ticket": "4711"},
    "max_msg_size": 6 << 20,
    "max_consumers": 40,
    "consumer_limits": {"max_ack_pending": 5000},
}
IN_FILES = {"compression": "s2"}


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


Op = Callable[[Kept], Awaitable[Any]]
# By name: what is done, and the settings that are asked for, by stream.
Operations = dict[str, tuple[Op, Callable[[Kept], dict[str, dict[str, Any]]]]]


async def prepared(mesh: swarm.Mesh, lanes: LaneOptions) -> None:
    """All streams of the core."""
    result = digits()
    await mesh.registry.push(result.manifest.to_json(), result.files)
    await mesh.registry.promote("digits", "1")
    await make_lanes(mesh.link, mesh.subjects, "digits", "1", 2, lanes)
    await ensure_events(mesh.link, mesh.subjects)


@asynccontextmanager
async def kept(
    url: str, copies: int, *more: Callable[[swarm.Mesh], Awaitable[Any]]
) -> AsyncIterator[Kept]:
    """more: make further streams."""
    async with swarm.connect(url, shm=False, replicas=copies) as mesh:
        await prepared(mesh, LaneOptions(copies=copies))
        for make in more:
            await make(mesh)
        made = Kept(mesh, url, {})
        for name, config in (await made.configs()).items():
            changes = OF_AN_OPERATOR | (IN_FILES if config["storage"] == "file" else {})
            if config["retention"] == "workqueue":
                changes = {k: v for k, v in changes.items() if k != "consumer_limits"}
            await jetstream.change_stream(mesh.link, name, changes | {"num_replicas": copies})
        made.before = await made.configs()
        assert {config["num_replicas"] for config in made.before.values()} == {copies}
        yield made


async def command(made: Kept, *words: str) -> None:
    done = await asyncio.to_thread(said, *words, "--nats", made.url)
    assert done.code == 0, done


async def check(made: Kept, operations: Operations) -> None:
    for name, (operate, asked) in operations.items():
        await operate(made)
        assert await made.changed() == asked(made), name
        made.before = await made.configs()
