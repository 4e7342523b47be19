"""Who is next where several flows wait for one server: each gets its share of the turns.

Start-time fair queueing (Goyal, Vin, Cheng, IEEE/ACM Trans. Networking 1997), with turns of equal
cost: a turn has a start tag, the later one of the tag that is being served and the end of the
flow's turn before; it ends 1 / weight later; the lowest tag is next. So a flow that asks for less
than its share goes before all that wait, and one that asks for more gets its share, and no less:
while a flow of weight w waits, each other flow of weight v has at most `most_before(v, w)` turns
before its next one, whatever comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil
from typing import Generic, TypeVar

Flow = TypeVar("Flow")
Item = TypeVar("Item")

MOST_KNOWN = 256  # flows; beyond them one that waits for nothing is forgotten, with its last turn


def most_before(others: float, own: float) -> int:
    """Turns of a flow with the weight `others` between two of a flow that waits, of weight
    `own`."""
    return ceil(others / own) + 1


@dataclass(slots=True)
class _Line(Generic[Item]):
    weight: float
    start: float  # tag of the next turn
    waiting: deque[Item] = field(default_factory=deque)


class FairShares(Generic[Flow, Item]):
    """Items by flow; first in, first out within each."""

    def __init__(self) -> None:
        self._lines: dict[Flow, _Line[Item]] = {}
        self._served = 0.0  # the tag of the last turn
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Item]:
        """All that waits, by flow."""
        for line in self._lines.values():
            yield from line.waiting

    @property
    def flows(self) -> int:
        """Flows whose last turn is known."""
        return len(self._lines)

    def push(self, flow: Flow, item: Item, weight: float = 1.0) -> None:
        """An item waits behind those of its flow. weight: of the flow, from now on."""
        line = self._lines.get(flow)
        if line is None:
            if len(self._lines) >= MOST_KNOWN:
                self._forget()
            line = self._lines[flow] = _Line(weight, self._served)
        elif not line.waiting:
            line.start = max(line.start, self._served)
        line.weight = weight
        line.waiting.append(item)
        self._size += 1

    def head(self) -> Item:
        """The item that is next. Raises `IndexError` where none waits."""
        return self._next().waiting[0]

    def pop(self) -> Item:
        """Take the item that is next. Raises `IndexError` where none waits."""
        line = self._next()
        self._served = line.start
        line.start += 1.0 / line.weight
        self._size -= 1
        return line.waiting.popleft()

    def remove(self, flow: Flow, item: Item) -> bool:
        """Let an item go without a turn; whether it waited."""
        line = self._lines.get(flow)
        if line is None or item not in line.waiting:
            return False
        line.waiting.remove(item)
        self._size -= 1
        return True

    def _next(self) -> _Line[Item]:
        lines = [line for line in self._lines.values() if line.waiting]
        if not lines:
            raise IndexError("nothing waits")
        # Of equal tags the flow of the larger weight, whose turns are the shorter ones.
        return min(lines, key=lambda line: (line.start, -line.weight))

    def _forget(self) -> None:
        for flow, line in list(self._lines.items()):
            if not line.waiting:
                del self._lines[flow]
