"""Whether a stage takes one more parcel of its host: a pure decision."""

from __future__ import annotations

from itertools import product

import pytest

from swarm.transport.api import Admission, Backlog
from swarm.transport.handover.policy import HANDOVER, admit

RUN = 0.025  # seconds


def asked(
    parcels: int = 0, in_lanes: int = 0, waiting: int = 0, run: float = RUN, closed: bool = False
) -> Admission:
    return admit(Backlog(waiting, run, closed), parcels, in_lanes)


def test_a_stage_that_has_nothing_to_do_takes_a_parcel() -> None:
    assert asked() is Admission.ADMITTED
    assert asked(run=0.0) is Admission.ADMITTED


def test_a_stage_that_is_closed_takes_none() -> None:
    assert asked(closed=True) is Admission.REFUSED


def test_messages_that_wait_in_the_lanes_come_first_where_they_take_long() -> None:
    least = int(HANDOVER.most_overtaken / RUN) + 1
    assert asked(in_lanes=least) is Admission.BEHIND_LANES
    assert asked(in_lanes=1, run=0.0001) is Admission.ADMITTED


@pytest.mark.parametrize("waits", ["here", "in the lanes"])
def test_a_second_of_work_that_waits_is_enough(waits: str) -> None:
    most = int(HANDOVER.most_work_at_hand / RUN)

    def with_waiting(count: int) -> Admission:
        return asked(waiting=count) if waits == "here" else asked(in_lanes=count)

    assert with_waiting(most) is not Admission.REFUSED
    assert with_waiting(most + 1) is Admission.REFUSED


@pytest.mark.parametrize("in_lanes", [0, 100])
def test_a_number_of_messages_is_enough_however_short_their_runs(in_lanes: int) -> None:
    in_hand = HANDOVER.most_at_hand - in_lanes
    assert asked(in_hand - 1, in_lanes, run=1e-6) is not Admission.REFUSED
    assert asked(in_hand, in_lanes, run=1e-6) is Admission.REFUSED


def test_with_more_to_do_a_stage_never_takes_more() -> None:
    order = {Admission.REFUSED: 0, Admission.BEHIND_LANES: 1, Admission.ADMITTED: 2}
    numbers = [0, 1, 2, 10, 39, 40, 41, 255, 256, 1000]
    for in_hand, in_lanes, waiting in product(numbers, repeat=3):
        at = order[asked(in_hand, in_lanes, waiting)]
        for more in (asked(in_hand + 1, in_lanes, waiting), asked(in_hand, in_lanes, waiting + 1)):
            assert order[more] <= at
