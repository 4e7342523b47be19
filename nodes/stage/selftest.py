"""A stage's self-test: known input must give the output that it gave at the start."""

from __future__ import annotations

import logging

import numpy as np

from nodes.stage.compute import StageModel
from shards.errors import ShardsError

log = logging.getLogger("swarm.stage")

Tensors = dict[str, np.ndarray]


class SelfTest:
    """Known input of one stage and the output that it gave."""

    def __init__(self, stage: int) -> None:
        self._stage = stage
        self._known: tuple[Tensors, Tensors] | None = None

    def learn(self, model: StageModel, inputs: Tensors) -> None:
        """Take the model's present output for `inputs` as the right one."""
        try:
            self._known = (inputs, model.run(inputs))
        except ShardsError as error:
            # Some models take no synthetic input, for example an index out of range.
            log.info("stage %d: no self-tests while serving: %s", self._stage, error)

    def passes(self, model: StageModel) -> bool:
        """Run the model on the known input: whether the output is the known one."""
        if self._known is None:
            return True
        inputs, expected = self._known
        try:
            outputs = model.run(inputs)
        except ShardsError as error:
            log.error("stage %d: the self-test failed: %s", self._stage, error)
            return False
        return all(np.array_equal(outputs[name], value) for name, value in expected.items())
