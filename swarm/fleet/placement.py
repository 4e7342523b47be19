"""Which nodes of a stage are on this host: where shared memory and short cuts may be used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from swarm.fleet.advertised import StagePeer
from swarm.priorities import PRIMARY
from swarm.subjects import ANY


@dataclass(frozen=True, slots=True)
class Near:
    """shared: whether every node that may get a message of the stage shares this process's memory.
    inboxes: of the node that gets what is put into a lane, by lane; only where that is known
    beforehand and the node is here."""

    shared: bool = False
    inboxes: Mapping[str, str] = field(default_factory=dict)


NOWHERE = Near()


def near(peers: Iterable[StagePeer], host: str) -> Near:
    """What the peers that serve a stage mean for a process on `host` (as of `host_id`)."""
    peers = list(peers)
    if not host or not peers:
        return NOWHERE
    here = [peer for peer in peers if peer.host == host]
    inboxes = {peer.node: peer.inbox for peer in here if peer.inbox and peer.node != ANY}
    # The shared lane's messages go to primaries first: with one, to that. Nobody else is guessed
    # at: who has just joined, or suspects a primary, knows fallbacks only, and is wrong.
    primaries = [peer for peer in peers if peer.priority == PRIMARY and not peer.draining]
    if len(primaries) == 1 and primaries[0].node in inboxes:
        inboxes[ANY] = inboxes[primaries[0].node]
    return Near(len(here) == len(peers), inboxes)
