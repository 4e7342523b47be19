"""Which nodes of a stage are on this host: where shared memory and short cuts may be used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from swarm.fleet.advertised import StagePeer
from swarm.fleet.priorities import PRIMARY
from swarm.model import ModelInfo
from swarm.subjects import ANY


@dataclass(frozen=True, slots=True)
class Nearby:
    """The nodes of one stage that are on this host.

    shared: whether every node that may get a message of the stage shares this process's memory.
    inboxes: the inbox of the node that gets the messages of a lane, by lane. A lane is listed only
    where that node is known beforehand and is on this host.
    """

    shared: bool = False
    inboxes: Mapping[str, str] = field(default_factory=dict)


NOWHERE = Nearby()


def nearby(peers: Iterable[StagePeer], host: str) -> Nearby:
    """The nodes that a process on `host` (see `host_id`) has near it, of those that serve a stage.

    The host "" shares memory with no process.
    """
    peers = list(peers)
    if not host or not peers:
        return NOWHERE
    here = [peer for peer in peers if peer.host == host]
    inboxes = {peer.node: peer.inbox for peer in here if peer.inbox and peer.node != ANY}
    # The server gives the messages of the shared lane to primaries first. With a single primary
    # the receiver is known; otherwise nobody is guessed at. A process that has just joined, or that
    # suspects a primary, knows only fallbacks: its guess would be wrong.
    primaries = [peer for peer in peers if peer.priority == PRIMARY and not peer.draining]
    if len(primaries) == 1 and primaries[0].node in inboxes:
        inboxes[ANY] = inboxes[primaries[0].node]
    return Nearby(len(here) == len(peers), inboxes)


class Served(IntEnum):
    """Which nodes a version has in all its stages. A fallback alone answers late: it takes a
    stage's work only when no other node of the stage has."""

    NOWHERE = 0  # some stage has no node that is known
    BY_FALLBACKS = 1  # some stage has fallbacks or standbys only
    BY_PRIMARIES = 2


@dataclass(frozen=True, slots=True)
class Beyond:
    """The nodes of one stage behind the server: any of them may get a message.

    rate: bytes a second of the slowest link, 0.0 where all are fast or unknown. codecs: those that
    all of them read; None where no node is known.
    """

    rate: float = 0.0
    codecs: frozenset[str] | None = None


def beyond(peers: Iterable[StagePeer]) -> Beyond:
    """What the nodes that serve a stage have in common."""
    peers = list(peers)
    if not peers:
        return Beyond()
    rates = [peer.link_rate for peer in peers if peer.link_rate > 0]
    common = frozenset.intersection(*(peer.codecs for peer in peers))
    return Beyond(min(rates, default=0.0), common)


class Placement:
    """A table of `Nearby` by stage, made anew when nodes come, go or change.

    host: the memory host id of this process; "" where no memory is shared. peers(info, stage): the
    nodes that serve a stage, as far as they are known. forgotten: a number that grows with each
    `forget`; answers of another one are out of date.
    """

    def __init__(self, host: str, peers: Callable[[ModelInfo, int], Iterable[StagePeer]]) -> None:
        self.forgotten = 0
        self._host = host
        self._peers = peers
        self._table: dict[tuple[str, str, int], Nearby] = {}
        self._beyond: dict[tuple[str, str, int], Beyond] = {}

    def at(self, info: ModelInfo, stage: int) -> Nearby:
        """Which nodes of a stage are on this host. The answer may be out of date: a node that
        cannot read shared memory says so, and the request comes again over the wire."""
        key = (info.model, info.version, stage)
        answer = self._table.get(key)
        if answer is None:
            answer = nearby(self._peers(info, stage), self._host) if self._host else NOWHERE
            self._table[key] = answer
        return answer

    def beyond(self, info: ModelInfo, stage: int) -> Beyond:
        """What the nodes of a stage read, and how fast their links are."""
        key = (info.model, info.version, stage)
        answer = self._beyond.get(key)
        if answer is None:
            answer = self._beyond[key] = beyond(self._peers(info, stage))
        return answer

    def serving(self, info: ModelInfo, stage: int) -> frozenset[str]:
        """The ids of the nodes that are known to take a stage's work, on any host."""
        return frozenset(peer.node for peer in self._peers(info, stage) if not peer.draining)

    def served(self, info: ModelInfo) -> Served:
        """The nodes of a version, by those of its stage that has the least of them."""
        return min(
            (self._served(info, stage.stage) for stage in info.stages), default=Served.BY_PRIMARIES
        )

    def _served(self, info: ModelInfo, stage: int) -> Served:
        taking = [peer.priority for peer in self._peers(info, stage) if not peer.draining]
        if not taking:
            return Served.NOWHERE
        return Served.BY_PRIMARIES if PRIMARY in taking else Served.BY_FALLBACKS

    def forget(self) -> None:
        """Nodes came, went or changed: no answer is kept."""
        self.forgotten += 1
        self._table.clear()
        self._beyond.clear()
