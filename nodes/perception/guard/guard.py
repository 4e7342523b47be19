"""The guard of one camera and one version: it learns what is usual, then watches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nodes.perception.guard.rule import GuardRule, GuardState, decide
from nodes.perception.guard.statistics import Fitted, fit, pooled

APART = 0.2  # seconds between two frames of a warm-up: frames of one moment are no variety


@dataclass(frozen=True, slots=True)
class GuardVerdict:
    """state: `warming`, `watching` or `alarmed`. distance: over the threshold, so 1.0 is the most
    that is usual; None while warming. warm_up: share of the frames that are needed."""

    state: str
    distance: float | None
    warm_up: float = 1.0

    @property
    def is_alarmed(self) -> bool:
        return self.state == "alarmed"


class Guard:
    """`look` at the cut of each computed frame, before it leaves.

    fitted: of an earlier life, or of a file; None learns from this camera first, and watches
    nothing until then.
    """

    def __init__(self, rule: GuardRule, fitted: Fitted | None = None) -> None:
        self.rule = rule
        self.fitted = fitted
        self.frames = 0
        self.far = 0
        self._usual: list[np.ndarray] = []
        self._last_usual = -np.inf
        self._state = GuardState()
        self._verdict = GuardVerdict("warming" if fitted is None else "watching", None, 0.0)

    @property
    def verdict(self) -> GuardVerdict:
        """Of the last frame."""
        return self._verdict

    def look(self, features: np.ndarray, now: float) -> GuardVerdict:
        """features: one cut [1, channels, …] of one frame. now: when the frame was captured, in
        seconds. Raises `InvalidArgument` for a cut that the guard cannot judge."""
        means = pooled(features)
        self.frames += 1
        if self.fitted is None:
            self._verdict = self._warm(means, now)
            return self._verdict
        distance = self.fitted.distance(means)
        self._state = decide(self.rule, self._state, distance, self.fitted.threshold)
        self.far += not distance <= self.fitted.threshold
        share = distance / self.fitted.threshold if self.fitted.threshold > 0 else np.inf
        self._verdict = GuardVerdict(
            "alarmed" if self._state.is_alarmed else "watching", round(float(share), 4)
        )
        return self._verdict

    def _warm(self, means: np.ndarray, now: float) -> GuardVerdict:
        if now - self._last_usual >= APART and np.isfinite(means).all():
            self._usual.append(means)
            self._last_usual = now
        if len(self._usual) >= self.rule.warm_up:
            self.fitted = fit(np.stack(self._usual))
            self._usual.clear()
            return GuardVerdict("watching", None)
        return GuardVerdict("warming", None, len(self._usual) / self.rule.warm_up)

    def status(self) -> dict[str, object]:
        """For status documents."""
        verdict = self._verdict
        return {
            "state": verdict.state,
            "distance": verdict.distance,
            "warm_up": round(verdict.warm_up, 3),
            "frames": self.frames,
            "far": self.far,
        }
