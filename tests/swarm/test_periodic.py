"""Periodic work of one process is done in the same turns of its event loop."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.periodic import BEAT, beat, next_beat

PERIODS = [BEAT, 3 * BEAT, 5 * BEAT]


@given(
    now=st.floats(0, 1e7), apart=st.integers(0, 999), period=st.integers(1, 20).map(BEAT.__mul__)
)
def test_a_beat_is_ahead_by_a_period_at_most_and_falls_on_a_shorter_one_in_whole_milliseconds(
    now: float, apart: int, period: float
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        loop = SimpleNamespace(time=lambda: now)
        patch.setattr(asyncio, "get_running_loop", lambda: loop)
        due = next_beat(period, apart)
        shorter = next_beat(BEAT, apart)
        together = next_beat(BEAT)
        loop.time = lambda: due
        after = next_beat(period, apart)
    assert 0 < due - now <= period + 0.0006
    assert due * 1000 == pytest.approx(round(due * 1000), abs=1e-4)
    assert shorter <= due, "nothing longer comes between two of the shortest"
    assert round((due - shorter) * 1000) % round(BEAT * 1000) == 0
    assert (round((shorter - together) * 1000) - apart) % round(BEAT * 1000) == 0
    assert after - due == pytest.approx(period), "a beat is not followed by itself"


@pytest.mark.simulated
async def test_tasks_that_come_round_at_multiples_of_a_beat_share_their_turns_of_the_loop() -> None:
    loop = asyncio.get_running_loop()
    moments: list[float] = []

    async def come_round(period: float) -> None:
        while True:
            await beat(period)
            moments.append(loop.time())

    tasks = []
    for period in PERIODS * 3:
        tasks.append(asyncio.create_task(come_round(period)))
        await asyncio.sleep(0.007)  # begun at any time
    began = next_beat(BEAT)
    await asyncio.sleep(began + 30 * BEAT - BEAT / 2 - loop.time())
    for task in tasks:
        task.cancel()
    seen = sorted(moment for moment in moments if moment > began - BEAT / 2)
    assert len(seen) == 3 * (30 + 10 + 6)
    turns = 1 + sum(b - a > 0.0005 for a, b in pairwise(seen))
    assert turns == 30, "one in each beat"
