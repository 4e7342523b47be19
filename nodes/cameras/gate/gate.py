"""The gate of one camera: it keeps the last computed frame, reduced, and counts its verdicts."""

from __future__ import annotations

import numpy as np

from nodes.cameras.frame import Frame
from nodes.cameras.gate.measures import MEASURES
from nodes.cameras.gate.rule import GateRule, GateState, GateVerdict, ResultValidity, decide, failed


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
