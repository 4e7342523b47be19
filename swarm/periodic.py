"""Periodic work of one process, in as few turns of its event loop as possible.

Each timer of its own wakes an idle process: 0.1-0.2 ms of CPU with cold caches (2-core VM), often
in the middle of a neighbour's run. So whatever comes round is due at multiples of its period, and
periods are multiples of `BEAT`: what is due at the same moment shares one turn. The phase is drawn
for each process, lest all of a host ask the same server, or each other, at once.
"""

from __future__ import annotations

import asyncio
import random

BEAT = 0.2  # seconds; the gossip's usual interval

_phase = random.randrange(1000)  # ms


def next_beat(period: float, apart: int = 0) -> float:
    """The next moment, in the loop's time, at which what comes round each `period` seconds is due:
    in whole milliseconds, as uvloop's timers are, or near ones would be two turns.

    apart: milliseconds after everything else, for what must not come at once with its like."""
    every = max(1, round(period * 1000))
    now = round(asyncio.get_running_loop().time() * 1000)
    return (now + every - (now - _phase - apart) % every) / 1000


async def beat(period: float, apart: int = 0) -> float:
    """Wait until then; the moment that was waited for."""
    due = next_beat(period, apart)
    await asyncio.sleep(due - asyncio.get_running_loop().time())
    return due
