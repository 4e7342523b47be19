"""A node that gets little CPU: a cgroup's quota where that can be had, else SIGSTOP and
SIGCONT in turn."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

QUOTA_PERIOD = (
    0.1  # seconds: the process runs for a share of each period and stands still for the rest
)


@asynccontextmanager
async def starved(pid: int, share: float, seconds: float = QUOTA_PERIOD) -> AsyncIterator[str]:
    """Inside the context the process gets `share` (0 to 1) of a core, `seconds` at a time. Yields
    the method's name."""
    group = _quota(pid, share, seconds)
    if group is not None:
        try:
            yield "cgroup quota"
        finally:
            _release(pid, group)
        return
    cycling = asyncio.create_task(_duty_cycle(pid, share), name="duty cycle")
    try:
        yield "duty cycle"
    finally:
        cycling.cancel()
        await asyncio.wait([cycling])
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _quota(pid: int, share: float, seconds: float) -> Path | None:
    """A new group with the process in it, or None where cgroups cannot be made."""
    period, quota = int(seconds * 1e6), int(seconds * share * 1e6)
    name = f"swarm-bench-{os.getpid()}-{pid}"
    first = Path("/sys/fs/cgroup/cpu")
    root = first if first.is_dir() else Path("/sys/fs/cgroup")
    group = root / name
    try:
        group.mkdir()
    except OSError:
        return None
    try:
        if root == first:
            (group / "cpu.cfs_period_us").write_text(str(period))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (group / "cpu.max").write_text(f"{quota} {period}")
        (group / "cgroup.procs").write_text(str(pid))
    except OSError:
        _release(pid, group)
        return None
    return group


def _release(pid: int, group: Path) -> None:
    """Move the process back to the root group and remove its own, once that is empty."""
    with contextlib.suppress(OSError):
        (group.parent / "cgroup.procs").write_text(str(pid))
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        try:
            group.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.01)  # some threads are still in the group


async def _duty_cycle(pid: int, share: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(pid, signal.SIGCONT)
            await asyncio.sleep(max(0.001, QUOTA_PERIOD * share))
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(QUOTA_PERIOD * (1 - share))
