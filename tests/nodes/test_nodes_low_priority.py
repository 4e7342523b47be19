"""Work beside nodes that serve: its thread has a low priority, and no other thread has."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from nodes.low_priority import (
    MISSED,
    NICE,
    in_low_priority_thread,
    wait_for_low_priority_thread,
)

linux = pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads are Linux's")


def priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@linux
def test_the_work_has_a_low_priority_and_the_caller_keeps_its_own() -> None:
    before = priority()
    assert wait_for_low_priority_thread(priority) == max(before, NICE)
    assert priority() == before


@linux
async def test_the_loop_goes_on_at_its_own_priority() -> None:
    before = priority()
    assert await in_low_priority_thread(priority) == max(before, NICE)
    assert priority() == before


async def test_what_the_work_raises_reaches_the_caller() -> None:
    def fail() -> None:
        raise ZeroDivisionError("no")

    with pytest.raises(ZeroDivisionError, match="no"):
        wait_for_low_priority_thread(fail)
    with pytest.raises(ZeroDivisionError, match="no"):
        await in_low_priority_thread(fail)


@linux
@pytest.mark.processes
@pytest.mark.parametrize("missed", [False, True])
def test_a_node_whose_work_nobody_does_imports_at_the_normal_priority(missed: bool) -> None:
    """Told by the environment; the first module of a node says which priority its import has."""
    code = """if True:
        import os, threading
        from nodes.cli import node
        node.import_work = lambda: print(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        node.serve = lambda settings, missed: 0
        raise SystemExit(node.node(["--role", "gateway"], os.environ))
    """
    environment = {key: value for key, value in os.environ.items() if key != MISSED}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | ({MISSED: "1"} if missed else {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert int(done.stdout) == (priority() if missed else max(priority(), NICE))
