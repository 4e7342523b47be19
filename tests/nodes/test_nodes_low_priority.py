"""Work beside nodes that serve: its thread has a low priority, and no other thread has."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from nodes.life.low_priority import NICE, in_low_priority_thread, wait_for_low_priority_thread

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
