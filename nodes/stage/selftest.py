"""A stage's self-test: known input must give the output that it gave at the start."""

from __future__ import annotations

import logging
from typing import NamedTuple

import numpy as np

from nodes.stage.compute import StageModel
from shards.errors import ShardsError

log = logging.getLogger("swarm.stage")

Tensors = dict[str, np.ndarray]


class Known(NamedTuple):
    """Input, and the output that this model gave for it."""

    model: StageModel
    inputs: Tensors
    outputs: Tensors


def learned(model: StageModel, inputs: Tensors) -> Known | None:
    """Run a model: its present output for `inputs` is the right one from now on. None where it does
    not run on them. Takes a run's time."""
    try:
        return Known(model, inputs, model.run(inputs))
    except ShardsError as error:
        # Some models take no synthetic input, for example an index out of range.
        log.warning("no self-tests while serving: %s", error)
        return None


class SelfTest:
    """What one stage's model gave for a known input. Read and replaced as one object: a test in a
    thread never compares one model with the output of another."""

    def __init__(self, stage: int, known: Known | None = None) -> None:
        self._stage = stage
        self._known = known

    def expect(self, known: Known | None) -> None:
        """Test this model from now on; None: none is tested."""
        self._known = known

    def of(self, model: StageModel) -> None:
        """Test this model from now on; it has to give the output of the one before."""
        if self._known is not None:
            self._known = self._known._replace(model=model)

    def passes(self) -> bool:
        """Run the model on the known input: whether the output is the known one."""
        known = self._known
        return known is None or self._passes(known)

    @property
    def is_known(self) -> bool:
        """Whether there is known input."""
        return self._known is not None

    def proves(self) -> bool:
        """Whether there is known input and the model passes on it."""
        known = self._known
        return known is not None and self._passes(known)

    def _passes(self, known: Known) -> bool:
        model, inputs, expected = known
        try:
            outputs = model.run(inputs)
        except ShardsError as error:
            log.error("stage %d: the self-test failed: %s", self._stage, error)
            return False
        return all(np.array_equal(outputs[name], value) for name, value in expected.items())
