"""Whether a stage takes one more message: pure decisions."""

from __future__ import annotations

from itertools import product

import pytest

from nodes.stage.readiness import (
    MOST_AT_HAND,
    MOST_OVERTAKEN,
    MOST_WAITING_FAST,
    MOST_WORK_AT_HAND,
    is_worth_starting,
    room_for_fast,
    room_for_parcel,
)
from swarm.transport.api import Room

RUN = 0.025  # seconds


def room(
    parcels: int = 0, in_lanes: int = 0, waiting: int = 0, run: float = RUN, closed: bool = False
) -> Room:
    return room_for_parcel(
        parcels=parcels, in_lanes=in_lanes, waiting=waiting, run=run, closed=closed
    )


def test_a_stage_that_has_nothing_to_do_takes_a_parcel() -> None:
    assert room() is Room.FREE
    assert room(run=0.0) is Room.FREE


def test_a_stage_that_is_closed_takes_none() -> None:
    assert room(closed=True) is Room.NONE


def test_messages_that_wait_in_the_lanes_come_first_where_they_take_long() -> None:
    least = int(MOST_OVERTAKEN / RUN) + 1
    assert room(in_lanes=least) is Room.BEHIND_LANES
    assert room(in_lanes=1, run=0.0001) is Room.FREE


@pytest.mark.parametrize("waits", ["here", "in the lanes"])
def test_a_second_of_work_that_waits_is_enough(waits: str) -> None:
    most = int(MOST_WORK_AT_HAND / RUN)

    def with_waiting(count: int) -> Room:
        return room(waiting=count) if waits == "here" else room(in_lanes=count)

    assert with_waiting(most) is not Room.NONE
    assert with_waiting(most + 1) is Room.NONE


@pytest.mark.parametrize("in_lanes", [0, 100])
def test_a_number_of_messages_is_enough_however_short_their_runs(in_lanes: int) -> None:
    in_hand = MOST_AT_HAND - in_lanes
    assert room(in_hand - 1, in_lanes, run=1e-6) is not Room.NONE
    assert room(in_hand, in_lanes, run=1e-6) is Room.NONE


def test_with_more_to_do_a_stage_never_takes_more() -> None:
    order = {Room.NONE: 0, Room.BEHIND_LANES: 1, Room.FREE: 2}
    numbers = [0, 1, 2, 10, 39, 40, 41, 255, 256, 1000]
    for in_hand, in_lanes, waiting in product(numbers, repeat=3):
        at = order[room(in_hand, in_lanes, waiting)]
        for more in (room(in_hand + 1, in_lanes, waiting), room(in_hand, in_lanes, waiting + 1)):
            assert order[more] <= at


def test_in_fast_mode_as_many_may_wait_as_no_lane_bounds() -> None:
    assert room_for_fast(MOST_WAITING_FAST - 1) is Room.FREE
    assert room_for_fast(MOST_WAITING_FAST) is Room.NONE


def test_a_run_is_begun_only_where_it_can_end_inside_the_budget() -> None:
    assert is_worth_starting(0.1, 0.1)
    assert not is_worth_starting(0.099, 0.1)
    assert is_worth_starting(1e-6, 0.0), "of runs of unknown length"
    assert not is_worth_starting(0.0, 0.0)
    assert not is_worth_starting(-1.0, 0.0)
