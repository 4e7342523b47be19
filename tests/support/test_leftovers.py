"""A run of tests that leaves something behind is told what."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from support.leftovers import SHARED_MEMORY, left_behind, nothing_left_behind, processes_of
from support.waiting import eventually_now

SLEEPS = "import time; time.sleep(60)"
# Starts a process in a session of its own, tells its id, and ends before it.
ORPHANS = (
    "import subprocess, sys; "
    f"print(subprocess.Popen([sys.executable, '-c', {SLEEPS!r}], start_new_session=True, "
    "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)"
)


def test_what_cleans_up_is_left_alone() -> None:
    with nothing_left_behind():
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        with tempfile.TemporaryDirectory():
            pass
        assert Path(tempfile.gettempdir()).name.startswith("swarm-tests-")


def test_a_temporary_folder_that_stays_is_named_and_removed() -> None:
    with (
        pytest.raises(AssertionError, match=r"left behind: temporary: forgotten-"),
        nothing_left_behind(),
    ):
        made = Path(tempfile.mkdtemp(prefix="forgotten-"))
    assert not made.exists()


def test_a_process_whose_parent_is_gone_is_named_and_ended(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", ORPHANS], env=environment, capture_output=True, text=True, check=True
    )
    orphan = psutil.Process(int(done.stdout))
    try:
        assert f"process {orphan.pid}: {sys.executable} -c {SLEEPS}" in left_behind(
            tmp_path, os.getpid(), within=0.0
        )
    finally:
        orphan.kill()
    eventually_now(lambda: orphan.pid not in {one.pid for one in processes_of(tmp_path)})


@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="no /dev/shm")
def test_only_segments_of_this_process_count(tmp_path: Path) -> None:
    ours = SHARED_MEMORY / f"swarm-left-{os.getpid()}-0123456789abcdef"
    theirs = SHARED_MEMORY / f"swarm-left-{os.getppid()}-0123456789abcdef"
    try:
        for segment in (ours, theirs):
            segment.touch()
        left = left_behind(tmp_path, os.getpid(), within=0.0)
    finally:
        for segment in (ours, theirs):
            segment.unlink()
    assert f"shared memory: {ours.name}" in left
    assert not any(theirs.name in line for line in left)
