"""The nodes of role `auto` as gossip tells of them, and the room that a version has on each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from swarm.auto.advertised import fills_of, pace_of, pools_of, uses_of
from swarm.auto.links import link_of
from swarm.auto.rooms import Allotment, RoomUse, allot, divided
from swarm.auto.slots import AutoNode, SlotClaim
from swarm.fleet.advertised import serving, stages_of
from swarm.fleet.priorities import PRIMARY
from swarm.fleet.warm_pool import ROLE as WARM
from swarm.gossip import PeerView

ROLE = "auto"


@dataclass(frozen=True)
class FleetRooms:
    """The memories of a fleet. pools: by name, what is granted of each. of_node: the pools that a
    node takes from."""

    pools: Mapping[str, Allotment]
    of_node: Mapping[str, Sequence[str]]

    def of(self, node: str) -> list[Allotment]:
        """The pools of a node."""
        return [self.pools[name] for name in self.of_node.get(node, ())]

    def lower(self, priority: float) -> list[int]:
        """The priorities below this one of models that take room, ascending."""
        uses = (use for pool in self.pools.values() for use in pool.uses)
        return sorted({u.priority for u in uses if u.priority < priority and (u.claimed or u.held)})

    def is_for_several(self, model: str) -> bool:
        """Whether nodes of another model take from a memory that nodes of this one take from."""
        sharers = ({use.model for use in pool.uses} for pool in self.pools.values())
        return any(model in names and len(names) > 1 for names in sharers)

    def beside(self, nodes: Iterable[str], model: str, priority: float) -> list[str]:
        """The other models that take room at these nodes and do not give way, as NAME@VERSION."""
        uses = (use for node in nodes for pool in self.of(node) for use in pool.uses)
        return sorted(
            {
                f"{use.model}@{use.version}"
                for use in uses
                if use.model != model and use.priority >= priority and (use.claimed or use.held)
            }
        )


def rooms_of(peers: Iterable[PeerView]) -> FleetRooms:
    """peers: the living nodes; those that leave hold their room until they have gone."""
    totals: dict[str, int] = {}
    uses: dict[str, list[RoomUse]] = {}
    of_node: dict[str, tuple[str, ...]] = {}
    for peer in peers:
        if peer.values.get("role") != ROLE:
            continue
        own = uses_of(peer.values, peer.node) or ()
        sizes = pools_of(peer.values, peer.node)
        of_node[peer.node] = tuple(name for name, _ in sizes)
        for name, size in sizes:
            totals[name] = min(size, totals.get(name, size))
            uses.setdefault(name, []).extend(own)
    pools = {name: allot(total, uses[name]) for name, total in totals.items()}
    return FleetRooms(pools, of_node)


def auto_nodes(
    peers: Sequence[PeerView],
    model: str,
    version: str,
    priority: int = 0,
    rooms: FleetRooms | None = None,
) -> list[AutoNode]:
    """The nodes of the role that may fill slots of a version. peers: the living nodes. priority: of
    the model. rooms: of these peers, where they are known already."""
    rooms = rooms or rooms_of(peers)
    found = []
    for peer in peers:
        values = peer.values
        if values.get("role") != ROLE or values.get("draining") is True:
            continue
        uses = uses_of(values, peer.node)
        if uses is not None and not any((u.model, u.version) == (model, version) for u in uses):
            continue  # it serves another model
        claim, who = fills_of(values, model, version), (peer.node, model, version)
        pools = rooms.of(peer.node)
        found.append(
            AutoNode(
                peer.node,
                min((pool.of(*who) + pool.left(priority) for pool in pools), default=0),
                pace_of(values, model, version),
                None if claim is None else SlotClaim(*claim),
                frozenset(stages_of(values, model, version)),
                str(values.get("host", "")),
                link_of(values),
                spare=min((pool.of(*who) + pool.left() for pool in pools), default=0),
                yields=any(pool.gives_way(*who) for pool in pools),
            )
        )
    return found


def sharing(
    nodes: Sequence[AutoNode],
    rooms: FleetRooms,
    version: tuple[str, str],
    down_to: float = -inf,
    whole: bool = False,
) -> list[AutoNode]:
    """The nodes with the rooms that a draft for them all may count on: what is left of a pool is
    divided among those that share it; or, `whole`, one of them has all of it, who holds most.
    down_to: models below this priority give way."""
    sharers: dict[str, list[AutoNode]] = {}
    for node in nodes:
        for name in rooms.of_node.get(node.node, ()):
            sharers.setdefault(name, []).append(node)
    room: dict[str, float] = {node.node: inf for node in nodes}
    for name, own in sharers.items():
        pool = rooms.pools[name]
        own = sorted(own, key=lambda node: (-pool.of(node.node, *version), node.node))
        takers = [node.node for node in own[: 1 if whole else None]]
        parts = divided(pool.left(down_to), takers)
        for node in own:
            share = pool.of(node.node, *version) + parts.get(node.node, 0)
            room[node.node] = min(room[node.node], share)
    return [replace(node, room=int(min(room[node.node], node.room))) for node in nodes]


def named_by_hand(peers: Sequence[PeerView], model: str, version: str, last: int) -> frozenset[int]:
    """The stages whose primaries were named by hand: no plan needs slots for them."""
    by_hand = [peer for peer in peers if peer.values.get("role") not in (ROLE, WARM)]
    return frozenset(
        stage
        for stage in range(1, last + 1)
        if any(
            peer.priority == PRIMARY and not peer.draining
            for peer in serving(by_hand, model, version, stage)
        )
    )


def views(
    nodes: Sequence[AutoNode],
    rooms: FleetRooms,
    version: tuple[str, str],
    priority: int,
    all_: bool,
) -> list[list[AutoNode]]:
    """The nodes with the rooms that drafts may count on, the best way first: without another
    model's giving way; then, `all_`, with those of the lowest priority giving way, and so on."""
    levels: list[float] = [-inf]
    if all_:
        levels += [low + 1 for low in rooms.lower(priority)]
    found = []
    for down_to in levels:
        found.append(sharing(nodes, rooms, version, down_to))
        whole = sharing(nodes, rooms, version, down_to, whole=True)
        if whole != found[-1]:
            found.append(whole)
    return found
