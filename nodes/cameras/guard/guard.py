"""The guard of one camera and one version: it learns what is usual, then watches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nodes.cameras.guard.rule import GuardRule, GuardState, decide
from nodes.cameras.guard.statistics import Fitted, fit, pooled

APART = 0.2  # seconds between two frames that are learned: those of one moment are no variety
MOST_TOLD = 1e6  # thresholds; a distance without an end is no JSON
FOLLOWED = 16  # usual frames that are learned together


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

    @property
    def is_far(self) -> bool:
        """Whether this very frame is beyond what is usual; an alarm needs some in a row."""
        return self.distance is not None and self.distance > 1


class CutGuard:
    """`look` at the cut of each computed frame, before it leaves. What is usual is followed as it
    changes slowly, and so is what somebody changes slowly on purpose.

    fitted: of an earlier life, or of a file; None learns from this camera first, and watches
    nothing until then.
    """

    def __init__(self, rule: GuardRule, fitted: Fitted | None = None) -> None:
        self.rule = rule
        self.fitted = fitted
        self.frames = 0
        self.far = 0
        self._usual: list[np.ndarray] = []
        self._last_usual = -np.inf  # seconds
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
        distance, threshold = self.fitted.distance(means), self.fitted.threshold
        self._state = decide(self.rule, self._state, distance, threshold)
        is_far = not distance <= threshold
        self.far += is_far
        if self._state.is_alarmed:
            self._usual.clear()  # what came before an alarm may have led to it
        elif not is_far:
            self._follow(means, now)
        share = distance / threshold if threshold > 0 else np.inf
        state = "alarmed" if self._state.is_alarmed else "watching"
        self._verdict = GuardVerdict(state, round(float(min(share, MOST_TOLD)), 4))
        return self._verdict

    def _warm(self, means: np.ndarray, now: float) -> GuardVerdict:
        if np.isfinite(means).all():
            self._keep(means, now)
        if len(self._usual) >= self.rule.warm_up:
            self.fitted = fit(np.stack(self._usual))
            self._usual.clear()
            return GuardVerdict("watching", None)
        return GuardVerdict("warming", None, len(self._usual) / self.rule.warm_up)

    def _follow(self, means: np.ndarray, now: float) -> None:
        self._keep(means, now)
        if len(self._usual) >= FOLLOWED and self.fitted is not None:
            self.fitted = self.fitted.following(np.stack(self._usual))
            self._usual.clear()

    def _keep(self, means: np.ndarray, now: float) -> None:
        if now - self._last_usual >= APART:
            self._usual.append(means)
            self._last_usual = now

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
