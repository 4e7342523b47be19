"""What a guard makes of a picture's distance: a pure decision.

    warming ──frames that differ──► watching ──too far, twice──► alarmed ──usual again──► watching

Nothing is learned while alarmed: a guard that went on would take the strange for usual.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from swarm.errors import InvalidArgument

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
