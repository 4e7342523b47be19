"""The process of a floor: the model without any mesh, one request after another.

    python -m bench.cost.floor_process <pipeline folder> stages|whole <threads>

`stages` runs the shards in turn, exactly as the nodes load them; `whole` runs the unsplit model.
Each line on standard input is a number of requests; the answer is a line of JSON: `ends`
(system-wide monotonic seconds), `latencies` (seconds), `cpu` (seconds of this process), `wrong`
(why an answer was not the expected one, or null).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.cost.pipelines import EXPECTED_FILE, INPUT_FILE, Tensors
from bench.rivals.workload import WHOLE_FILE, close


def read(path: Path) -> Tensors:
    """All arrays of an .npz file."""
    with np.load(path) as arrays:
        return {name: arrays[name] for name in arrays.files}


def load(directory: Path, mode: str, threads: int) -> Callable[[Tensors], Tensors]:
    """The model as a function of its inputs."""
    if mode == "whole":
        from shards.runtimes.ort import make_session

        session = make_session((directory / WHOLE_FILE).read_bytes(), threads=threads)
        names = [output.name for output in session.get_outputs()]
        return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))
    from shards.manifest import read_dir
    from shards.runtimes.load import load_stage

    manifest, fetch = read_dir(directory)
    stages = [
        load_stage(manifest, shard.stage, fetch, threads=threads) for shard in manifest.shards
    ]

    def run(tensors: Tensors) -> Tensors:
        for stage in stages:
            tensors = stage.run(tensors)
        return tensors

    return run


def mismatch(outputs: Tensors, expected: Tensors) -> str | None:
    """Why these are not the expected outputs, or None."""
    for name, array in expected.items():
        if name not in outputs or not close(outputs[name], array):
            return f"{name} differs"
    return None


def measure(
    run: Callable[[Tensors], Tensors], inputs: Tensors, expected: Tensors, requests: int
) -> dict[str, Any]:
    """Run `requests` in turn and compare their answers afterwards; the line to report."""
    latencies, ends, answers = [], [], []
    cpu = time.process_time()
    previous = time.monotonic()
    for _ in range(requests):
        answers.append(run(inputs))
        now = time.monotonic()
        latencies.append(now - previous)
        ends.append(now)
        previous = now
    cpu = time.process_time() - cpu
    wrong = next((text for a in answers if (text := mismatch(a, expected))), None)
    return {"ends": ends, "latencies": latencies, "cpu": cpu, "wrong": wrong}


def main(arguments: list[str]) -> int:
    """Entry point; ends with its standard input."""
    from nodes.event_loop import die_with_parent

    if sys.platform == "linux":
        die_with_parent()
    directory, mode, threads = Path(arguments[0]), arguments[1], int(arguments[2])
    run = load(directory, mode, threads)
    inputs, expected = read(directory / INPUT_FILE), read(directory / EXPECTED_FILE)
    run(inputs)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(run, inputs, expected, int(line))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
