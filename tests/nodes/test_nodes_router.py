"""Lanes by desired state and gossip."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from nodes.config import NodeConfig
from nodes.connection.router import OBSERVE_EVERY, Router
from swarm.errors import InvalidArgument
from swarm.fleet.advertised import load_entries, serves_entries, valid
from swarm.gossip import PeerView
from swarm.model import ModelInfo, Spec, Stage
from swarm.requests.request import Ask
from swarm.routing import RequestInfo, registry
from swarm.routing.basic import RoundRobin
from swarm.subjects import ANY
from swarm.wire.messages import Features

SPEC = (Spec("x", "FP32", (-1, 4)),)
INFO = ModelInfo("m", "1", SPEC, SPEC, (Stage(1, SPEC, SPEC, 1.0), Stage(2, SPEC, SPEC, 1.0)))
WHOLE = [{"version": "1", "share": 100}]


class Mesh:
    """The gossip's picture, a router on a clock that the test turns, and its events."""

    def __init__(self, *nodes: str, stage: int = 1) -> None:
        self.now = 1000.0  # seconds
        self.looks = 0  # of the router at the gossip
        self.peers: dict[str, PeerView] = {}
        self.told: list[tuple[str, dict[str, Any]]] = []
        for node in nodes:
            self.add(node, stage)
        self.router = Router(self._view, lambda: self.now)
        self.router.on_event.append(lambda kind, detail: self.told.append((kind, detail)))

    def _view(self) -> dict[str, PeerView]:
        self.looks += 1
        return self.peers

    def add(
        self,
        node: str,
        stage: int = 1,
        state: Any = "alive",
        model: str = "m",
        version: str = "1",
        **values: object,
    ) -> None:
        values = serves_entries([(model, version, stage)]) | {"priority": 0} | values
        self.peers[node] = PeerView(node, state, 1, 1, values)

    def serve(self, own_lanes: bool = True, **document: Any) -> None:
        self.router.apply("m", {"serve": WHOLE} | document, own_lanes)

    def lane(self, session: str = "", remaining: float = 1.0) -> str:
        return self.router.pick_lane(ask(session), remaining)


def ask(session: str = "") -> Ask:
    return Ask(INFO, {"x": np.zeros((1, 4), np.float32)}, 0.0, session=session)


def test_without_desired_state_the_shared_lane_is_used_and_no_own_lanes_are_needed() -> None:
    mesh = Mesh("a", "b")
    assert mesh.lane() == ANY
    assert not mesh.router.uses_own_lanes("m")


def test_the_pull_policy_needs_no_own_lanes() -> None:
    mesh = Mesh("a", "b")
    mesh.serve(policy="pull")
    assert mesh.lane() == ANY
    assert not mesh.router.uses_own_lanes("m")


def test_a_session_stays_on_its_node_and_sessions_spread() -> None:
    mesh = Mesh("a", "b", "c")
    mesh.serve(policy="consistent-hash")
    assert mesh.router.uses_own_lanes("m")
    chosen: Counter[str] = Counter()
    for number in range(60):
        lanes = set()
        for _ in range(5):
            one = ask(f"session-{number}")
            lanes.add(mesh.router.pick_lane(one, 1.0))
            mesh.router.ended(one, True)
        assert len(lanes) == 1
        chosen.update(lanes)
    assert set(chosen) == {"a", "b", "c"}


def test_nodes_that_must_not_serve_are_not_chosen() -> None:
    mesh = Mesh("good")
    mesh.add("dead", state="dead")
    mesh.add("left", state="left")
    mesh.add("suspect", state="suspect")
    mesh.add("draining", draining=True)
    mesh.add("standby", priority=1)
    mesh.add("fallback", priority=2)
    mesh.add("other-stage", stage=2)
    mesh.add("other-version", version="2")
    mesh.add("other-model", model="n")
    mesh.serve(policy="round-robin")
    assert {mesh.lane() for _ in range(40)} == {"good"}


def test_with_no_node_to_choose_the_shared_lane_takes_the_request() -> None:
    mesh = Mesh()
    mesh.serve(policy="round-robin")
    assert mesh.lane() == ANY
    mesh.add("a")
    mesh.now += OBSERVE_EVERY * 1.1
    assert mesh.lane() == "a"


def test_a_bad_document_is_refused_whole_and_the_old_one_stays() -> None:
    mesh = Mesh("a", "b")
    mesh.serve(policy="round-robin")
    mesh.router.apply("m", {"serve": WHOLE, "policy": "no-such-policy"})
    [(kind, detail)] = mesh.told
    assert (kind, detail["model"]) == ("rejected", "m")
    assert len(detail["detail"]) > 10
    assert mesh.router.uses_own_lanes("m")
    assert mesh.lane() in ("a", "b")


def test_a_document_concerns_the_model_it_is_kept_under() -> None:
    """A document that names another model than its own must not change that other model."""
    mesh = Mesh("a", "b")
    mesh.serve(policy="round-robin")
    mesh.router.apply("n", {"serve": WHOLE, "model": "m", "policy": "pull"})
    assert mesh.router.uses_own_lanes("m")
    assert mesh.lane() in ("a", "b")


def test_where_rights_name_no_own_lanes_the_shared_lane_is_used_and_the_reason_told() -> None:
    mesh = Mesh("a", "b")
    mesh.serve(own_lanes=False, policy="round-robin")
    assert not mesh.router.uses_own_lanes("m")
    assert mesh.lane() == ANY
    [(kind, detail)] = mesh.told
    assert kind == "rejected"
    assert "lanes of single nodes" in detail["detail"]


def test_back_to_pull_own_lanes_are_needed_no_more() -> None:
    mesh = Mesh("a")
    mesh.serve(policy="round-robin")
    mesh.serve(policy="pull")
    assert not mesh.router.uses_own_lanes("m")
    assert mesh.lane() == ANY


def test_each_pick_is_reported_done_once_whatever_becomes_of_the_request() -> None:
    """Seen by a policy that sends each request where the fewest are under way."""
    mesh = Mesh("a", "b")
    mesh.serve(policy="least-connections")
    asks = [ask() for _ in range(20)]
    for one in asks:
        mesh.router.pick_lane(one, 1.0)
    lanes = {one.id: mesh.router.pick_lane(one, 0.5) for one in asks}  # the first attempts are over
    with_b = Counter(lanes.values())["b"]
    assert 5 < with_b < 15
    assert mesh.router.under_way == 20
    ended = [one for one in asks if lanes[one.id] == "a"]
    for number, one in enumerate(ended):
        mesh.router.ended(one, number % 2 == 0)
        mesh.router.ended(one, True)  # said twice
    assert mesh.router.under_way == with_b
    chosen = [mesh.lane() for _ in range(with_b + 10)]
    assert set(chosen[:with_b]) == {"a"}, "until it has as many under way as b"
    assert Counter(chosen[with_b:]) == {"a": 5, "b": 5}


def test_a_request_that_changes_over_to_the_shared_lane_leaves_nothing_behind() -> None:
    mesh = Mesh("a")
    mesh.serve(policy="round-robin")
    one = ask()
    assert mesh.router.pick_lane(one, 1.0) == "a"
    assert mesh.router.under_way == 1
    mesh.peers.clear()
    mesh.now += OBSERVE_EVERY * 1.1
    assert mesh.router.pick_lane(one, 0.5) == ANY
    mesh.router.ended(one, False)
    assert mesh.router.under_way == 0


def forwarded(number: int, session: str = "") -> Features:
    """On its way from stage 1 to stage 2."""
    tensors = {"x": np.zeros((1, 4), np.float32)}
    name = f"r{number}"
    return Features(name, "m", "1", 2, "_INBOX.x", 1_000_000, tensors, session=session)


def test_a_stage_routes_to_the_next_and_keeps_sessions_together() -> None:
    mesh = Mesh("a", "b", "c", stage=2)
    mesh.serve(policy="consistent-hash")
    seen = set()
    for number in range(50):
        seen.add(mesh.router.next_lane(INFO, 2, forwarded(number, "the-one")))
        mesh.now += OBSERVE_EVERY
    assert len(seen) == 1, "a node that seemed to have fifty under way would be passed over"
    assert seen < {"a", "b", "c"}
    assert mesh.router.under_way == 0


@pytest.mark.parametrize("policy", ["adaptive", "weighted-least-pending", "power-of-two"])
@pytest.mark.parametrize("known", [False, True])
def test_a_stage_shares_its_requests_between_equal_nodes_of_the_next(
    policy: str, known: bool
) -> None:
    """It does not see how long they take: taken for no time at all, the first choice wins all."""
    mesh = Mesh("a", "b", stage=2)
    if known:  # that a run takes 2 ms
        for peer in mesh.peers.values():
            load = load_entries({("m", "1", 2): [0, 0, *[2000] * 6]})
            mesh.add(peer.node, 2, **load)
    mesh.serve(policy=policy)
    chosen: Counter[str] = Counter()
    for number in range(2000):
        chosen[mesh.router.next_lane(INFO, 2, forwarded(number))] += 1
        mesh.now += 0.001
    assert set(chosen) == {"a", "b"}
    assert min(chosen.values()) > 800


def test_a_stage_counts_a_forwarded_request_as_under_way_no_longer_than_its_budget() -> None:
    mesh = Mesh("a", "b", stage=2)
    slow = load_entries({("m", "1", 2): [0, 0, *[60_000_000] * 6]})  # a minute
    mesh.add("a", 2, **slow)
    mesh.add("b", 2, **slow)
    mesh.serve(policy="least-connections")
    first = {mesh.router.next_lane(INFO, 2, forwarded(number)) for number in range(2)}
    assert first == {"a", "b"}, "the second one goes where nothing is under way"
    mesh.now += 1.0  # the budget of both
    lanes = Counter(mesh.router.next_lane(INFO, 2, forwarded(2)) for _ in range(2))
    assert lanes == {"a": 1, "b": 1}


def test_a_policy_is_told_how_large_a_request_is(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    class Noting(RoundRobin):
        def sent(self, node: str, request: RequestInfo, now: float) -> None:
            sizes.append(request.features_bytes)
            super().sent(node, request, now)

    monkeypatch.setitem(registry.BUILT_IN, "noting", Noting)
    mesh = Mesh("a")
    mesh.add("b", 2)
    mesh.serve(policy="noting")
    assert (mesh.lane(), mesh.router.next_lane(INFO, 2, forwarded(1))) == ("a", "b")
    assert sizes == [16, 16]


def test_the_pull_policy_keeps_to_nodes_that_have_the_memory_and_the_device_asked_for() -> None:
    """Of a shared lane, a node that has neither could take the request."""
    mesh = Mesh()
    mesh.add("small", memory=1 << 20, device="cuda")
    mesh.add("slow", memory=1 << 30, device="cpu")
    mesh.add("right", memory=1 << 30, device="cuda")
    mesh.serve(policy="pull", memory_bytes=1 << 25, device="cuda")
    assert mesh.router.uses_own_lanes("m")
    assert {mesh.lane() for _ in range(20)} == {"right"}
    mesh.serve(policy="pull")
    assert not mesh.router.uses_own_lanes("m")
    assert mesh.lane() == ANY


def test_a_node_gets_its_share_by_the_weight_that_it_tells() -> None:
    mesh = Mesh("light")
    mesh.add("heavy", weight=3)
    mesh.add("absurd", weight=1e9)  # not taken by gossip; a hostile one counts as any other
    mesh.serve(policy="weighted-least-pending")
    chosen = Counter(mesh.lane() for _ in range(1000))
    assert chosen["heavy"] == pytest.approx(600, abs=20)
    assert chosen["light"] == pytest.approx(200, abs=20)
    assert all(valid("weight", value) for value in (3, 0.5))
    assert not any(valid("weight", value) for value in (0, -1, 1e9, "2", True, float("nan"), None))


def test_a_weight_out_of_range_is_refused() -> None:
    assert NodeConfig("shard-1", "m", weight=2.5).weight == 2.5
    for weight in (0.0, -1.0, 1e9, float("nan")):
        with pytest.raises(InvalidArgument, match="--weight"):
            NodeConfig("shard-1", "m", weight=weight)


def test_gossip_is_read_at_most_ten_times_a_second() -> None:
    mesh = Mesh("a")
    mesh.serve(policy="round-robin")
    for _ in range(500):
        mesh.lane()
        mesh.now += 0.01
    assert 40 <= mesh.looks <= 51
