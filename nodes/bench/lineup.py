"""Several contenders up at the same time, measured in turn: A B C, A B C, …

All of them stay up for all rounds, idle while another one is measured, so that a slice is short
and whatever slows the machine for a while slows all of them.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from nodes.bench.peers.base import Contender, Unavailable
from nodes.bench.peers.runner import REPOSITORY
from nodes.bench.peers.worker import ENVIRONMENT, resolve
from nodes.bench.peers.workload import Workload

_OWN = "nodes.bench.peers.contenders.swarm_mesh"
MESH = {"durable": f"{_OWN}:Swarm", "core": f"{_OWN}:SwarmCore"}
"""The mesh as a contender, by delivery."""
MESH_WIRE = {"durable": f"{_OWN}:SwarmWire", "core": f"{_OWN}:SwarmCoreWire"}
"""The same with nothing but the wire between processes."""

CHUNK_BYTES = 4 << 20
"""Answers that are kept until they are compared: more is new memory for each, which cost a request
of 4 MiB 10 of 20 ms in a noisy hour (32 MiB, until a batch had the memory of one before it)."""


class WrongAnswer(RuntimeError):
    """A contender's answer is not the expected one: its times mean nothing."""


@contextmanager
def lineup(
    workload: Workload, targets: Mapping[str, str]
) -> Iterator[tuple[dict[str, Contender], dict[str, str]]]:
    """Start `targets` (name -> contender or `module:Class`), yield those that run by name, and
    why the others do not. All are stopped at the end. Raises whatever a start raises, other than
    `Unavailable`.
    """
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
        stack.enter_context(_environment())
        running: dict[str, Contender] = {}
        absent: dict[str, str] = {}
        for name, target in targets.items():
            folder = Path(scratch) / name
            folder.mkdir()
            try:
                contender = resolve(target)(workload, folder)
                contender.check()
                stack.callback(contender.stop)
                contender.start()
                answers(contender, workload, 1)
            except Unavailable as error:
                absent[name] = str(error)
                continue
            running[name] = contender
        yield running, absent


def answers(contender: Contender, workload: Workload, requests: int) -> list[float]:
    """Latencies in seconds of sequential requests, each answer compared with the expected one.

    The comparison is not timed. Raises `WrongAnswer`.
    """
    latencies: list[float] = []
    chunk = max(1, CHUNK_BYTES // max(1, workload.largest))
    while len(latencies) < requests:
        took, outputs = contender.sequential(workload.input, min(chunk, requests - len(latencies)))
        for output in outputs:
            check(workload, output)
        latencies += took
    return latencies


def check(workload: Workload, output: Mapping[str, object]) -> None:
    """Raises `WrongAnswer` unless this is what the unsplit model gives."""
    mismatch = workload.mismatch(output)  # type: ignore[arg-type]
    if mismatch:
        raise WrongAnswer(f"wrong output: {mismatch}")


@contextmanager
def _environment() -> Iterator[None]:
    """One thread per process, and `nodes` importable by the stages' processes."""
    paths: Sequence[str] = (str(REPOSITORY), os.environ.get("PYTHONPATH", ""))
    wanted = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    before = {key: os.environ.get(key) for key in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
