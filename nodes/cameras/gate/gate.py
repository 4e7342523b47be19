"""The gate of one camera: it keeps the last computed frame, reduced, and counts its verdicts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

import numpy as np

from nodes.cameras.frame import Frame
from nodes.cameras.gate.measures import MEASURES
from swarm.errors import InvalidArgument

# When a frame is computed: a pure decision of how much the picture has changed.
#
# A frame is compared with the last *computed* one: beside the frame before it, a slow drift is
# never a change. The figure of a change is the largest of all places of the picture, not a mean: a
# mean does not see a face that pops up in a corner.


# By measure: the threshold where none is given, and the largest that noise may raise it to.
# Measured on twelve clips (`swarm bench gate`).
THRESHOLDS = {
    "ssim-min": (0.3, 0.7),
    "block": (20.0, 30.0),
    "thumbnail": (20.0, 40.0),
    "phash": (2.0, 4.0),
}
OFF = "off"
NOISE_TIMES = 3.0  # the threshold is at least so many times what the camera's noise alone changes
NOISE_FRAMES = 32  # in one block of figures, of which the smallest counts
NOISE_BLOCKS = 8


@dataclass(frozen=True, slots=True)
class GateRule:
    """measure: a name of `THRESHOLDS`. threshold: a larger change is computed. most_skipped: frames
    in a row that may be skipped. oldest: seconds that a result may be repeated for."""

    measure: str = "ssim-min"
    threshold: float = THRESHOLDS["ssim-min"][0]
    most_skipped: int = 10
    oldest: float = 1.0

    @classmethod
    def of(cls, text: str, most_skipped: int = 10, oldest: float = 1.0) -> GateRule | None:
        """`MEASURE` or `MEASURE:THRESHOLD`; None for `off`. Raises `InvalidArgument`."""
        if text in ("", OFF):
            return None
        name, colon, number = text.partition(":")
        if name not in THRESHOLDS:
            known = ", ".join(THRESHOLDS)
            raise InvalidArgument(f"--gate {text!r}: it is off, or one of {known}, as ssim-min:0.3")
        try:
            threshold = float(number) if colon else THRESHOLDS[name][0]
        except ValueError:
            threshold = -1.0
        if not 0.0 <= threshold < inf:
            raise InvalidArgument(f"--gate {text!r}: behind the colon stands a number from 0")
        return cls(name, threshold, most_skipped, oldest)


class ResultValidity(NamedTuple):
    """What a result holds for: when one of these changes, the next frame is computed. version: of
    the model, with that of its weights. is_degraded: whether the last answer was. is_alarmed:
    whether a guard is."""

    version: str = ""
    is_degraded: bool = False
    is_alarmed: bool = False


@dataclass(frozen=True, slots=True)
class GateState:
    """Between two frames. skipped: frames since the last computed one. computed: when that was
    captured. standing: what it was computed under; None computes the next frame. minima, least,
    counted: the smallest change of each block of frames, and of the block that is not full."""

    skipped: int = 0
    computed: float = -inf
    standing: ResultValidity | None = None
    minima: tuple[float, ...] = ()
    least: float = inf
    counted: int = 0

    @property
    def noise(self) -> float:
        """What the picture changes by where nothing moves; 0.0 until a block is full."""
        return min(self.minima, default=0.0)


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """computes: whether the frame is computed; else the last result stands for it. why: `first`,
    `changed`, `same`, `most-skipped`, `oldest` or `standing`. figure: the change, None where there
    was nothing to compare with. skipped: frames since the computed one, this one among them."""

    computes: bool
    why: str
    figure: float | None
    threshold: float
    skipped: int


def decide(
    rule: GateRule, state: GateState, figure: float | None, standing: ResultValidity, now: float
) -> tuple[GateVerdict, GateState]:
    """Whether this frame is computed. figure: its change since the last computed frame, None where
    there is none or where it has another size. now: when the frame was captured, in seconds."""
    state = _with_figure(state, figure)
    _, most = THRESHOLDS[rule.measure]
    threshold = max(rule.threshold, min(NOISE_TIMES * state.noise, most))
    why = "same"
    if state.standing is None or figure is None:
        why = "first"
    elif standing != state.standing:
        why = "standing"
    elif not figure <= threshold:
        why = "changed"
    elif state.skipped >= rule.most_skipped:
        why = "most-skipped"
    elif not 0.0 <= now - state.computed <= rule.oldest:
        why = "oldest"
    if why != "same":
        after = replace(state, skipped=0, computed=now, standing=standing)
        return GateVerdict(True, why, figure, threshold, 0), after
    after = replace(state, skipped=state.skipped + 1)
    return GateVerdict(False, why, figure, threshold, after.skipped), after


def failed(state: GateState) -> GateState:
    """The computed frame has no result that could stand for others: the next frame is computed."""
    return replace(state, standing=None)


def _with_figure(state: GateState, figure: float | None) -> GateState:
    if figure is None or not figure < inf:
        return state
    least, counted = min(state.least, figure), state.counted + 1
    if counted < NOISE_FRAMES:
        return replace(state, least=least, counted=counted)
    return replace(state, minima=(*state.minima, least)[-NOISE_BLOCKS:], least=inf, counted=0)


class Gate:
    """`look` at each frame, in their order, before anything else is made of it. A frame that is not
    computed is never sent: the last result stands for it, with its age."""

    def __init__(self, rule: GateRule) -> None:
        self.rule = rule
        self.computed = 0
        self.skipped = 0
        self._measure = MEASURES[rule.measure]
        self._state = GateState()
        self._before: tuple[tuple[int, ...], np.ndarray] | None = None
        self._last: GateVerdict | None = None

    def look(self, frame: Frame, standing: ResultValidity) -> GateVerdict:
        """Whether the frame is computed; what follows then belongs to this frame."""
        shape = frame.image.shape
        reduced = self._measure.reduced(frame.image)
        figure = None
        if self._before is not None and self._before[0] == shape:
            figure = self._measure.change(self._before[1], reduced)
        verdict, self._state = decide(self.rule, self._state, figure, standing, frame.captured)
        if verdict.computes:
            self._before = shape, reduced
            self.computed += 1
        else:
            self.skipped += 1
        self._last = verdict
        return verdict

    def failed(self) -> None:
        """The frame that was computed has no result: the next one is computed."""
        self._state = failed(self._state)

    def status(self) -> dict[str, object]:
        """For status documents: frames by verdict since the start, and the figures of the last."""
        last = self._last
        return {
            "measure": self.rule.measure,
            "computed": self.computed,
            "skipped": self.skipped,
            "threshold": self.rule.threshold if last is None else round(last.threshold, 4),
            "noise": round(self._state.noise, 4),
        }
