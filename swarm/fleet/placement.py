"""Which nodes of a stage are on this host: where shared memory and short cuts may be used."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from swarm.fleet.advertised import StagePeer
from swarm.model import ModelInfo
from swarm.priorities import PRIMARY
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

    A host of "" shares no memory with anybody.
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


class Placement:
    """A table of `Nearby` by stage. Each message asks for one, so each answer is kept for a while.

    host: the memory host id of this process, or a function that returns it; "" where no memory is
    shared. peers(info, stage, large): the nodes that serve a stage, as far as they are known; large
    as in `at`. known_for: seconds for which an answer is kept, unless `forget` comes before.
    clock: seconds, monotonic.
    """

    def __init__(
        self,
        host: Callable[[], str] | str,
        peers: Callable[[ModelInfo, int, bool], Iterable[StagePeer]],
        known_for: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host = host
        self._peers = peers
        self._known_for = known_for
        self._clock = clock
        # The moment until which an answer is kept, and the answer, by model, version, stage, large.
        self._table: dict[tuple[str, str, int, bool], tuple[float, Nearby]] = {}

    def at(self, info: ModelInfo, stage: int, large: bool = True) -> Nearby:
        """Which nodes of a stage are on this host.

        large: whether the answer is for a message whose tensors are large enough for shared memory.
        An answer may be out of date: a process that cannot read shared memory fetches the tensors.
        """
        key = (info.model, info.version, stage, large)
        now = self._clock()
        known = self._table.get(key)
        if known is not None and now < known[0]:
            return known[1]
        host = self._host if isinstance(self._host, str) else self._host()
        answer = nearby(self._peers(info, stage, large), host) if host else NOWHERE
        self._table[key] = (now + self._known_for, answer)
        return answer

    def forget(self) -> None:
        """Nodes came, went or changed: no answer is kept."""
        self._table.clear()
