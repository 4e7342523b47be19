"""One stage of a workload: an ONNX Runtime session on one thread, without spinning."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from bench.rivals.workload import Tensors, Workload, pack, unpack


class Stage:
    """Runs ``stage-<number>.onnx``; ``number`` counts from 1."""

    def __init__(self, workload: Workload, number: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        self.inputs = workload.inputs[number - 1]
        self.outputs = workload.outputs[number - 1]
        self.last = number == workload.stages
        self._names = [spec.name for spec in self.outputs]
        self._session = onnxruntime.InferenceSession(
            str(workload.directory / f"stage-{number}.onnx"),
            options,
            providers=["CPUExecutionProvider"],
        )

    @classmethod
    def load(cls, directory: Path | str, number: int) -> Stage:
        """The stage from its workload directory, after one run, so that its caches are warm."""
        stage = cls(Workload.load(directory), number)
        stage.run({spec.name: np.zeros(spec.shape, spec.dtype) for spec in stage.inputs})
        return stage

    def run(self, tensors: Tensors) -> Tensors:
        """Input tensors by name to output tensors by name."""
        return dict(zip(self._names, self._session.run(self._names, tensors), strict=True))

    def run_bytes(self, data: bytes | bytearray | memoryview) -> bytes | memoryview:
        """`run` on raw bytes, as `workload.pack` writes them: the form that contenders send."""
        return pack(self.run(unpack(data, self.inputs)), self.outputs)


RUNS_A_STAGE = 5
TIMING_TIMEOUT = 60.0
"""Seconds for all stages."""


def stage_times(directory: Path) -> list[float]:
    """The median of each stage's runs in milliseconds. Raises ``RuntimeError``."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(directory)],
        capture_output=True,
        text=True,
        timeout=TIMING_TIMEOUT,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the stages could not be timed: {done.stderr[-800:]}")
    times: list[float] = json.loads(done.stdout)
    return times


def _measure_here(directory: Path) -> list[float]:
    """The median of each stage's runs in milliseconds, measured in this process."""
    from bench.rivals.stage import Stage

    workload = Workload.load(directory)
    tensors = workload.input
    medians = []
    for number in range(1, workload.stages + 1):
        stage = Stage.load(directory, number)
        outputs, times = tensors, []
        for _ in range(RUNS_A_STAGE):
            started = time.perf_counter()
            outputs = stage.run(tensors)
            times.append(time.perf_counter() - started)
        tensors = outputs
        medians.append(round(1e3 * statistics.median(times), 4))
    return medians


if __name__ == "__main__":
    print(json.dumps(_measure_here(Path(sys.argv[1]))))
