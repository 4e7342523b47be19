"""News of nodes: infection-style dissemination with a bounded number of tellings."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Container, Mapping

from swarm.gossip.state import NodeState
from swarm.gossip.wire import BoundedMessage

_MOST_RUMOURS = 1024  # news remembered at once; older news is left to the repair window


class Rumours:
    """Nodes whose state changed lately, least told first.

    Each message carries some; each is told `retransmit * ceil(log10(n + 1))` times and then
    dropped (SWIM section 4.1; memberlist's TransmitLimitedQueue).
    """

    def __init__(self, retransmit: int) -> None:
        self._retransmit = retransmit
        self._remaining: OrderedDict[str, int] = OrderedDict()

    def __contains__(self, node: str) -> bool:
        return node in self._remaining

    def __len__(self) -> int:
        return len(self._remaining)

    def heat(self, node: str, fleet: int) -> None:
        """`node` has changed, in a fleet of `fleet` nodes: tell it."""
        self._remaining[node] = self._retransmit * math.ceil(math.log10(fleet + 1))
        self._remaining.move_to_end(node, last=False)
        if len(self._remaining) > _MOST_RUMOURS:
            self._remaining.popitem()

    def drop(self, node: str) -> None:
        """`node` is forgotten."""
        self._remaining.pop(node, None)

    def tell(
        self,
        frame: BoundedMessage,
        nodes: Mapping[str, NodeState],
        known: Container[str],
        spare: int,
    ) -> None:
        """Add entries to the frame's digest, leaving `spare` bytes; `known` ones are skipped."""
        remaining = self._remaining
        sent, gone = [], []
        for node in remaining:
            if node in known:
                continue
            state = nodes.get(node)
            if state is None:
                gone.append(node)  # the table was full
                continue
            entry = state.entry
            if len(entry) + spare > frame.space or not frame.add("d", entry):
                break
            sent.append(node)
        for node in gone:
            del remaining[node]
        for node in sent:
            remaining[node] -= 1
            if remaining[node] <= 0:
                del remaining[node]
            else:
                remaining.move_to_end(node)
