"""How long each stage of a workload takes alone, measured in a process that ends with it.

The client of a mesh has no ONNX Runtime. Timing the stages in the client's own process would leave
a runtime in the memory that is counted.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench.rivals.workload import Workload

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
