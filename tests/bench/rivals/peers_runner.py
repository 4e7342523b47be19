"""Measuring entrants in interleaved rounds, one client process at a time.

Rounds go A B C, A B C, … so that whatever slows the machine for a while slows all of them. Every
measurement is a fresh client process, which ends with everything that it started before the next
one begins.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.report.frame import by_turns
from bench.rivals.catalogue import FLOOR
from bench.rivals.networks import KINDS, Kind, build_workload
from bench.rivals.peers_client import LOAD_BY_KIND, Load, Row
from bench.rivals.processes import REPOSITORY, descendants, kill
from bench.rivals.workload import Workload

RUN_TIMEOUT = 300.0
"""Seconds for one contender, one workload, one round, from start to stop."""
CLIENT_END_TIMEOUT = 15.0
"""Seconds in which a client that is told to end takes its processes down."""


@dataclass(frozen=True)
class Entrant:
    """A contender and the interpreter that runs it.

    ``target`` is a name from ``CONTENDERS`` or ``module:Class`` of a ``Contender``.
    """

    name: str
    target: str
    python: Path


def run_client(entrant: Entrant, directory: Path, load: Load, timeout: float = RUN_TIMEOUT) -> Row:
    """One measurement in a client process, which is killed with its descendants after ``timeout``
    seconds."""
    command = [str(entrant.python), "-m", "bench.rivals.peers_client", entrant.target]
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
                    client.wait(CLIENT_END_TIMEOUT)
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


def run_peers(
    entrants: Sequence[Entrant],
    *,
    kinds: Sequence[Kind] = KINDS,
    rounds: int = 3,
    loads: Mapping[str, Load] = LOAD_BY_KIND,
    on_row: Callable[[Row], None] = lambda _: None,
) -> tuple[list[Row], dict[str, Workload]]:
    """Measure every entrant ``rounds`` times on every workload; returns the rows and workloads.

    The floor takes part in any case. ``on_row`` sees each row as it comes. A contender that is
    unavailable is not asked again for the same workload.
    """
    rows: list[Row] = []
    if not any(entrant.name == FLOOR for entrant in entrants):
        python = entrants[0].python if entrants else Path(sys.executable)
        entrants = [Entrant(FLOOR, FLOOR, python), *entrants]
    with tempfile.TemporaryDirectory(prefix="peers-") as root:
        workloads: dict[str, Workload] = {}
        for network in kinds:
            directory = Path(root) / network
            build_workload(directory, network)
            workloads[network] = Workload.load(directory)
        for kind, workload in workloads.items():
            unavailable: set[str] = set()
            by_name = {entrant.name: entrant for entrant in entrants}
            for number, name in by_turns(rounds, list(by_name)):
                if name in unavailable:
                    continue
                row = run_client(by_name[name], workload.directory, loads[kind])
                row = {"contender": name, "workload": kind, "round": number, **row}
                if row["status"] == "unavailable":
                    unavailable.add(name)
                rows.append(row)
                on_row(row)
        return rows, workloads
