"""The step size of the consensus: how far a node moves towards its neighbours each round.

With a compressed exchange a step that is too long blows up (notes of CHOCO-SGD, arXiv 1902.00340,
theorem 2: the safe step shrinks with the compression). The guard watches each node's own share of
the quantity that the paper proves to shrink,

    distance² = mean over neighbours |x_i - x̂_j|²  +  |x_i - x̂_i|²

Local updates alone raise it by no more than about their own lengths. What rises faster than that,
over a short or a long window, is the consensus itself: the step is halved. A pair of nodes uses the
shorter one of its two steps, so that what one takes the other gives.
"""

from __future__ import annotations

from collections import deque

WINDOWS = (8, 64)  # rounds over which growth is judged
TOLERATED = 1.25  # times that a distance may grow by chance
CALM_ROUNDS = 128  # without growth, after which the step is tried longer
LONGER = 1.25  # times
LEAST_STEP = 1e-3
FIRST_STEP = 4.0  # times the share of entries that travel each round


def first_step(share: float) -> float:
    """The step to begin with when a share (0..1) of the entries travels; 1 is plain gossip."""
    return min(1.0, FIRST_STEP * share)


class StepSize:
    """`step` is the present step size, 0..1; `halved` counts how often it was halved.

    start: the step to begin with, above 0.
    """

    def __init__(self, start: float) -> None:
        if not 0 < start <= 1:
            raise ValueError(f"a step size is above 0 and at most 1, not {start}")
        self.step = start
        self.halved = 0
        self._most = start
        self._calm = 0
        self._seen: deque[tuple[float, float]] = deque(maxlen=max(WINDOWS) + 1)

    def observe(self, distance: float, moved: float) -> bool:
        """Judge one round; returns whether the step was halved.

        distance: as above, after the round. moved: length of this node's local update in it.
        """
        self._seen.append((distance, moved))
        if any(self._grew(window) for window in WINDOWS):
            self._most = max(LEAST_STEP, 0.75 * self.step)
            self.step = max(LEAST_STEP, self.step / 2)
            self.halved += 1
            self.forget()
            return True
        self._calm += 1
        if self._calm >= CALM_ROUNDS:
            self._calm = 0
            self.step = min(self._most, self.step * LONGER)
        return False

    def _grew(self, window: int) -> bool:
        """Whether the distance grew over so many rounds by more than local updates and chance."""
        if len(self._seen) <= window:
            return False
        rounds = list(self._seen)[-window - 1 :]
        allowed = TOLERATED * rounds[0][0] + sum(moved for _, moved in rounds[1:])
        # Written so that a distance that is not finite counts as growth.
        return not rounds[-1][0] <= allowed

    def forget(self) -> None:
        """Judge anew: the neighbours, or what is learned, have changed."""
        self._seen.clear()
        self._calm = 0
