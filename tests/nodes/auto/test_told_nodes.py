"""The devices of a plan for a mesh, from what its nodes tell of themselves."""

from __future__ import annotations

import json
from math import inf
from typing import Any

import pytest

from nodes.auto.told import FAR, REQUESTER, MeshDevices, auto_nodes_told, by_hand, mesh_devices
from shards.auto.plan import make_plan
from shards.auto.problem import Device, PlanningProblem, Segment
from shards.errors import PlanError
from swarm.fleet.documents import read_status

SEGMENTS = tuple(Segment(f"stage {n}", 2.0, 10_000_000, out=1000) for n in range(1, 5))
VERSION = ("m", "1")
USUAL = {VERSION: [2.0] * 4, ("other", "1"): [5.0, 5.0]}


def status(node: str, **more: Any) -> dict[str, Any]:
    """A status document of a node of role auto that has measured the version, as a reader has
    it."""
    doc = {"v": 1, "node": node, "role": "auto", "state": "ready", "host_id": f"host-{node}"}
    row = {"model": "m", "version": "1", "room_bytes": 90_000_000, "pace_us": [1000] * 4}
    doc |= {"model": "m", "plans": [row]} | more
    read, faults = read_status(json.dumps(doc).encode(), node)
    assert not faults.count, faults.named
    return read


def row(model: str, *pace: int, room: int = 90_000_000) -> dict[str, Any]:
    return {"model": model, "version": "1", "room_bytes": room, "pace_us": list(pace)}


def shard(node: str, stage: int, **more: Any) -> dict[str, Any]:
    served = {"stage": stage, "model": "m", "version": "1"}
    return status(node, **({"role": f"shard-{stage}", "plans": [], "stages": [served]} | more))


def devices_of(*docs: dict[str, Any]) -> MeshDevices:
    hand = by_hand(docs, VERSION)
    return mesh_devices(SEGMENTS, auto_nodes_told(docs), USUAL, VERSION, hand)


def named(found: MeshDevices) -> dict[str, Device]:
    return {device.name: device for device in found.devices}


def test_times_are_measured_or_estimated_by_a_node_s_speed_or_assumed_and_it_says_which() -> None:
    found = devices_of(
        status("a"),
        status("b", plans=[row("other", 10_000, 10_000)]),
        status("c", plans=[row("other", room=50_000_000)]),
    )
    devices = named(found)
    assert found.how == {"a": "measured", "b": "estimated", "c": "assumed"}
    assert devices["a"].times == (1.0,) * 4
    assert devices["b"].times == (4.0,) * 4, "half as fast as where the model was split"
    assert devices["c"].times == (2.0 / 1.25,) * 4, "the median of the others: 2.0 and 0.5"
    assert (devices["a"].memory, devices["c"].memory) == (90_000_000, 50_000_000)
    assert devices[REQUESTER].memory < 1


def test_a_node_that_has_not_told_its_room_or_leaves_is_no_device() -> None:
    told = auto_nodes_told([status("a", plans=[]), status("b", state="draining"), status("c")])
    assert [each.node.node for each in told] == ["c"]
    with pytest.raises(PlanError, match="no node of role auto tells"):
        devices_of(status("a", plans=[]), shard("s", 1))


def test_the_link_of_a_node_counts_for_what_comes_to_it_and_goes_from_it() -> None:
    slow = {"round_trip_us": 20_000, "down": 1_000_000, "up": 500_000}
    found = devices_of(status("a", link=slow), status("b"))
    problem = PlanningProblem(SEGMENTS, found.devices, links=found.links, source=REQUESTER)
    by_site = named(found)
    ways = [problem.link_of(by_site[a].site, by_site[b].site) for a, b in ("ab", "ba")]
    assert [way.rate for way in ways] == [500_000, 1_000_000]
    assert {way.rtt_ms for way in ways} == {20.0}
    assert devices_of(status("a"), status("b")).links == {}


def test_stages_of_nodes_named_by_hand_stay_there_and_the_others_are_planned_around_them() -> None:
    found = devices_of(status("a"), status("b"), shard("hand", 2), shard("peer", 2))
    assert found.how == {"a": "measured", "b": "measured", "hand": "by hand"}
    assert named(found)["hand"].memory == inf
    plan = make_plan(PlanningProblem(SEGMENTS, found.devices, links=found.links, source=REQUESTER))
    assert plan.prediction.latency_ms < FAR
    assert [(r.start, r.end) for r in plan.ranges] == [(0, 1), (1, 2), (2, 4)]
    assert plan.ranges[1].devices == ("hand",)


def test_a_fallback_and_a_node_of_another_version_were_not_named_for_a_stage() -> None:
    docs = [shard("f", 1, role="fallback", priority=2), shard("w", 1, role="standby")]
    assert by_hand(docs, VERSION) == []
    assert by_hand([shard("s", 1)], ("m", "2")) == []
