"""The floor: all stages called one after another in the client's own process."""

from __future__ import annotations

from pathlib import Path

from bench.rivals.contract import Contender
from bench.rivals.stage import Stage
from bench.rivals.workload import Tensors, Workload


class InProcess(Contender):
    """No transport at all: what the stages themselves cost, on one thread."""

    packages = ("onnxruntime",)

    def __init__(self, workload: Workload, scratch: Path) -> None:
        super().__init__(workload, scratch)
        self._stages: list[Stage] = []

    def start(self) -> None:
        self._stages = [
            Stage.load(self.workload.directory, number + 1)
            for number in range(self.workload.stages)
        ]

    def request(self, inputs: Tensors) -> Tensors:
        for stage in self._stages:
            inputs = stage.run(inputs)
        return inputs

    def concurrent(self, inputs: Tensors, in_flight: int, total: int) -> list[Tensors]:
        """One thread has one request under way, whatever ``in_flight`` asks for."""
        return [self.request(inputs) for _ in range(total)]

    def stop(self) -> None:
        self._stages.clear()
