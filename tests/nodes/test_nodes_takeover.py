"""A node takes over from the dead, and gives back to those that return."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from nodes.config import NodeConfig
from nodes.duties.takeover import ADAPT_EVERY, Takeover
from nodes.limits import lane_options
from swarm.fleet.advertised import StagePeer, serves_entries, serving, takes_entries
from swarm.flow.latency import LatencyWindow
from swarm.gossip import Event, PeerView
from swarm.model import ModelInfo, Spec, Stage
from swarm.routing.rendezvous import rendezvous
from swarm.subjects import Subjects

SPEC = (Spec("x", "FP32", (-1, 4)),)
INFO = ModelInfo("m", "1", SPEC, SPEC, (Stage(1, SPEC, SPEC, 1.0),))


class FakeQueue:
    """Fast mode's queue, open or closed."""

    def __init__(self) -> None:
        self.opened, self.closed = asyncio.Event(), asyncio.Event()

    def open(self) -> None:
        self.closed.clear()
        self.opened.set()

    async def close(self) -> None:
        self.opened.clear()
        self.closed.set()


class FakeLane:
    """A lane without a server; `set_ack_wait` is told of."""

    def __init__(self, ack_wait: float) -> None:
        self.ack_wait = ack_wait
        self.link_wait = 0.0
        self.holding = LatencyWindow()

    def suit(self, nodes: int) -> None: ...

    async def refresh(self) -> None: ...

    async def set_ack_wait(self, seconds: float) -> None:
        self.ack_wait = seconds


class FakeSource:
    """Opens lanes; each is found empty at once, and closed."""

    def __init__(self) -> None:
        self.fast = FakeQueue()
        self.lanes: dict[str, FakeLane | None] = {}
        self.opened: list[str] = []

    def open_lane(self, name: str) -> None:
        if name not in self.lanes:
            self.lanes[name] = None
            self.opened.append(name)

    async def close_idle_lanes(self, own: str) -> None:
        self.lanes = {name: lane for name, lane in self.lanes.items() if name == own}


class FakeServer:
    """A stage, with lanes and fast mode of its own."""

    def __init__(self) -> None:
        self.stage = 1
        self.info = INFO
        self.source = FakeSource()

    def take_longest_budget(self) -> float:
        return 0.0


class Scene:
    """One node's takeover, in a mesh that the test describes."""

    def __init__(self, role: str = "shard-1", node: str = "me") -> None:
        self.node = node
        self.placements_forgotten = 0
        self.watched: frozenset[str] = frozenset()
        self.peers: dict[str, PeerView] = {}
        self.told: list[str] = []
        self.served = SimpleNamespace(info=INFO, servers=[FakeServer()])
        self.own_lanes = True
        config = NodeConfig(role, "m@1")
        self.add(node, config.priority)
        placement = SimpleNamespace(forget=self._forget_placement)
        link = SimpleNamespace(domain="", may_call=lambda subject: False)
        connection: Any = SimpleNamespace(
            mesh=SimpleNamespace(placement=placement, link=link, subjects=Subjects("t")),
            config=config,
            membership=self,
            peers=self,
            router=SimpleNamespace(uses_own_lanes=lambda model: self.own_lanes),
            events=SimpleNamespace(tell=lambda kind, detail: self.told.append(kind)),
        )
        self.takeover = Takeover(
            connection,
            lambda: [self.served],  # type: ignore[list-item]
            clock=lambda: asyncio.get_running_loop().time(),
        )

    @property
    def source(self) -> FakeSource:
        return self.served.servers[0].source

    def add(self, node: str, priority: int = 0, state: Any = "alive", **more: Any) -> None:
        values = serves_entries([("m", "1", 1)]) | {"priority": priority} | more
        self.peers[node] = PeerView(node, state, 1, 1, values if state == "alive" else {})

    def view(self) -> dict[str, PeerView]:
        return self.peers

    def alive(self) -> list[PeerView]:
        return [peer for peer in self.peers.values() if peer.state == "alive"]

    def serving(self, info: ModelInfo, stage: int) -> list[StagePeer]:
        return serving(self.alive(), info.model, info.version, stage)

    def watch(self, nodes: frozenset[str]) -> None:
        self.watched = nodes

    def _forget_placement(self) -> None:
        self.placements_forgotten += 1

    async def tend(self, times: int = 1) -> list[str]:
        """The lanes of others that were opened meanwhile."""
        before = len(self.source.opened)
        for _ in range(times):
            await self.takeover.tend_lanes()
        return [name for name in self.source.opened[before:] if name != self.node]


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
    assert "helper" not in scene.source.opened  # it has no lane of its own


async def test_under_the_pull_policy_no_lanes_are_opened() -> None:
    scene = Scene()
    scene.own_lanes = False
    scene.add("dead", state="dead")
    await scene.tend()
    assert scene.source.opened == []


async def test_a_fallback_covers_fast_mode_as_soon_as_the_last_primary_died() -> None:
    """At the news, not at the next look, which is a minute away here."""
    scene = Scene("fallback", "helper")
    scene.add("primary")
    fast = scene.source.fast
    in_a_minute = asyncio.get_running_loop().time() + 60
    reacting = asyncio.create_task(scene.takeover.react_until(in_a_minute))
    scene.takeover.on_event(Event("joined", "primary"))
    await asyncio.sleep(0)
    assert not fast.opened.is_set()
    async with asyncio.timeout(10):
        scene.add("primary", state="dead")
        scene.takeover.on_event(Event("died", "primary"))
        await fast.opened.wait()
        assert scene.told.count("took-over") == 1
        scene.add("another")
        scene.takeover.on_event(Event("joined", "another"))
        await fast.closed.wait()
    assert scene.told.count("gave-back") == 1
    assert scene.watched == {"another"}
    reacting.cancel()


async def test_a_version_that_is_loaded_again_is_covered_again() -> None:
    scene = Scene("fallback", "helper")
    reacting = asyncio.create_task(
        scene.takeover.react_until(asyncio.get_running_loop().time() + 60)
    )
    async with asyncio.timeout(10):
        for _ in range(2):
            scene.takeover.on_event(Event("died", "primary"))
            await scene.source.fast.opened.wait()
            scene.served.servers = [FakeServer()]
    reacting.cancel()


async def test_a_standby_that_has_taken_a_stage_leaves_fast_mode_to_its_primaries() -> None:
    """Both queue groups get every message: it would be computed twice."""
    scene = Scene("standby", "spare")
    scene.add("spare", priority=3, **takes_entries([("m", "1", 1)]))
    scene.add("helper", priority=2)
    fast = scene.source.fast
    reacting = asyncio.create_task(
        scene.takeover.react_until(asyncio.get_running_loop().time() + 60)
    )
    async with asyncio.timeout(10):
        scene.takeover.on_event(Event("joined", "helper"))
        await fast.opened.wait()
        scene.add("primary")
        scene.takeover.on_event(Event("joined", "primary"))
        await fast.closed.wait()
    reacting.cancel()


@pytest.mark.parametrize(
    ("event", "kept"),
    [
        (Event("updated", "other", "load/0123456789ab/0,memory"), True),
        (Event("updated", "other", "load/0123456789ab/0,draining"), False),
        (Event("updated", "other", "serves/0123456789ab"), False),
        (Event("suspected", "other"), False),
        (Event("died", "other"), False),
        (Event("joined", "other"), False),
    ],
)
async def test_where_nodes_are_is_asked_again_at_any_news_but_of_how_busy_they_are(
    event: Event, kept: bool
) -> None:
    scene = Scene()
    scene.takeover.on_event(event)
    assert (scene.placements_forgotten == 0) is kept


@pytest.mark.simulated
async def test_one_primary_keeps_ack_wait_in_tune_and_gives_it_back_when_the_lane_is_idle() -> None:
    usual = lane_options(INFO, NodeConfig("shard-1", "m@1")).ack_wait
    lanes = []
    async with asyncio.TaskGroup() as group:
        tasks = []
        for node in ("me", "you"):
            scene = Scene(node=node)
            scene.add("me")
            scene.add("you")
            lane = FakeLane(usual)
            scene.source.lanes[node] = lane
            lanes.append(lane)
            tasks.append(group.create_task(scene.takeover.run()))
        for lane in lanes:
            for _ in range(100):
                lane.holding.add(0.2, asyncio.get_running_loop().time())
        await asyncio.sleep(2 * ADAPT_EVERY)
        assert [lane.ack_wait for lane in lanes] == [pytest.approx(0.8, rel=0.05), usual]
        await asyncio.sleep(120.0)
        assert [lane.ack_wait for lane in lanes] == [usual, usual]
        for task in tasks:
            task.cancel()
