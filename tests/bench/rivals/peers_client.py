"""The client process: ``python -m bench.rivals.peers_client <contender> <workload> <params>``.

``contender`` is a name of ``catalogue.CONTENDERS`` or ``module:Class``; ``params`` is the JSON of a
:class:`~bench.rivals.peers_client.Load`. The client prints one JSON row on standard output; the
output of the contender's libraries goes to standard error.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from bench.report.figure import percentile
from bench.rivals.catalogue import contender_class
from bench.rivals.contract import Contender, Unavailable
from bench.rivals.processes import ONE_THREAD_EACH, become_subreaper, descendants, kill, read_usage
from bench.rivals.workload import Tensors, Workload

Row = dict[str, Any]


@dataclass(frozen=True)
class Load:
    """Numbers of requests: to warm up, one at a time, and ``in_flight`` at a time."""

    warmup: int = 30
    sequential: int = 300
    concurrent: int = 1000
    in_flight: int | None = None
    """``None``: the workload's own number."""


LOAD_BY_KIND: dict[str, Load] = {
    "tiny": Load(100, 1000, 4000),
    "large": Load(20, 100, 200),
    "resnet50": Load(16, 50, 200),
}
"""The load of each kind of workload."""


def measure(contender: Contender, workload: Workload, load: Load) -> Row:
    """Start, check, measure and stop a contender.

    The row's ``status`` is ``ok``, ``unavailable`` or ``failed``; the last two carry a ``reason``.
    An answer that differs from the expected one makes the whole row ``failed``. Trouble while
    stopping leaves the measurement standing and is reported as ``stop_reason``.
    """
    try:
        contender.check()
        row: Row = {"status": "ok", **_measure(contender, workload, load)}
    except Unavailable as error:
        row = {"status": "unavailable", "reason": str(error)}
    except Exception as error:
        traceback.print_exc()
        row = {"status": "failed", "reason": _reason(error)}
    finally:
        stopped = _stop(contender)
    return row if stopped is None else {**row, "stop_reason": stopped}


def _stop(contender: Contender) -> str | None:
    """Stop a contender; the reason why that failed, or ``None``."""
    try:
        contender.stop()
    except Exception as error:
        traceback.print_exc()
        return _reason(error)
    return None


def _measure(contender: Contender, workload: Workload, load: Load) -> Row:
    in_flight = load.in_flight or workload.in_flight
    inputs = workload.input
    started = time.perf_counter()
    contender.start()
    _verify(workload, [contender.request(inputs)])
    ready = time.perf_counter() - started
    _verify(workload, contender.concurrent(inputs, in_flight, load.warmup))
    _verify(workload, contender.sequential(inputs, load.warmup)[1])

    latencies, answers = contender.sequential(inputs, load.sequential)
    verified = _verify(workload, answers)
    before = read_usage()
    started = time.perf_counter()
    answers = contender.concurrent(inputs, in_flight, load.concurrent)
    elapsed = time.perf_counter() - started
    after = read_usage()
    if len(answers) != load.concurrent:
        raise ValueError(f"{len(answers)} answers to {load.concurrent} requests")
    verified += _verify(workload, answers)
    return {
        "ready_s": ready,
        "p50_ms": 1e3 * statistics.median(latencies),
        "p99_ms": 1e3 * percentile(latencies, 0.99),
        "in_flight": in_flight,
        "requests_per_s": load.concurrent / elapsed,
        "cpu_ms_per_request": 1e3 * after.cpu_since(before) / load.concurrent,
        "rss_mb": after.rss / 1e6,
        "pss_mb": None if after.pss is None else after.pss / 1e6,
        "processes": len(after.cpu),
        "verified": verified,
    }


def _verify(workload: Workload, answers: Sequence[Tensors]) -> int:
    """The number of answers; raises ``WrongAnswer`` unless all are the expected ones."""
    for answer in answers:
        workload.check(answer)
    return len(answers)


def _reason(error: BaseException) -> str:
    """One line that names the error; for a group, the first error in it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:800]


def measure_here(target: str, directory: str, load: Load) -> Row:
    """Measure one contender in this process, then end every process that it started."""
    scratch = Path(tempfile.mkdtemp(prefix="peer-"))
    try:
        workload = Workload.load(directory)
        return measure(contender_class(target)(workload, scratch), workload, load)
    except Unavailable as error:
        return {"status": "unavailable", "reason": str(error)}
    finally:
        kill(descendants(os.getpid()))
        shutil.rmtree(scratch, ignore_errors=True)


def main(arguments: list[str]) -> int:
    """Entry point; see the module's docstring."""
    target, directory, params = arguments
    os.environ.update(ONE_THREAD_EACH)
    become_subreaper()
    signal.signal(signal.SIGTERM, _terminated)
    out = os.dup(1)
    os.dup2(2, 1)
    row = measure_here(target, directory, Load(**json.loads(params)))
    os.write(out, (json.dumps(row) + "\n").encode())
    return 0


def _terminated(number: int, frame: object) -> NoReturn:
    """End as after an error, so that every process is taken down."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
