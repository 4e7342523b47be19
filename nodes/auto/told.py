"""The nodes of a mesh as their status documents tell of them: the devices of a plan. Pure.

Nodes of role auto tell their room, their link and how long stages take on them. Of a model that a
node has not measured, its times are estimated by its speed on versions that it has; of one that has
measured nothing, by the usual speed of the others. Stages with nodes named by hand stay on those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Any

from nodes.auto.searching import SERVER, site_links, site_of
from shards.auto.problem import Device, DeviceLink, Segment
from shards.errors import PlanError
from swarm.auto.auto_nodes import ROLE
from swarm.auto.links import NEAR, NodeLink
from swarm.auto.slots import AutoNode
from swarm.fleet.priorities import PRIMARY
from swarm.fleet.warm_pool import ROLE as WARM

REQUESTER = "(requester)"  # no node's id
FAR = 1e7  # milliseconds of a stage on a node that shall not have it

Version = tuple[str, str]  # model, version
Documents = Iterable[Mapping[str, Any]]  # status documents of living nodes, as they were read


@dataclass(frozen=True, slots=True)
class ToldNode:
    """A node of role auto. model: of which it serves versions. paces: microseconds of each stage,
    by the version that it has measured."""

    node: AutoNode
    model: str
    paces: Mapping[Version, tuple[int, ...]]

    def of(self, version: Version) -> AutoNode:
        """As gossip tells of it for one version."""
        node = self.node
        pace = self.paces.get(version, ())
        return AutoNode(node.node, node.room, pace, host=node.host, link=node.link)


@dataclass(frozen=True, slots=True)
class MeshDevices:
    """The devices of a `Problem`, its source among them, and links. how: by device, whether its
    times are `measured`, `estimated` (by its speed), `assumed` (of a usual speed), `by hand`."""

    devices: tuple[Device, ...]
    links: Mapping[tuple[str, str], DeviceLink]
    how: Mapping[str, str]


def auto_nodes_told(documents: Documents) -> list[ToldNode]:
    """The nodes of role auto that serve, and tell their room."""
    found = []
    for doc in documents:
        rows = doc.get("plans", [])
        room = max((row.get("room_bytes", 0) for row in rows), default=0)
        if doc.get("role") != ROLE or doc.get("state") != "ready" or not room:
            continue
        link = doc.get("link", {})
        figures = (int(link.get(name, 0)) for name in ("round_trip_us", "down", "up"))
        node = AutoNode(
            doc["node"], int(room), host=str(doc.get("host_id", "")), link=NodeLink(*figures)
        )
        paces = {
            (row["model"], row["version"]): tuple(int(us) for us in row["pace_us"])
            for row in rows
            if row.get("pace_us")
        }
        found.append(ToldNode(node, str(doc.get("model", "")), paces))
    return found


def by_hand(documents: Documents, version: Version) -> list[AutoNode]:
    """The nodes named by hand that are primaries of stages of a version, with these stages; its
    stage 0 aside."""
    found = []
    for doc in documents:
        if doc.get("role") in (ROLE, WARM) or doc.get("priority", PRIMARY) != PRIMARY:
            continue
        stages = frozenset(
            int(row["stage"])
            for row in doc.get("stages", ())
            if (row.get("model"), row.get("version")) == version and row["stage"] > 0
        )
        if stages and doc.get("state") == "ready":
            host = str(doc.get("host_id", ""))
            found.append(AutoNode(doc["node"], serves=stages, host=host))
    return found


def mesh_devices(
    segments: Sequence[Segment],
    nodes: Sequence[ToldNode],
    usual: Mapping[Version, Sequence[float]],
    version: Version | None = None,
    hand: Sequence[AutoNode] = (),
) -> MeshDevices:
    """The devices for a model's segments. usual: milliseconds of each stage of a version, as the
    splitter measured them. version: whose stages the segments are, None for those of a file. hand:
    see `by_hand`. Raises `PlanError` where no node tells."""
    if not nodes:
        raise PlanError(
            "no node of role auto tells its room and speed: start some (`swarm-node --role auto "
            "--model NAME`), or plan for a file of devices"
        )
    # One for each set of stages: its peers make it no faster for a request alone.
    named = {node.serves: node for node in sorted(hand, key=lambda each: each.node, reverse=True)}
    taken = frozenset[int]().union(*named)
    speeds = {told.node.node: _speed(told, usual) for told in nodes}
    known = [speed for speed in speeds.values() if speed]
    usual_speed = median(known) if known else 1.0
    devices, how = [Device(REQUESTER, memory=0.5, site=SERVER, session=0)], {}
    for told in nodes:
        node = told.node
        pace = told.paces.get(version, ()) if version else ()
        speed = speeds[node.node] or usual_speed
        is_measured = len(pace) == len(segments)
        times = [us / 1e3 for us in pace] if is_measured else [s.ms / speed for s in segments]
        for stage in taken:
            times[stage - 1] = FAR
        how[node.node] = (
            "measured" if is_measured else "estimated" if speeds[node.node] else "assumed"
        )
        session = 0 if version else None
        devices.append(_device(node, speed, times, session))
    for node in named.values():
        times = [s.ms if at in node.serves else FAR for at, s in enumerate(segments, 1)]
        how[node.node] = "by hand"
        devices.append(_device(node, 1.0, times, 0))
    near = all(told.node.link == NEAR for told in nodes)
    links = {} if near else site_links([*(told.node for told in nodes), *named.values()])
    return MeshDevices(tuple(devices), links, how)


def _device(node: AutoNode, speed: float, times: Sequence[float], session: int | None) -> Device:
    """session: bytes of a loaded stage, None for those that the planner knows."""
    memory = float(node.room) or inf
    more = {} if session is None else {"session": session}
    return Device(node.node, speed, memory, site_of(node), tuple(times), **more)


def _speed(told: ToldNode, usual: Mapping[Version, Sequence[float]]) -> float:
    """1.0: as fast as the machine that measured these versions; 0.0 where nothing is known."""
    spent = computed = 0.0
    for version, pace in told.paces.items():
        times = usual.get(version, ())
        if len(times) == len(pace):
            computed += sum(times)
            spent += sum(pace) / 1e3
    return computed / spent if spent else 0.0
