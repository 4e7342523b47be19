"""A node's own entry in the gossip, and whether others route to it by that entry."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nodes.config import NodeConfig
from nodes.connection.router import Router
from nodes.life.own_entry import OwnEntry, Utilisation, spent
from nodes.stage.counters import StageStats
from shards.runtimes import memory
from swarm.fleet.advertised import ANSWERS, candidates, holds_entry, identity_of, serving
from swarm.fleet.membership import Membership
from swarm.fleet.peers import Peers
from swarm.gossip import LAN, Gossip, GossipRequest, PeerView, Send
from swarm.link import Link, LinkOptions
from swarm.model import ModelInfo, Spec, Stage
from swarm.requests.request import Ask
from swarm.security.identity import Identity
from swarm.subjects import Subjects
from swarm.wire.messages import Features

SPEC = (Spec("x", "FP32", (-1, 4)),)
LONGEST = "m" * 128


def info(model: str, version: str, stages: int) -> ModelInfo:
    numbers = range(1, stages + 1)
    return ModelInfo(model, version, SPEC, SPEC, tuple(Stage(n, SPEC, SPEC, 1.0) for n in numbers))


def serve(served: ModelInfo) -> Any:
    """A serving of all stages of a version; each waits for as many requests as its number."""
    servers = [
        SimpleNamespace(
            info=served,
            stage=s.stage,
            stats=StageStats(),
            running_since=0.0,
            waiting=s.stage,
            queued=1,
            source=SimpleNamespace(link_wait=0.0, link_rate=0.0),
            model=SimpleNamespace(device="cpu"),
        )
        for s in served.stages
    ]
    return SimpleNamespace(
        info=served,
        servers=servers,
        stages=frozenset(server.stage for server in servers),
        devices=frozenset({"cpu"}),
        told=dict,
    )


class Node:
    """One node's membership and own entry, and another node that hears of it."""

    def __init__(
        self,
        *servings: Any,
        role: str = "shard-1",
        identity: Identity | None = None,
        weight: float = 1.0,
    ) -> None:
        self.servings = list(servings)
        link = Link(LinkOptions(servers=("nats://127.0.0.1:1",)))
        self.members = Membership(link, Subjects("test"), Peers("node"))
        self.entry = OwnEntry(
            SimpleNamespace(  # type: ignore[arg-type]
                mesh=SimpleNamespace(
                    lender=SimpleNamespace(host=""),
                    inbox="",
                    subjects=Subjects("test"),
                    link=link,
                ),
                config=NodeConfig(role, "m", weight=weight),
                membership=self.members,
                identity=identity,
            ),
            lambda: self.servings,
            refers=True,
        )
        other = Membership(link, Subjects("test"), Peers("other"))
        self.other: Gossip = other.gossip
        self._now = time.monotonic()
        self.members.gossip.add_peer("other")

    def tell(self) -> None:
        self.entry.announce()
        self.entry.write_load()

    def heard(self) -> dict[str, PeerView]:
        """The other node's picture of this one after a few rounds."""
        for _ in range(5):
            self._now += LAN.interval
            for effect in self.members.gossip.tick(self._now):
                if isinstance(effect, GossipRequest):
                    answer, _ = self.other.on_request(effect.payload, self._now)
                    assert answer is not None
                    for more in self.members.gossip.on_reply(effect.token, answer, self._now):
                        if isinstance(more, Send):
                            self.other.on_request(more.payload, self._now)
        return {"node": self.other.view(self._now)["node"]}

    @property
    def keys(self) -> set[str]:
        return {key for key in self.heard()["node"].values if "/" in key}

    @property
    def refused(self) -> int:
        counters = self.members.gossip.counters
        assert not {k for k in self.other.counters if k.startswith(("value", "too", "state"))}
        return counters["own_value_refused"]


def stages_of(peers: dict[str, PeerView]) -> set[tuple[str, str, int]]:
    return {
        (model, version, candidate.stage)
        for candidate in candidates(peers)
        for model, versions in candidate.versions.items()
        for version in versions
    }


@pytest.mark.parametrize("model", ["m", LONGEST])
async def test_a_node_with_sixty_stages_is_routed_to_for_each_of_them(model: str) -> None:
    served = info(model, "v" * len(model), 60)
    node = Node(serve(served))
    node.tell()
    router = Router(node.heard)
    router.apply(
        model, {"serve": [{"version": served.version, "share": 100}], "policy": "round-robin"}
    )
    ask = Ask(served, {"x": np.zeros((1, 4), np.float32)}, 0.0)
    assert router.pick_lane(ask, 1.0) == "node"
    for stage in range(2, 61):
        features = Features("r", model, served.version, stage, "_INBOX.x", 1_000_000, {})
        assert router.next_lane(served, stage, features) == "node"
    assert {c.stage: c.load for c in candidates(node.heard())} == {s: s for s in range(1, 61)}
    assert node.refused == 0


@pytest.mark.parametrize("weight", [1.0, 2.5])
async def test_routing_weighs_a_node_as_its_settings_say(weight: float) -> None:
    node = Node(serve(info("m", "1", 1)), weight=weight)
    node.tell()
    [candidate] = candidates(node.heard())
    assert candidate.weight == weight


async def test_a_fallback_node_with_sixty_stages_is_known_to_stand_by_for_each() -> None:
    served = info(LONGEST, "1", 60)
    node = Node(serve(served), role="fallback")
    node.tell()
    for stage in range(1, 61):
        [peer] = serving(node.heard().values(), LONGEST, "1", stage)
        assert (peer.node, peer.priority) == ("node", 2)
    assert candidates(node.heard()) == []  # the lane hands over to it, routing does not choose it


async def test_versions_that_come_and_go_take_their_keys_with_them() -> None:
    first, second = info("m", "1", 20), info("m", "2", 20)
    node = Node(serve(first))
    node.tell()
    before = node.keys
    assert stages_of(node.heard()) == {("m", "1", s) for s in range(1, 21)}
    node.servings.append(serve(second))
    node.tell()
    both = {("m", v, s) for v in "12" for s in range(1, 21)}
    assert stages_of(node.heard()) == both
    assert len(candidates(node.heard())) == 40
    node.servings.pop(0)
    node.tell()
    assert stages_of(node.heard()) == {("m", "2", s) for s in range(1, 21)}
    assert not node.keys & before
    node.servings[:] = [serve(first)]  # rolled back: the same keys again
    node.tell()
    assert node.keys == before
    assert stages_of(node.heard()) == {("m", "1", s) for s in range(1, 21)}
    node.servings.clear()
    node.tell()
    assert node.keys == set()
    assert candidates(node.heard()) == []
    assert serving(node.heard().values(), "m", "1", 1) == []


async def test_what_a_version_without_lanes_tells_of_its_stages_is_told() -> None:
    where = ("m", "1", 2)
    sessions = SimpleNamespace(
        info=info("m", "1", 2),
        servers=[],
        stages=frozenset({2}),
        devices=frozenset({"cuda"}),
        told=lambda: {where: holds_entry(where, 1, 8, False, b"marked")},
    )
    node = Node(sessions)
    node.tell()
    [told] = serving(node.heard().values(), "m", "1", 2)
    assert told.holds == (1, 8, False, b"marked")
    assert node.heard()["node"].values["device"] == "cuda"
    node.servings.clear()
    node.tell()
    assert node.keys == set()


async def test_a_version_that_still_loads_is_not_told() -> None:
    node = Node(serve(info("m", "1", 2)))
    node.tell()
    node.servings.append(serve(info("m", "2", 2)))
    node.entry.write_load()
    assert stages_of(node.heard()) == {("m", "1", 1), ("m", "1", 2)}
    node.entry.announce()
    assert len(stages_of(node.heard())) == 4


async def test_only_loads_that_moved_are_written_again() -> None:
    node = Node(serve(info("m", "1", 60)))
    node.tell()
    own = node.members.gossip
    before = own.view(0.0)["node"].version
    node.entry.write_load()
    assert own.view(0.0)["node"].version == before
    [served] = node.servings
    served.servers[0].waiting = 2  # by one: noise
    node.entry.write_load()
    assert own.view(0.0)["node"].version == before
    served.servers[0].waiting = 500
    node.entry.write_load()
    # One chunk of loads, and the free memory.
    assert own.view(0.0)["node"].version in (before + 1, before + 2)
    assert {c.stage: c.load for c in candidates(node.heard())}[1] == 500


async def test_stages_have_room_before_their_loads() -> None:
    """Loads that fill all of a node's gossip make way for another version."""
    node = Node(serve(info("m", "1", 250)))
    for server in node.servings[0].servers:
        server.stats.queue.add(100.0, time.monotonic())  # a number of five bytes
        server.stats.compute.add(100.0, time.monotonic())
    node.tell()
    told = node.heard()["node"].values
    assert node.refused > 0  # not all loads, but it is not silent
    assert len(stages_of(node.heard())) == 250
    wanted = {("m", "1", s) for s in range(1, 251)}
    for version in ("v" * 128, "w" * 128):
        node.servings.append(serve(info("m", version, 250)))
        node.tell()
        wanted |= {("m", version, s) for s in range(1, 251)}
        assert stages_of(node.heard()) == wanted
        for _ in range(3):
            node.entry.write_load()
        assert stages_of(node.heard()) == wanted
    assert any(key.startswith("load/") for key in told)


async def test_a_version_with_more_stages_than_can_be_told_is_refused_visibly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = Node(serve(info("m", "1", 2)), serve(info("m", "2", 300)))
    for _ in range(5):
        node.tell()
    assert stages_of(node.heard()) == {("m", "1", 1), ("m", "1", 2)}
    assert node.refused >= 5
    assert len([r for r in caplog.records if "not gossiped" in r.getMessage()]) == 1
    version = node.members.gossip.view(0.0)["node"].version
    node.tell()
    assert node.members.gossip.view(0.0)["node"].version == version  # nothing flaps


async def test_a_load_is_told_when_it_moves_or_could_not_be_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node(serve(info("m", "1", 1)))
    [server] = node.servings[0].servers
    written: list[str] = []
    room = True

    def write(key: str, value: object) -> bool:
        written.append(key.partition("/")[0])
        return room

    monkeypatch.setattr(node.members, "set", write)
    node.entry.announce()

    def told() -> list[str]:
        written.clear()
        node.entry.write_load()
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


def test_a_node_with_an_identity_proves_to_its_peers_which_key_is_its_own() -> None:
    identity = Identity(b"\1" * 32)
    node = Node(role="fallback", identity=identity)
    node.tell()
    assert identity_of(node.heard()["node"], "default") == identity.public
    assert identity_of(node.heard()["node"], "other") is None


def test_a_node_without_an_identity_gossips_none() -> None:
    node = Node(role="fallback")
    node.tell()
    assert "identity" not in node.heard()["node"].values


def test_the_free_memory_that_a_node_tells_is_what_its_control_group_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, use = tmp_path / "memory.max", tmp_path / "memory.current"
    limit.write_text("5000\n")
    use.write_text("1000\n")
    monkeypatch.setattr(memory, "CGROUPS", ((limit, use),))
    node = Node(serve(info("m", "1", 1)))
    node.tell()
    [candidate] = candidates(node.heard())
    assert candidate.memory_free_bytes == 4000


def test_a_node_whose_system_does_not_tell_its_free_memory_tells_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "CGROUPS", ())
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "absent")
    node = Node(serve(info("m", "1", 1)))
    node.tell()
    [candidate] = candidates(node.heard())
    assert candidate.memory_free_bytes is None


def test_a_node_that_computes_all_the_time_is_busy_however_long_its_runs_are() -> None:
    server, seen = SimpleNamespace(stats=StageStats(), running_since=0.0), Utilisation()
    shares = []
    for tick in range(1, 200):
        now = tick / 10
        server.stats.busy, server.running_since = now // 5 * 5, now // 5 * 5 or 1e-9
        shares.append(seen.observe({("m", "1", 1): spent(server, now)}, now)["m", "1", 1])  # type: ignore[arg-type]
    assert min(shares[1:]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("role", "answers"),
    [
        ("shard-1", ("m", True)),
        ("fallback", ("m", True)),
        ("edge", ("m", False)),
        ("gateway", ("*", True)),
        ("shard-2", None),
    ],
)
def test_a_node_tells_what_it_answers_and_whether_it_may_look_after_others(
    role: str, answers: object
) -> None:
    node = Node(role=role)
    node.tell()
    assert node.heard()["node"].values.get(ANSWERS) == answers
