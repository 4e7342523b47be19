"""The nodes of role `auto` as gossip tells of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from swarm.auto.advertised import fills_of, pace_of
from swarm.auto.links import link_of
from swarm.auto.slots import AutoNode, SlotClaim
from swarm.fleet.advertised import serving, stages_of
from swarm.fleet.priorities import PRIMARY
from swarm.fleet.warm_pool import ROLE as WARM
from swarm.gossip import PeerView

ROLE = "auto"


def auto_nodes(peers: Iterable[PeerView], model: str, version: str) -> list[AutoNode]:
    """The nodes of the role that may fill slots of a version. peers: the living nodes."""
    found = []
    for peer in peers:
        values = peer.values
        if values.get("role") != ROLE or values.get("draining") is True:
            continue
        claim, room = fills_of(values, model, version), values.get("room")
        found.append(
            AutoNode(
                peer.node,
                room if isinstance(room, int) else 0,
                pace_of(values, model, version),
                None if claim is None else SlotClaim(*claim),
                frozenset(stages_of(values, model, version)),
                str(values.get("host", "")),
                link_of(values),
            )
        )
    return found


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
