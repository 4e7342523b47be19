"""A version that a node cannot run: when it is tried again, and what serves meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from support.waiting import GENEROUS

import nodes.versions.loader
import swarm
from nodes.config import NodeConfig
from nodes.life.node import Node
from nodes.versions.loaded import Loaded
from nodes.versions.refused_versions import AGAIN_AFTER, AGAIN_AFTER_AT_MOST, RefusedVersions
from shards.errors import DoesNotFit, ModelError
from shards.manifest import sha256
from shards.split.split import SplitResult, split
from shards.zoo import digits_heldout, digits_model
from swarm.errors import Status
from swarm.link import LinkMessage, jetstream
from swarm.model import ModelInfo
from swarm.wire.messages import Request


def test_attempts_come_ever_later_and_at_once_where_desired_state_has_changed() -> None:
    refused, now, pauses = RefusedVersions(), 100.0, []
    assert refused.is_due("2", now)
    for _ in range(8):
        refused.refuse("2", "no memory", now)
        began = now
        while not refused.is_due("2", now):
            now += 1.0
        pauses.append(now - began)
    assert pauses[0] == AGAIN_AFTER
    assert pauses == sorted(pauses)
    assert pauses[-1] == AGAIN_AFTER_AT_MOST
    refused.refuse("2", "no memory", now)
    refused.retry_all()
    assert refused.is_due("2", now)
    assert refused.reasons == {}


def test_what_is_not_wanted_any_more_or_is_served_is_not_refused() -> None:
    refused = RefusedVersions()
    for version in ("1", "2", "3"):
        refused.refuse(version, f"why {version}", 0.0)
    refused.forget_all_but(["2", "3"])
    refused.served("3")
    assert refused.reasons == {"2": "why 2"}
    assert (refused.reason("2"), refused.reason("1")) == ("why 2", "")


@cache
def digits(version: str, stages: int = 2) -> SplitResult:
    return split(digits_model(), name="digits", version=version, stages=stages, profile=False)


def broken() -> SplitResult:
    """Version 2, whose second file is no model."""
    result, garbage = digits("2"), b"no model"
    file = result.manifest.shard(2).file
    shards = tuple(
        replace(shard, sha256=sha256(garbage), bytes=len(garbage)) if shard.stage == 2 else shard
        for shard in result.manifest.shards
    )
    manifest = replace(result.manifest, shards=shards)
    return replace(result, manifest=manifest, files=result.files | {file: garbage})


def node_of(role: str, url: str) -> Node:
    return Node(NodeConfig(role, "digits", nats=url, shm=False, no_cache=True, allow_unsigned=True))


class Scene:
    """A node of a mesh in this process, shard-2 as a rule, and what it says."""

    def __init__(self, url: str, mesh: swarm.Mesh, node: Node | None = None) -> None:
        self.mesh = mesh
        self.node = node or node_of("shard-2", url)
        self.said: dict[str, Any] = {}
        self.rejected: list[str] = []
        self.rolled_back: list[dict[str, Any]] = []
        self._news = asyncio.Event()
        subjects = mesh.subjects
        mesh.link.subscribe(subjects.status(self.node.id), self._status)
        mesh.link.subscribe(
            subjects.event("rejected"), self._event(lambda d: self.rejected.append(d["detail"]))
        )
        mesh.link.subscribe(subjects.event("rolled-back"), self._event(self.rolled_back.append))

    def _status(self, message: LinkMessage) -> None:
        self.said = json.loads(bytes(message.data))
        self._news.set()

    def _event(self, take: Callable[[dict[str, Any]], None]) -> Callable[[LinkMessage], None]:
        def heard(message: LinkMessage) -> None:
            take(json.loads(bytes(message.data)))
            self._news.set()

        return heard

    @property
    def versions(self) -> list[str]:
        return [stage["version"] for stage in self.said.get("stages", [])]

    async def until(self, promise: Callable[[], Any]) -> None:
        async with asyncio.timeout(GENEROUS):
            while not promise():
                self._news.clear()
                await self._news.wait()

    async def push(self, result: SplitResult) -> None:
        await self.mesh.registry.push(result.manifest.to_json(), result.files)

    @asynccontextmanager
    async def lives(self, serves: Sequence[str] = ("1",)) -> AsyncIterator[None]:
        stop = asyncio.Event()
        life = asyncio.create_task(self.node.run(stop))
        try:
            await self.until(lambda: self.versions == list(serves))
            yield
            assert not life.done()
        finally:
            stop.set()
            await asyncio.wait_for(life, GENEROUS)


@pytest.fixture
async def scene(url: str) -> AsyncIterator[Scene]:
    async with swarm.connect(url, shm=False) as mesh:
        made = Scene(url, mesh)
        await made.push(digits("1"))
        await mesh.registry.promote("digits", "1")
        yield made


@pytest.mark.integration
@pytest.mark.parametrize(
    ("bad", "why"), [(broken, "protobuf parsing failed"), (lambda: digits("2", 1), "no shard-2")]
)
async def test_a_node_serves_on_where_the_version_that_is_promoted_cannot_run_and_says_why(
    scene: Scene, bad: Callable[[], SplitResult], why: str
) -> None:
    async with scene.lives():
        await scene.push(bad())
        await scene.mesh.registry.promote("digits", "2")
        await scene.until(lambda: why in scene.said["detail"])
        assert (scene.said["state"], scene.versions) == ("ready", ["1"])
        await scene.until(lambda: scene.rejected)
        assert scene.rejected[0].startswith("digits@2 cannot be served here: ")
        await scene.push(digits("3"))
        await scene.mesh.registry.promote("digits", "3")
        await scene.until(lambda: "3" in scene.versions and scene.said["detail"] == "serving")
        assert len(scene.rejected) == 1


@pytest.mark.integration
async def test_a_canary_that_a_node_cannot_run_is_rolled_back_for_that_reason(scene: Scene) -> None:
    pytest.importorskip("swarm.rollout", reason="a feature is not there")
    from swarm.rollout import plan_of
    from swarm.rollout.rollouts import roll_out

    async with scene.lives():
        await scene.push(broken())
        plan = plan_of("a-plan", "2", "10%", "10%/1m", "errors<1%")
        await roll_out(scene.mesh.registry, "digits", plan)
        await scene.until(lambda: scene.rolled_back)
        detail = scene.rolled_back[0]["detail"]
        assert detail.startswith(f"{scene.node.id} cannot run it: ")
        await scene.until(lambda: scene.said["detail"] == "serving")
        assert (scene.versions, scene.said["rollout"]["state"]) == (["1"], "rolled-back")


@pytest.mark.integration
async def test_a_version_whose_files_are_missing_is_told_of_and_waited_for(scene: Scene) -> None:
    async with scene.lives():
        await scene.push(digits("2"))
        stream = "OBJ_swarm-default-models"
        await jetstream.call(scene.mesh.link, f"$JS.API.STREAM.PURGE.{stream}", {})
        await scene.mesh.registry.promote("digits", "2")
        await scene.until(lambda: scene.said["detail"].startswith("serving; "))
        assert (scene.said["state"], scene.versions) == ("ready", ["1"])
        await scene.push(digits("2"))
        await scene.until(lambda: "2" in scene.versions and scene.said["detail"] == "serving")


@pytest.mark.integration
async def test_a_node_that_cannot_run_the_desired_version_asks_those_that_can(
    scene: Scene, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = nodes.versions.loader.load

    async def load(
        mesh: swarm.Mesh, artifacts: Any, config: NodeConfig, info: ModelInfo, **more: Any
    ) -> Loaded:
        if (config.role, info.version) == ("shard-2", "2"):
            raise DoesNotFit("no memory")
        return await really(mesh, artifacts, config, info, **more)

    monkeypatch.setattr(nodes.versions.loader, "load", load)
    able = Scene(url, scene.mesh, node_of("fallback", url))
    async with scene.lives(), able.lives(["1", "1"]):
        await scene.push(digits("2"))
        await scene.mesh.registry.promote("digits", "2")
        await scene.until(lambda: "no memory" in scene.said["detail"])
        await able.until(lambda: able.versions.count("2") == 2)
        request = Request({"image": digits_heldout()[0][:1]}, version="2", budget=GENEROUS)
        result = await scene.node.answerer.answer("digits", request)
        assert (result.status, result.version) == (Status.OK, "2"), result.message
        named = Request(dict(request.inputs), version="7", budget=GENEROUS)
        assert (await scene.node.answerer.answer("digits", named)).status is Status.NOT_FOUND


@pytest.mark.integration
async def test_a_node_that_can_serve_nothing_at_all_ends_with_the_reason(scene: Scene) -> None:
    await scene.push(broken())
    await scene.mesh.registry.promote("digits", "2")
    with pytest.raises(ExceptionGroup) as ended:
        await asyncio.wait_for(scene.node.run(asyncio.Event()), GENEROUS)
    assert ended.value.subgroup(ModelError) is not None
