"""Where to cut so that the slowest stage is as fast as possible. Pure arithmetic."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from itertools import accumulate

# 1 Gbit/s, in bytes per millisecond: the link that a cut's bytes are priced at.
LINK_BYTES_PER_MS = 125_000.0


def balance(segment_ms: Sequence[float], send_ms: Sequence[float], stages: int) -> list[int]:
    """Choose `stages - 1` of the boundaries between segments.

    Boundary i lies after segment i and costs its sender `send_ms[i]`; there is one boundary less
    than segments. A stage takes the sum of its segments plus the boundary it sends over. Returns
    the chosen boundaries, ascending: they minimise the slowest stage's time, and among those the
    sum of squares, so that the other stages are even too. The first pass is PipeEdge's recurrence
    (arXiv 2110.14895) for equal devices: h[k][j] = min over i < j of max(h[k-1][i], time(i, j)).
    Raises ValueError when there are fewer segments than stages.
    """
    count = len(segment_ms)
    if len(send_ms) != max(0, count - 1):
        raise ValueError("one boundary between each two segments")
    if not 1 <= stages <= max(1, count):
        raise ValueError(f"{count} segments make at most {count} stages, not {stages}")
    before = [0.0, *accumulate(segment_ms)]
    send = [0.0, *send_ms, 0.0]

    def stage_ms(start: int, end: int) -> float:
        return before[end] - before[start] + send[end]

    slowest, _ = _best(count, stages, stage_ms, max)
    # A hair of room, because sums in another order round differently.
    limit = slowest * (1 + 1e-12)

    def squared(start: int, end: int) -> float:
        spent = stage_ms(start, end)
        return spent * spent if spent <= limit else math.inf

    return _best(count, stages, squared, operator.add)[1]


def _best(
    count: int,
    stages: int,
    cost: Callable[[int, int], float],
    join: Callable[[float, float], float],
) -> tuple[float, list[int]]:
    """The cheapest way to place segments [0, count) on `stages` stages, each at least one."""
    row = [cost(0, end) if end else math.inf for end in range(count + 1)]
    origins: list[list[int]] = []
    for placed in range(2, stages + 1):
        after, origin = [math.inf] * (count + 1), [placed - 1] * (count + 1)
        for end in range(placed, count + 1):
            after[end], origin[end] = min(
                (join(row[start], cost(start, end)), start) for start in range(placed - 1, end)
            )
        row = after
        origins.append(origin)
    cuts: list[int] = []
    end = count
    for origin in reversed(origins):
        end = origin[end]
        cuts.append(end - 1)
    return row[count], cuts[::-1]
