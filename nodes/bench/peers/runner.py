"""Running the contenders side by side: interleaved rounds, one client process at a time.

Rounds go A B C, A B C, ... so that whatever slows the machine for a while slows all of them. Every
measurement is a fresh client process that ends, with everything it started, before the next.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nodes.bench.peers.base import Contender
from nodes.bench.peers.contenders import CONTENDERS, FLOOR
from nodes.bench.peers.measure import LOADS, Load, Row, measure
from nodes.bench.peers.processes import descendants, kill
from nodes.bench.peers.report import document
from nodes.bench.peers.workload import KINDS, Workload, build

REPOSITORY = Path(__file__).resolve().parents[3]
"""What goes on ``PYTHONPATH`` of the clients: they need this package, not its dependencies."""

RUN_TIMEOUT = 300.0
"""Seconds for one contender, one workload, one round, from start to stop."""


@dataclass(frozen=True)
class Entrant:
    """A contender and the interpreter that runs it.

    ``target`` is a name from ``CONTENDERS`` or ``module:Class`` of a ``Contender``.
    """

    name: str
    target: str
    python: Path


def peers(python: Path, names: Iterable[str] | None = None) -> list[Entrant]:
    """The named contenders (all by default), run by ``python``; ``KeyError`` on an unknown one."""
    chosen = list(CONTENDERS if names is None else names)
    unknown = [name for name in chosen if name not in CONTENDERS]
    if unknown:
        raise KeyError(f"no contender {', '.join(unknown)}; known: {', '.join(CONTENDERS)}")
    return [Entrant(name, name, python) for name in chosen]


def run_client(entrant: Entrant, directory: Path, load: Load, timeout: float = RUN_TIMEOUT) -> Row:
    """One measurement in a client process; it is killed with its descendants after ``timeout``."""
    command = [str(entrant.python), "-m", "nodes.bench.peers.worker", entrant.target]
    command += [str(directory), json.dumps(asdict(load))]
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    with tempfile.TemporaryFile() as log:
        client = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
        )
        try:
            out, _ = client.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            return {"status": "failed", "reason": f"not finished after {timeout:.0f} s"}
        finally:
            if client.poll() is None:
                tree = descendants(client.pid)
                client.terminate()
                try:
                    client.wait(15)
                except subprocess.TimeoutExpired:
                    tree = [*tree, *descendants(client.pid)]
                    client.kill()
                    client.wait(5)
                kill(tree)
            if client.stdout is not None:
                client.stdout.close()
        lines = out.decode(errors="replace").strip().splitlines()
        try:
            row: Row = json.loads(lines[-1])
        except (IndexError, ValueError):
            log.seek(max(0, log.seek(0, os.SEEK_END) - 600))
            words = " ".join(log.read().decode(errors="replace").split())
            return {"status": "failed", "reason": f"ended with {client.returncode}: {words}"}
    return row


def run_object(make: Callable[[Workload, Path], Contender], directory: Path, load: Load) -> Row:
    """One measurement of a contender that lives in this process.

    Processes of the caller's own are counted too: prefer an :class:`Entrant`.
    """
    workload = Workload.load(directory)
    with tempfile.TemporaryDirectory(prefix="peer-") as scratch:
        return measure(make(workload, Path(scratch)), workload, load)


def run_peers(
    entrants: Sequence[Entrant],
    *,
    objects: Mapping[str, Callable[[Workload, Path], Contender]] | None = None,
    kinds: Sequence[str] = KINDS,
    directories: Mapping[str, Path] | None = None,
    rounds: int = 3,
    loads: Mapping[str, Load] | None = None,
    timeout: float = RUN_TIMEOUT,
    on_row: Callable[[Row], None] | None = None,
) -> dict[str, Any]:
    """Measure every entrant ``rounds`` times on every workload; returns the JSON document.

    ``objects`` are extra contenders by name, made in this process. ``directories`` gives
    ready-made workloads by kind; the others are built. ``on_row`` sees each row as it comes. A
    contender that is unavailable is not asked again.
    """
    rows: list[Row] = []
    objects = objects or {}
    if not any(entrant.name == FLOOR for entrant in entrants):
        python = entrants[0].python if entrants else Path(sys.executable)
        entrants = [Entrant(FLOOR, FLOOR, python), *entrants]
    with tempfile.TemporaryDirectory(prefix="peers-") as root:
        workloads = {}
        for kind in kinds:
            directory = (directories or {}).get(kind)
            if directory is None:
                directory = Path(root) / kind
                build(directory, "tiny" if kind == "tiny" else "large")
            workloads[kind] = Workload.load(directory)
        for kind, workload in workloads.items():
            load = (loads or {}).get(kind) or LOADS.get(kind, Load())
            gone: set[str] = set()
            for number in range(1, rounds + 1):
                for name in [*(e.name for e in entrants), *objects]:
                    if name in gone:
                        continue
                    if name in objects:
                        row = run_object(objects[name], workload.directory, load)
                    else:
                        entrant = next(e for e in entrants if e.name == name)
                        row = run_client(entrant, workload.directory, load, timeout)
                    row = {"contender": name, "workload": kind, "round": number, **row}
                    if row["status"] == "unavailable":
                        gone.add(name)
                    rows.append(row)
                    if on_row is not None:
                        on_row(row)
        return document(rows, workloads, rounds)
