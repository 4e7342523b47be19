"""What a run of tests leaves behind: processes, temporary files, shared memory.

Other runs may go on beside it on the same machine. So only what is surely of this run counts: each
worker has a temporary folder of its own, processes that it started inherit that folder's name
wherever they ended up, and a segment of shared memory bears its process's id.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from swarm.samehost.memory import sweep
from swarm.samehost.memory.claim import mesh_of
from swarm.scratch import LOCK, Scratch
from swarm.scratch import sweep as sweep_folders

from .commands import environment_of

SHARED_MEMORY = Path("/dev/shm")
ENDS_WITHIN = 10.0  # seconds, for processes that were told to end
LOOK_EVERY = 0.05  # seconds
# uv leaves the lock files of the environments that it has looked at.
KEPT = re.compile(rf"{re.escape(LOCK)}|uv-[0-9a-f]+\.lock")
OF_PYTHON = "multiprocessing.resource_tracker"  # ends with the process that it serves


@contextmanager
def nothing_left_behind() -> Iterator[None]:
    """Temporary files go to a folder of this run. Fails where anything is left at the end.

    Processes that are left are named, and then killed. The folder of a run that was killed is
    removed by the next run.
    """
    with Scratch("tests") as folder, pytest.MonkeyPatch.context() as environment:
        folder.chmod(0o1777)  # some tests start processes of another user
        environment.setenv("TMPDIR", str(folder))
        environment.setattr(tempfile, "tempdir", None)
        before = frozenset(process.pid for process in processes_of(folder))
        at_first = left_behind(folder, os.getpid(), before)
        try:
            yield
            left = [
                line for line in left_behind(folder, os.getpid(), before) if line not in at_first
            ]
        finally:
            for process in processes_of(folder, before):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
    assert not left, "the tests left behind: " + "; ".join(left)


def left_behind(
    folder: Path, pid: int, before: frozenset[int] = frozenset(), within: float = ENDS_WITHIN
) -> list[str]:
    """What is left of the run with this temporary folder, one line each. before: processes that
    were there when it began."""
    until = time.monotonic() + within
    while (running := processes_of(folder, before)) and time.monotonic() < until:
        time.sleep(LOOK_EVERY)
    sweep_folders()  # those of processes that were killed, as the next process does
    left = [f"process {process.pid}: {told(process)}" for process in running]
    files = [path.name for path in sorted(folder.iterdir()) if not KEPT.fullmatch(path.name)]
    left += [f"temporary: {name}" for name in files]
    return left + [f"shared memory: {path.name}" for path in segments_of(pid)]


def segments_of(pid: int) -> list[Path]:
    """Shared memory that this process made and still owns.

    What it gave up while others might read it is swept first, as any node does.
    """
    if not SHARED_MEMORY.is_dir():
        return []
    pattern = f"swarm-*-{pid}-*"
    for mesh in {mesh_of(path.name) for path in SHARED_MEMORY.glob(pattern)}:
        if mesh is not None:
            sweep(mesh, grace=0.0)
    return sorted(SHARED_MEMORY.glob(pattern))


def processes_of(folder: Path, but: frozenset[int] = frozenset()) -> list[psutil.Process]:
    """This process's descendants, and all that inherited this temporary folder; `but` these."""
    found = {process.pid: process for process in psutil.Process().children(recursive=True)}
    mark = os.fsencode(f"TMPDIR={folder}")
    for place in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            pid = int(place.parent.name)
            if mark in environment_of(pid).split(b"\0"):
                found.setdefault(pid, psutil.Process(pid))
    return [process for pid, process in found.items() if pid not in but and _runs(process)]


def told(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())[:200]
    return "(gone by now)"


def _runs(process: psutil.Process) -> bool:
    if process.pid == os.getpid() or OF_PYTHON in told(process):
        return False
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
