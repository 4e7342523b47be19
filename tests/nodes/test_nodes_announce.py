"""What a node does about the lives and deaths of others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from nodes.life.announce import Announcer
from nodes.life.config import NodeConfig
from nodes.life.serving import Serving
from nodes.stage.counters import StageStats
from swarm.fleet.advertised import serves_entries
from swarm.gossip import Event, PeerView
from swarm.link import LinkOptions
from swarm.mesh import NODE_PLACED_FOR, Mesh
from swarm.model import ModelInfo, Spec, Stage
from swarm.routing.rendezvous import rendezvous

SPEC = (Spec("x", "FP32", (-1, 4)),)
INFO = ModelInfo("m", "1", SPEC, SPEC, (Stage(1, SPEC, SPEC, 1.0),))


class FakeFresh:
    is_open = False

    def open(self) -> None:
        self.is_open = True

    async def close(self) -> None:
        self.is_open = False


class FakeServing:
    """Opens lanes; each is found empty at once, and closed."""

    def __init__(self) -> None:
        self.info = INFO
        self.servers = [SimpleNamespace(stage=1, info=INFO, lanes=[])]
        self.fresh = {1: FakeFresh()}
        self.lanes: set[str] = set()
        self.opened: list[str] = []

    def open_lane(self, server: Any, name: str) -> None:
        if name not in self.lanes:
            self.lanes.add(name)
            self.opened.append(name)

    async def close_idle_lanes(self, own: str) -> None:
        self.lanes &= {own}


class Scene:
    def __init__(self, role: str = "shard-1", node: str = "me", mesh: Any = None) -> None:
        self.node = node
        self.peers: dict[str, PeerView] = {}
        self.told: list[str] = []
        self.serving = FakeServing()
        self.own_lanes = True
        config = NodeConfig(role, "m@1")
        self.add(node, config.priority)
        self.announcer = Announcer(
            mesh or Mesh(LinkOptions()),
            config,
            self,  # type: ignore[arg-type]
            SimpleNamespace(uses_own_lanes=lambda model: self.own_lanes),  # type: ignore[arg-type]
            lambda: [self.serving],  # type: ignore[list-item]
            lambda kind, detail: self.told.append(kind),
        )

    def add(self, node: str, priority: int = 0, state: Any = "alive", **more: Any) -> None:
        values = serves_entries([("m", "1", 1)]) | {"priority": priority} | more
        self.peers[node] = PeerView(node, state, 1, 1, values if state == "alive" else {})

    def view(self) -> dict[str, PeerView]:
        return self.peers

    def alive(self) -> list[PeerView]:
        return [peer for peer in self.peers.values() if peer.state == "alive"]

    def set(self, key: str, value: object) -> bool:
        return True

    def delete(self, key: str) -> None:
        """It is told no more."""

    async def tend(self, times: int = 1) -> list[str]:
        """The lanes of others that were opened meanwhile."""
        before = len(self.serving.opened)
        for _ in range(times):
            await self.announcer._tend_lanes()
        return [name for name in self.serving.opened[before:] if name != self.node]


def test_the_fake_opens_lanes_as_the_real_one_does() -> None:
    assert {"open_lane", "close_idle_lanes"} <= set(dir(Serving))


async def test_the_lane_of_a_dead_node_is_drained_by_exactly_one_survivor() -> None:
    names = ["a", "b", "c", "d"]
    scenes = []
    for name in names:
        scene = Scene(node=name)
        for other in names:
            scene.add(other)
        scene.add("dead", state="dead")
        scene.add("fallback", priority=2)
        scenes.append(scene)
    drained = [await scene.tend() for scene in scenes]
    assert sorted(drained) == [[], [], [], ["dead"]]


async def test_a_lane_that_was_drained_is_not_opened_again_and_again() -> None:
    """A dead node is remembered for an hour; its lane is gone after seconds."""
    scene = Scene()
    scene.add("dead", state="dead")
    assert await scene.tend(20) == ["dead"]
    scene.add("dead")  # alive after all
    assert await scene.tend() == []
    scene.add("dead", state="dead")
    assert await scene.tend(20) == ["dead"]


@pytest.mark.parametrize("dead", [f"dead-{n}" for n in range(6)])
async def test_a_fallback_node_inherits_nothing_while_a_primary_lives(dead: str) -> None:
    scene = Scene("fallback", "helper")
    scene.add("primary")
    scene.add(dead, state="dead")
    assert await scene.tend() == []
    primary = Scene(node="primary")
    primary.add("helper", priority=2)
    primary.add(dead, state="dead")
    assert await primary.tend() == [dead]
    assert {rendezvous(f"dead-{n}", ["helper", "primary"])[0] for n in range(6)} == {
        "helper",
        "primary",
    }  # priorities decide, not the hash


async def test_with_no_primary_left_the_fallback_drains_the_lanes() -> None:
    scene = Scene("fallback", "helper")
    scene.add("dead", state="dead")
    scene.add("primary", draining=True)
    scene.peers.pop("primary")
    assert await scene.tend() == ["dead"]
    assert "helper" not in scene.serving.opened  # it has no lane of its own


async def test_under_the_pull_policy_no_lanes_are_opened() -> None:
    scene = Scene()
    scene.own_lanes = False
    scene.add("dead", state="dead")
    await scene.tend()
    assert scene.serving.opened == []


async def test_who_joins_on_another_host_ends_the_use_of_shared_memory_at_once() -> None:
    """The answer is kept, since it is asked for with each message."""
    mesh = Mesh(LinkOptions(), peers=lambda info, stage: scene.announcer.peers(info, stage))
    mesh.claims.host = "a" * 16
    scene = Scene(mesh=mesh)
    scene.add("me", host="a" * 16)
    scene.add("other", host="a" * 16)
    assert mesh.placement.at(INFO, 1).shared
    scene.peers.clear()
    assert mesh.placement.at(INFO, 1).shared  # kept
    scene.add("me", host="a" * 16)
    scene.add("far", host="b" * 16)
    scene.announcer.on_event(Event("joined", "far"))
    assert not mesh.placement.at(INFO, 1).shared
    scene.peers.pop("far")
    await asyncio.sleep(1.1 * NODE_PLACED_FOR)
    assert mesh.placement.at(INFO, 1).shared


async def test_a_fallback_covers_fast_mode_as_soon_as_the_last_primary_died() -> None:
    """At the news, not at the next look."""
    scene = Scene("fallback", "helper")
    scene.add("primary")
    fresh = scene.serving.fresh[1]
    announcer = scene.announcer
    task = asyncio.create_task(announcer._cover_until(asyncio.get_running_loop().time() + 60))
    await asyncio.sleep(0.05)
    assert not fresh.is_open
    scene.add("primary", state="dead")
    announcer.on_event(Event("died", "primary"))
    async with asyncio.timeout(10):
        while not fresh.is_open:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert scene.told.count("took-over") == 1
    scene.add("another")
    announcer.on_event(Event("joined", "another"))
    async with asyncio.timeout(10):
        while fresh.is_open:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert scene.told.count("gave-back") == 1
    task.cancel()


@pytest.mark.parametrize(
    ("event", "kept"),
    [
        (Event("updated", "other", "load/0123456789ab/0,memory"), True),
        (Event("updated", "other", "load/0123456789ab/0,draining"), False),
        (Event("updated", "other", "serves/0123456789ab"), False),
        (Event("suspected", "other"), False),
        (Event("died", "other"), False),
    ],
)
async def test_where_nodes_are_is_asked_again_at_any_news_but_of_how_busy_they_are(
    event: Event, kept: bool
) -> None:
    mesh = Mesh(LinkOptions(), peers=lambda info, stage: scene.announcer.peers(info, stage))
    mesh.claims.host = "a" * 16
    scene = Scene(mesh=mesh)
    scene.add("me", host="a" * 16)
    assert mesh.placement.at(INFO, 1).shared
    scene.peers.clear()
    scene.announcer.on_event(event)
    assert mesh.placement.at(INFO, 1).shared is kept


async def test_a_load_is_told_when_it_moves_or_could_not_be_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene()
    server = scene.serving.servers[0]
    server.waiting, server.queued, server.stats = 0, 1, StageStats()
    written: list[str] = []
    room = True

    def write(key: str, value: object) -> bool:
        written.append(key.partition("/")[0])
        return room

    monkeypatch.setattr(scene, "set", write)
    scene.announcer.announce()

    def told() -> list[str]:
        written.clear()
        scene.announcer._announce_load()
        return sorted(written)

    assert told() == ["load", "memory", "serves"]
    assert told() == []
    server.queued = 2
    assert told() == [], "by too little"
    server.queued = 40
    room = False
    assert "serves" in told()
    assert "serves" in told(), "there was no room"
    room = True
    assert told() == ["load", "serves"]
    assert told() == []
