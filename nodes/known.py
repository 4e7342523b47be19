"""Whether a loaded shard still computes what it computed at the start."""

from __future__ import annotations

import logging

import numpy as np

from nodes.job import StageModel
from shards.errors import ShardsError

log = logging.getLogger("swarm.stage")


class KnownAnswer:
    """One stage's self-test while it serves."""

    def __init__(self, model: StageModel, stage: int) -> None:
        self._model = model
        self._stage = stage
        self._known: tuple[dict[str, np.ndarray], dict[str, np.ndarray]] | None = None

    def learn(self, inputs: dict[str, np.ndarray]) -> None:
        """Take the present answer to `inputs` as what later tests compare with."""
        try:
            self._known = (inputs, self._model.run(inputs))
        except ShardsError as error:
            # Some models take no synthetic input (an index out of range): no later self-test.
            log.info("stage %d: no self-tests while serving: %s", self._stage, error)

    def holds(self) -> bool:
        """Whether a run on known input still gives what it gave then; True if nothing is known."""
        if self._known is None:
            return True
        inputs, expected = self._known
        try:
            outputs = self._model.run(inputs)
        except ShardsError as error:
            log.error("stage %d: the self-test failed: %s", self._stage, error)
            return False
        return all(np.array_equal(outputs[name], value) for name, value in expected.items())
