"""A lane's rules of time, in simulated time: what it says to the server, and when."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from simulated_server import TRIP, SimulatedLane, stand_still

from swarm.transport.lane import measured_work
from swarm.transport.lane.consumer import LONG_IN_HAND
from swarm.transport.lane.message import IN_PROGRESS
from swarm.transport.lane.pulls import EXPIRES
from swarm.transport.lane.rounds import Rounds
from swarm.transport.lane.tuning import STOPS, STOPS_WITHIN

pytestmark = pytest.mark.simulated


async def test_a_message_held_long_is_kept_alive_and_comes_no_second_time() -> None:
    async with SimulatedLane(ack_wait=0.1, credit=2) as s:
        s.server.store(b"long")
        await asyncio.sleep(60.0)
        (message,) = s.got
        assert (message.times_delivered, s.lane.redelivered) == (1, 0)
        said = [when for when, word in s.server.words if word == IN_PROGRESS]
        apart = [later - when for when, later in pairwise(said)]
        assert min(apart) >= 0.1 / 3 - 1e-6
        assert max(apart) <= 2 * 0.1 / 3 + 1e-6, "a third of ack_wait is left for the way"
        assert message.ack()
        assert s.server.kept == 0


async def test_nothing_is_said_to_the_server_of_a_lane_with_nothing_in_hand() -> None:
    async with SimulatedLane(credit=1) as s:
        for _ in range(3):
            s.server.store(b"x")
            await asyncio.sleep(0.01)
            s.got[-1].ack()
        s.server.words.clear()
        await asyncio.sleep(60.0)
        assert s.server.words == []


async def test_a_stop_of_the_process_changes_neither_ack_wait_nor_what_the_work_takes() -> None:
    async with SimulatedLane(ack_wait=0.1, credit=4) as s:
        for seconds in (0.3, 30.0):
            s.server.store(b"x")
            s.server.store(b"y")
            await asyncio.sleep(0.05)
            stand_still(seconds)
            await asyncio.sleep(0.05)
            for message in s.lane.messages():
                assert message.ack()
            await asyncio.sleep(STOPS_WITHIN)
        assert s.lane.redelivered == 4, "the server handed them out again meanwhile"
        assert len(s.got) == 4
        assert (s.lane.overdue, s.server.ack_wait) == (0, 0.1)
        loop = asyncio.get_running_loop()
        assert measured_work(s.lane.holding, loop.time()).count == 0
        s.server.store(b"z")
        await asyncio.sleep(0.05)
        assert s.got[-1].ack()
        assert measured_work(s.lane.holding, loop.time()).count == 1, "what came behind it counts"


async def test_a_loop_that_is_always_behind_gets_a_longer_ack_wait() -> None:
    async with SimulatedLane(ack_wait=0.1, credit=4) as s:
        s.server.store(b"x")
        for _ in range(STOPS + 2):
            await asyncio.sleep(0.05)
            stand_still(0.3)
        await asyncio.sleep(0.05)
        assert s.lane.overdue > 0
        assert s.server.ack_wait >= 0.2
        assert len(s.got) == 1


async def test_an_idle_lane_asks_in_few_pulls_for_all_that_it_may_hold() -> None:
    """Of the small pulls that came about one by one, two a second are left at most."""
    async with SimulatedLane(credit=4) as s:
        for _ in range(8):
            s.server.store(b"x")
            await asyncio.sleep(0.1)
            assert s.got[-1].ack()
        await asyncio.sleep(5.0)
        s.server.asked.clear()
        await asyncio.sleep(60.0)
        assert 60 / EXPIRES * 0.9 <= len(s.server.asked) <= 2 * 60 / EXPIRES
        assert s.lane.asked * 2 >= s.lane.credit


async def test_messages_in_hand_are_kept_alive_in_one_write() -> None:
    async with SimulatedLane(credit=4) as s:
        for _ in range(3):
            s.server.store(b"x")
        await asyncio.sleep(1.0)
        assert len(s.server.gathered) >= 15, "five rounds of three messages"
        assert all(s.server.gathered)
        assert not s.server.gather.corked
        assert [message.times_delivered for message in s.got] == [1] * 3


async def test_a_lane_is_tended_seldom_as_soon_as_nothing_is_in_hand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A round is a turn of the loop, beside the run of another stage."""
    plans: list[bool] = []
    plan = Rounds.plan

    def noted(rounds: Rounds, in_hand: bool, ack_wait: float) -> None:
        plans.append(in_hand)
        plan(rounds, in_hand, ack_wait)

    monkeypatch.setattr(Rounds, "plan", noted)
    async with SimulatedLane(credit=4) as s:
        for _ in range(3):
            s.server.store(b"x")
            await asyncio.sleep(2 * TRIP)
            assert plans[-1] is True, "messages in hand are kept alive"
            await asyncio.sleep(2 * LONG_IN_HAND)
            assert s.got[-1].ack()
            assert plans[-1] is False
        s.server.store(b"held")
        await asyncio.sleep(1.0)
    plans.clear()
    s.got[-1].ack()
    assert plans == [], "a lane that has ended is not tended"
