"""Several contenders up at the same time, measured in turn: A B C, A B C, …

All of them stay up for all rounds, idle while another contender is measured. So a slice is short,
and whatever slows the machine for a while slows all of them.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.rivals.catalogue import contender_class
from bench.rivals.contract import Contender, Unavailable
from bench.rivals.processes import ONE_THREAD_EACH, REPOSITORY
from bench.rivals.workload import Workload

MOST_BYTES_KEPT = 4 << 20
"""Answers that are kept until they are compared. Each further answer takes new memory (measured:
with 32 MiB, 10 of the 20 ms of a 4 MiB request in a noisy hour)."""


@contextmanager
def side_by_side(
    workload: Workload, targets: Mapping[str, str]
) -> Iterator[tuple[dict[str, Contender], dict[str, str]]]:
    """Start `targets` (name -> a name of `CONTENDERS` or ``module:Class``).

    Yields the contenders that run, by name, and the reason for each that cannot run, by name. All
    are stopped at the end. Raises whatever a start raises, other than `Unavailable`.
    """
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
        stack.enter_context(_stage_environment())
        running: dict[str, Contender] = {}
        absent: dict[str, str] = {}
        for name, target in targets.items():
            folder = Path(scratch) / name
            folder.mkdir()
            try:
                contender = contender_class(target)(workload, folder)
                contender.check()
                stack.callback(contender.stop)
                contender.start()
                checked_latencies(contender, workload, 1)
            except Unavailable as error:
                absent[name] = str(error)
                continue
            running[name] = contender
        yield running, absent


def checked_latencies(contender: Contender, workload: Workload, requests: int) -> list[float]:
    """Latencies in seconds of sequential requests, each answer compared with the expected one.

    The comparison is not timed. Raises `WrongAnswer`.
    """
    latencies: list[float] = []
    chunk = max(1, MOST_BYTES_KEPT // max(1, workload.largest))
    while len(latencies) < requests:
        took, outputs = contender.sequential(workload.input, min(chunk, requests - len(latencies)))
        for output in outputs:
            workload.check(output)
        latencies += took
    return latencies


@contextmanager
def _stage_environment() -> Iterator[None]:
    """One thread per process, and `nodes` importable by the stages' processes."""
    paths: Sequence[str] = (str(REPOSITORY), os.environ.get("PYTHONPATH", ""))
    path = os.pathsep.join(path for path in paths if path)
    during = {**ONE_THREAD_EACH, "PYTHONPATH": path}
    before = {key: os.environ.get(key) for key in during}
    os.environ.update(during)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
