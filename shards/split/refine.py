"""Where to cut, once more: by the times of the stages that a first choice makes.

Segments that are timed one by one do not add up to a stage. ONNX Runtime keeps a layout of its own
from one convolution to the next, and converts where a session begins and ends: of a ResNet-50 the
first stage took 12.9 ms whole and 17.5 in pieces, and the slowest of three a fifth more than the
mean. So the pieces of a stage are scaled by what the whole of it took, and balanced again, until
that leads to a cut that was measured before (as a rule after two or three).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from shards.split.balance import balance

# A stage's measured time differs by some percent from time to time: what promises less is noise.
WORTH = 0.02
ROUNDS = 5


def refine(
    segment_ms: Sequence[float],
    send_ms: Sequence[float],
    stages: int,
    measure: Callable[[Sequence[int]], Sequence[float] | None],
    rounds: int = ROUNDS,
) -> list[int]:
    """The boundaries, as `balance` gives them, of the most even stages that were measured.

    measure: the stages' times in ms for such boundaries, or None: no time is left to look any
    further. It is called `rounds` times at most, and never twice for the same. How even they are
    is judged by the slowest stage's part of the whole, since a shared machine slows down all of
    them at times. Raises ValueError as `balance` does, and whatever `measure` does.
    """
    segments = list(segment_ms)
    chosen = best = balance(segments, send_ms, stages)
    least = float("inf")
    seen: set[tuple[int, ...]] = set()
    while len(seen) < rounds and tuple(chosen) not in seen:
        seen.add(tuple(chosen))
        times = measure(chosen)
        if times is None:
            break
        sends = [*(send_ms[at] for at in chosen), 0.0]
        uneven = _uneven([time + send for time, send in zip(times, sends, strict=True)])
        if uneven < least:
            if best is not chosen and least - uneven < WORTH * least:
                break
            best, least = chosen, uneven
        segments = _scaled(segments, chosen, times)
        chosen = balance(segments, send_ms, stages)
    return best


def _uneven(times: Sequence[float]) -> float:
    """The slowest one's part of the whole."""
    whole = sum(times)
    return max(times) / whole if whole > 0 else 1.0


def _scaled(
    segments: Sequence[float], chosen: Sequence[int], times: Sequence[float]
) -> list[float]:
    """The segments' times with the sums that the stages took."""
    scaled: list[float] = []
    bounds = [0, *(at + 1 for at in chosen), len(segments)]
    for (start, end), took in zip(pairwise(bounds), times, strict=True):
        expected = sum(segments[start:end])
        factor = took / expected if expected > 0 else 1.0
        scaled += [segment * factor for segment in segments[start:end]]
    return scaled
