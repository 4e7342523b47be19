"""Better cuts by the measured times of whole stages. Pure, but for the measuring.

The times of segments that are timed one by one do not add up to the time of a stage. ONNX Runtime
keeps a memory layout of its own from one convolution to the next, and converts it where a session
begins and ends (measured on a ResNet-50: a first stage of 12.9 ms took 17.5 ms in pieces). So the
stages of a first choice are timed as a whole, the times of their segments are scaled to this, and
the cuts are chosen again. This ends at a cut that was measured before, mostly after two or three
rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from shards.split.balance import balance

# A stage's measured time differs by some percent from one measurement to the next. A smaller gain
# than this part may be noise, so it is not taken.
LEAST_GAIN = 0.02
MOST_REFINING_ROUNDS = 5


def refine(
    segment_ms: Sequence[float],
    send_ms: Sequence[float],
    stages: int,
    measure: Callable[[Sequence[int]], Sequence[float] | None],
    rounds: int = MOST_REFINING_ROUNDS,
) -> list[int]:
    """The boundaries of the most even stages that were measured; see `balance` for boundaries.

    `measure` gives the times of the stages in ms for such boundaries, or None when there is no time
    for another measurement. It is called `rounds` times at most, and never twice for equal
    boundaries. Stages are compared by the slowest one's part of the whole: a shared machine that
    slows down for a while slows all of them. Raises ValueError as `balance` does, and all that
    `measure` raises.
    """
    segments = list(segment_ms)
    chosen = best = balance(segments, send_ms, stages)
    least = float("inf")
    measured: set[tuple[int, ...]] = set()
    while len(measured) < rounds and tuple(chosen) not in measured:
        measured.add(tuple(chosen))
        times = measure(chosen)
        if times is None:
            break
        sends = [*(send_ms[boundary] for boundary in chosen), 0.0]
        slowest = _slowest_part([time + send for time, send in zip(times, sends, strict=True)])
        if slowest < least:
            if best is not chosen and least - slowest < LEAST_GAIN * least:
                break
            best, least = chosen, slowest
        segments = _scaled(segments, chosen, times)
        chosen = balance(segments, send_ms, stages)
    return best


def _slowest_part(times: Sequence[float]) -> float:
    """The slowest stage's part of the time of all stages."""
    whole = sum(times)
    return max(times) / whole if whole > 0 else 1.0


def _scaled(
    segments: Sequence[float], chosen: Sequence[int], times: Sequence[float]
) -> list[float]:
    """The segments' times, scaled so that they add up to the measured times of the stages."""
    scaled: list[float] = []
    bounds = [0, *(boundary + 1 for boundary in chosen), len(segments)]
    for (start, end), took in zip(pairwise(bounds), times, strict=True):
        expected = sum(segments[start:end])
        factor = took / expected if expected > 0 else 1.0
        scaled += [segment * factor for segment in segments[start:end]]
    return scaled
