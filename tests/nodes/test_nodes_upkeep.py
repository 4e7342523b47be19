"""What somebody deletes or changes of what a mesh keeps at its server, while a node serves: the
node mends it where it may, tells it, and whoever asks meanwhile hears why."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import pytest
from support.meshes import digits, good_request
from support.waiting import GENEROUS, eventually

import swarm
from nodes.config import NodeConfig
from nodes.life.node import Node
from nodes.versions.upkeep import make_stores, upkeep_by_operator
from shards.split.split import SplitResult, split
from shards.zoo import digits_model
from swarm.link import Link, LinkMessage, jetstream
from swarm.subjects import api
from swarm.transport.lane import lanes_of_model

pytestmark = pytest.mark.integration

LANE, CONSUMER = "SWARM=default=digits=1=stage1", "default=digits=stage1=any"
NEVER = {"pause_until": "2100-01-01T00:00:00Z"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodes.duties.upkeep.LOOK_EVERY", 0.2)
    monkeypatch.setattr("nodes.duties.upkeep.GIVE_BACK_EVERY", 0.2)
    monkeypatch.setattr("nodes.versions.versions.PULLS_WITHIN", 0.5)
    monkeypatch.setattr("nodes.versions.versions.LINGERS", 0.1)


@cache
def one_stage(version: str = "1") -> SplitResult:
    return split(digits_model(), name="digits", version=version, stages=1, profile=False)


class Scene:
    """A node that serves, in this process, and all that it says."""

    def __init__(self, mesh: swarm.Mesh, node: Node) -> None:
        self.mesh, self.node = mesh, node
        self.events: list[dict[str, Any]] = []
        mesh.link.subscribe(mesh.subjects.events_all, self._hear)

    def _hear(self, message: LinkMessage) -> None:
        self.events.append(json.loads(bytes(message.data)))

    async def call(self, verb: str, *names: str, **body: Any) -> None:
        await jetstream.call(self.mesh.link, api(verb, *names), body or None)

    async def tells(self, kind: str, words: str) -> dict[str, Any]:
        """Wait for an event."""

        def told() -> list[dict[str, Any]]:
            of_kind = [event for event in self.events if event["kind"] == kind]
            return [e for e in of_kind if words in e["title"] + e["detail"]]

        return (await eventually(told, f"{kind}: {words} of {self.events}"))[0]


@asynccontextmanager
async def serving(url: str) -> AsyncIterator[Scene]:
    async with swarm.connect(url, shm=False) as mesh:
        result = one_stage()
        await mesh.registry.push(result.manifest.to_json(), result.files)
        await make_stores(mesh)
        config = NodeConfig(
            "shard-1", "digits", nats=url, shm=False, no_cache=True, allow_unsigned=True
        )
        node, stop = Node(config), asyncio.Event()
        life = asyncio.create_task(node.run(stop))
        try:
            await asyncio.wait_for(node.became_ready.wait(), GENEROUS)
            yield Scene(mesh, node)
        finally:
            stop.set()
            await asyncio.wait_for(life, GENEROUS)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (("STREAM.DELETE", LANE, {}), "missing"),
        (("CONSUMER.DELETE", LANE, CONSUMER, {}), "missing"),
        (("CONSUMER.PAUSE", LANE, CONSUMER, NEVER), "paused"),
        (("STREAM.DELETE", "SWARM=default=dead", {}), "missing"),
        (("STREAM.DELETE", "SWARM=default=events", {}), "missing"),
    ],
    ids=["lane", "consumer", "paused", "dead", "events"],
)
async def test_a_node_that_may_mends_what_somebody_has_done_and_tells_it(
    url: str, call: tuple[Any, ...], words: str
) -> None:
    async with serving(url) as scene:
        *names, body = call
        await scene.call(*names, **body)
        told = await scene.tells("mended", words)
        assert told["stream"] == names[1]
        await good_request(scene.mesh)
        assert (await upkeep_by_operator(scene.mesh, ["digits"], mends=False)).left == []


async def test_a_store_whose_content_is_gone_is_told_and_never_made_empty(url: str) -> None:
    keys = "KV_swarm-default-config"
    async with serving(url) as scene:
        await scene.call("STREAM.DELETE", keys)
        told = await scene.tells("flaw", "the store of keys")
        assert "swarm model push" in told["mend"]
        assert scene.node.status()["flaws"][0]["stream"] == keys
        await eventually(lambda: "the store of keys" in scene.node.status()["detail"])
        assert not await jetstream.stream_exists(scene.mesh.link, keys)


async def test_where_nodes_may_not_mend_who_asks_hears_why_and_an_operator_mends(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(url) as scene:
        mesh = scene.mesh
        may_call = Link.may_call

        def may(link: Link, subject: str) -> bool:
            """By the rights of a shard, but for the operator's own connection."""
            if link is mesh.link:
                return may_call(link, subject)
            return not subject.startswith(("$JS.API.STREAM.", "$JS.API.CONSUMER.CREATE."))

        monkeypatch.setattr(Link, "may_call", may)
        await scene.call("CONSUMER.PAUSE", LANE, CONSUMER, **NEVER)
        assert "paused" in (await scene.tells("flaw", "stage 1 of digits@1"))["detail"]

        async def hears() -> bool:
            answer = await mesh.ask("digits", {"image": digits()[0][:1]}, 0.3)
            return "consumer is paused" in answer.message and "promote digits@1" in answer.message

        await eventually(hears, "an error says what is wrong, and what an operator types")
        kept = await upkeep_by_operator(mesh, ["digits"])
        assert [flaw.text for flaw in kept.mended] == ["its consumer is paused"]
        assert kept.left == []
        await scene.tells("mended", "stage 1 of digits@1")
        await eventually(lambda: scene.node.status()["detail"] == "serving")
        await good_request(mesh)


async def test_however_many_versions_are_promoted_the_lanes_of_two_stay(url: str) -> None:
    async with serving(url) as scene:
        link, registry = scene.mesh.link, scene.mesh.registry

        async def lanes() -> set[str]:
            return set(await lanes_of_model(link, scene.mesh.subjects, "digits"))

        for version in map(str, range(2, 5)):
            result = one_stage(version)
            await registry.push(result.manifest.to_json(), result.files)
            await registry.promote("digits", version)
            wanted = {str(int(version) - 1), version}

            async def are_there(wanted: set[str] = wanted) -> bool:
                return await lanes() == wanted

            await eventually(are_there, f"only the lanes of {wanted}")
        await good_request(scene.mesh)
        await registry.rollback("digits")
        await eventually(lambda: scene.node.status()["version"] == "3", "3 serves again")
        await good_request(scene.mesh)
        assert await lanes() == {"3", "4"}
        gone = [event for event in scene.events if event["kind"] == "lanes-given-back"]
        names = [name.split("=")[3] for event in gone for name in event["streams"]]
        assert names == ["1", "2"]
