"""A node whose runs last as long as on a device that the processor waits for.

    SWARM_BENCH_RUNS=0.02,0.02,0.02 python -m bench.cost.waiting_node <arguments of swarm-node>

Each run computes the stage, and sleeps for the rest of its time: seconds, by stage. A run of
several takes as long as they take one by one. So processors are idle, and what is measured is who
waits for whom, and not how an operating system shares two cores among five processes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from nodes.cli.node import main
from shards.runtimes.stage import StageRuntime

RUNS = "SWARM_BENCH_RUNS"


def _lasting(run: Callable[..., Any], requests: Callable[[Any], int]) -> Callable[..., Any]:
    runs = [float(each) for each in os.environ[RUNS].split(",")]

    def lasts(stage: StageRuntime, tensors: Any, cancel: Any = None) -> Any:
        began = time.perf_counter()
        seconds = runs[stage.shard.stage - 1]
        stage.compute_ms = seconds * 1e3
        result = run(stage, tensors, cancel)
        time.sleep(max(0.0, seconds * requests(tensors) - (time.perf_counter() - began)))
        return result

    return lasts


if __name__ == "__main__":
    own: Any = StageRuntime
    own.run, own.run_batch = _lasting(own.run, lambda tensors: 1), _lasting(own.run_batch, len)
    main()
