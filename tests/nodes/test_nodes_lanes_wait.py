"""A version whose lanes cannot be had yet is waited for; the node says why, and serves the rest."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from math import inf
from typing import Any

import pytest
from support.waiting import GENEROUS

import swarm
from nodes.config import NodeConfig
from nodes.life.node import Node
from shards.split.split import SplitResult, split
from shards.zoo import digits_model
from swarm.link import LinkMessage, jetstream
from swarm.transport.lane import LaneOptions, stream_config

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodes.life.reconciler.WHILE_WAITING", 0.1)
    monkeypatch.setattr("nodes.versions.versions.PULLS_WITHIN", 0.2)
    monkeypatch.setattr("nodes.versions.versions.PULLS_AGAIN_WITHIN", 0.2)
    # A scene makes lanes before their version is listed: nobody is to give them back meanwhile.
    monkeypatch.setattr("nodes.duties.upkeep.GIVE_BACK_EVERY", inf)


@cache
def digits(version: str) -> SplitResult:
    return split(digits_model(), name="digits", version=version, stages=1, profile=False)


class Scene:
    """A node of this process, and what it says of itself."""

    def __init__(self, url: str, mesh: swarm.Mesh) -> None:
        self.mesh = mesh
        config = NodeConfig(
            "shard-1", "digits", nats=url, shm=False, no_cache=True, allow_unsigned=True
        )
        self.node = Node(config)
        self._said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        mesh.link.subscribe(mesh.subjects.status(self.node.id), self._hear)

    def _hear(self, message: LinkMessage) -> None:
        self._said.put_nowait(json.loads(bytes(message.data)))

    async def says(self, promise: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the node says so."""
        said: dict[str, Any] = {}
        try:
            async with asyncio.timeout(GENEROUS):
                while not promise(said):
                    said = await self._said.get()
        except TimeoutError:
            pytest.fail(f"it says {said}")
        return said

    async def push(self, version: str) -> None:
        result = digits(version)
        await self.mesh.registry.push(result.manifest.to_json(), result.files)
        await self.mesh.registry.promote("digits", version)

    async def let_no_lane_be_made(self, version: str) -> None:
        """Somebody has taken the only consumer that the lanes' stream may have."""
        link, subjects = self.mesh.link, self.mesh.subjects
        config = stream_config(subjects, "digits", version, 1, LaneOptions())
        await jetstream.ensure_stream(link, config | {"max_consumers": 1})
        consumer = {"durable_name": "other", "filter_subject": "nothing", "ack_policy": "explicit"}
        await jetstream.ensure_consumer(link, config["name"], consumer)

    async def let_a_lane_be_made(self, version: str) -> None:
        stream = self.mesh.subjects.stream("digits", version, 1)
        await jetstream.delete_consumer(self.mesh.link, stream, "other")

    @asynccontextmanager
    async def lives(self) -> AsyncIterator[None]:
        stop = asyncio.Event()
        life = asyncio.create_task(self.node.run(stop))
        try:
            yield
        finally:
            stop.set()
            await asyncio.wait_for(life, GENEROUS)


@pytest.fixture
async def scene(url: str) -> AsyncIterator[Scene]:
    async with swarm.connect(url, shm=False) as mesh:
        yield Scene(url, mesh)


async def test_a_node_whose_lanes_do_not_pull_waits_says_why_and_serves_once_they_do(
    scene: Scene,
) -> None:
    await scene.push("1")
    await scene.let_no_lane_be_made("1")
    async with scene.lives():
        said = await scene.says(lambda said: "are waited for" in said.get("detail", ""))
        assert said["state"] == "waiting"
        assert said["detail"].startswith("the lanes of digits@1 are waited for: stage 1: ")
        assert said["stages"] == [], "nobody is to send requests there"
        await scene.let_a_lane_be_made("1")
        said = await scene.says(lambda said: said.get("state") == "ready")
        assert said["detail"] == "serving"
        assert [stage["version"] for stage in said["stages"]] == ["1"]


async def test_a_node_serves_its_other_versions_while_the_lanes_of_one_do_not_pull(
    scene: Scene,
) -> None:
    await scene.push("1")
    async with scene.lives():
        await scene.says(lambda said: said.get("state") == "ready")
        await scene.let_no_lane_be_made("2")
        await scene.push("2")
        said = await scene.says(lambda said: "are waited for" in said.get("detail", ""))
        assert said["state"] == "ready"
        assert said["detail"].startswith("serving; the lanes of digits@2 are waited for: ")
        assert [stage["version"] for stage in said["stages"]] == ["1"]
        await scene.let_a_lane_be_made("2")
        said = await scene.says(lambda said: said.get("version") == "2")
        assert said["state"] == "ready"
        await scene.says(lambda said: said.get("detail") == "serving")


async def test_a_node_that_waits_for_its_lanes_leaves_when_it_is_told_to(scene: Scene) -> None:
    await scene.push("1")
    await scene.let_no_lane_be_made("1")
    async with scene.lives():
        await scene.says(lambda said: "are waited for" in said.get("detail", ""))
    await scene.says(lambda said: said.get("state") == "left")
