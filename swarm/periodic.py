"""Periodic work of one process, in as few turns of its event loop as possible.

Each timer wakes an idle process, often in the middle of a neighbour's run (measured on a 2-core VM:
0.1-0.2 ms of CPU with cold caches). So periodic work is due at multiples of its period, and periods
are multiples of `BEAT`: work that is due at the same moment shares one turn of the loop. Each
process draws a phase, so that the processes of a host do not all ask the server, or each other, at
the same moment.
"""

from __future__ import annotations

import asyncio
import random

BEAT = 0.2  # seconds; the gossip's usual interval

_phase = random.randrange(1000)  # ms


def next_beat(period: float, apart: int = 0) -> float:
    """The next moment, in the loop's time, at which work of each `period` seconds is due.

    In whole milliseconds, as uvloop's timers are: otherwise two near moments would be two turns.
    apart: milliseconds by which this work comes after all other work of its period.
    """
    every = max(1, round(period * 1000))
    now = round(asyncio.get_running_loop().time() * 1000)
    return (now + every - (now - _phase - apart) % every) / 1000


async def beat(period: float, apart: int = 0) -> float:
    """Wait for `next_beat`; returns that moment, in the loop's time."""
    due = next_beat(period, apart)
    await asyncio.sleep(due - asyncio.get_running_loop().time())
    return due
