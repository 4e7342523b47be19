"""Where to cut so that the slowest stage is as fast as possible. Pure arithmetic."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from itertools import accumulate

# Bytes per millisecond: 1 Gbit/s, the link that a cut's bytes are counted as time on.
LINK_BYTES_PER_MS = 125_000.0
# The same between nodes of one host: between what a MiB adds to a hop that is handed over (0.6 ms)
# and to one by way of the server (3 ms).
ONE_HOST_BYTES_PER_MS = 1_000_000.0

# Sums in another order round differently, so a stage may be slower than the slowest by this part.
_ROUNDING = 1e-12


def balance(segment_ms: Sequence[float], send_ms: Sequence[float], stages: int) -> list[int]:
    """Choose `stages - 1` of the boundaries between segments, ascending.

    Boundary i lies after segment i, so there is one boundary less than there are segments. A stage
    takes the sum of its segments' `segment_ms`, plus the `send_ms` of the boundary at its end. The
    chosen boundaries make the slowest stage as fast as possible. Among equally good choices they
    make the sum of squares least, so that the other stages are even too. The first pass is
    PipeEdge's recurrence (arXiv 2110.14895) for equal devices:
    h[k][j] = min over i < j of max(h[k-1][i], time(i, j)). Raises ValueError when there are fewer
    segments than stages, or when the lengths do not fit.
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

    slowest, _ = _cheapest(count, stages, stage_ms, max)
    limit = slowest * (1 + _ROUNDING)

    def squared(start: int, end: int) -> float:
        spent = stage_ms(start, end)
        return spent * spent if spent <= limit else math.inf

    return _cheapest(count, stages, squared, operator.add)[1]


def _cheapest(
    count: int,
    stages: int,
    cost: Callable[[int, int], float],
    join: Callable[[float, float], float],
) -> tuple[float, list[int]]:
    """The least cost of placing segments [0, count) on `stages` stages, and its boundaries.

    Each stage has one segment at least. `cost` is that of one stage with the segments
    [start, end); `join` makes one cost of two.
    """
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
