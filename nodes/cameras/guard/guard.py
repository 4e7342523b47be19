"""The guard of one camera and one version: it learns what is usual, then watches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from nodes.cameras.guard.statistics import Fitted, fit, pooled
from swarm.errors import InvalidArgument

# What a guard makes of a picture's distance: a pure decision.
#
# warming ──frames that differ──► watching ──too far, twice──► alarmed ──usual again──► watching
#
# Nothing is learned while alarmed: a guard that went on would take the strange for usual.


OOD = "ood"
OFF = "off"


class GuardAction(StrEnum):
    """What an edge does while it is alarmed."""

    FLAG = "flag"  # the result says so
    DROP = "drop"  # nothing of the frame leaves
    WHOLE = "whole"  # the gate skips nothing, and no lighter model's answer is taken
    REVIEW = "review"  # a person is asked, on `swarm.<mesh>.review.<name>`


@dataclass(frozen=True, slots=True)
class GuardRule:
    """warm_up: frames that differ, to be fitted to. alarm_after, clear_after: frames in a row that
    are too far, or usual, before the alarm changes. action: with a mask it is `drop` at least."""

    action: GuardAction = GuardAction.FLAG
    warm_up: int = 225
    alarm_after: int = 2
    clear_after: int = 5

    @classmethod
    def of(cls, text: str, action: str = "flag", warm_up: int = 225) -> GuardRule | None:
        """None for `off`. Raises `InvalidArgument`."""
        if text in ("", OFF):
            return None
        if text != OOD:
            raise InvalidArgument(f"--guard {text!r}: it is off or {OOD}")
        return cls(GuardAction(action), warm_up)


@dataclass(frozen=True, slots=True)
class GuardState:
    """far, usual: frames in a row of this kind."""

    is_alarmed: bool = False
    far: int = 0
    usual: int = 0


def decide(rule: GuardRule, state: GuardState, distance: float, threshold: float) -> GuardState:
    """After one more frame. A distance that is no number is too far."""
    if not distance <= threshold:
        far = state.far + 1
        alarmed = state.is_alarmed or far >= rule.alarm_after
        return replace(state, far=far, usual=0, is_alarmed=alarmed)
    usual = state.usual + 1
    alarmed = state.is_alarmed and usual < rule.clear_after
    return replace(state, far=0, usual=usual, is_alarmed=alarmed)


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
