"""When a lane is tended."""

from __future__ import annotations

import asyncio

import pytest
from support.waiting import GENEROUS

from swarm.periodic import next_beat
from swarm.transport.lane.rounds import SELDOM, Rounds


async def test_rounds_come_three_times_an_ack_wait_while_something_is_in_hand() -> None:
    rounds = Rounds(lambda: None)
    rounds.plan(True, 0.3)
    assert rounds.due == pytest.approx(asyncio.get_running_loop().time() + 0.1, abs=0.02)
    assert (rounds.are_often, rounds.are_seldom) == (True, False)
    rounds.stop()


async def test_rounds_of_an_idle_lane_come_with_what_else_comes_round() -> None:
    rounds = Rounds(lambda: None)
    rounds.plan(False, 0.3)
    due, beat = rounds.due, next_beat(SELDOM)
    assert due in (pytest.approx(beat), pytest.approx(beat - SELDOM))
    assert (rounds.are_often, rounds.are_seldom) == (False, True)
    rounds.stop()


async def test_a_new_plan_replaces_the_round_that_was_planned() -> None:
    called = asyncio.Event()
    calls: list[int] = []

    def tend() -> None:
        calls.append(1)
        called.set()

    rounds = Rounds(tend)
    rounds.plan(True, 0.003)
    rounds.plan(True, 0.006)
    await asyncio.wait_for(called.wait(), GENEROUS)
    assert calls == [1]
    rounds.stop()


async def test_stopped_rounds_are_neither_often_nor_seldom_nor_due() -> None:
    rounds = Rounds(lambda: None)
    assert (rounds.due, rounds.are_often, rounds.are_seldom) == (None, False, False)
    rounds.plan(True, 0.3)
    rounds.stop()
    assert (rounds.due, rounds.are_often, rounds.are_seldom) == (None, False, False)
