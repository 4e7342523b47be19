"""A live source over a slow link, in simulated time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodes.edge.live import CaptureBacklog

TRANSFER, TRIP, HOLDING = 0.060, 0.010, 0.005


def played(captures: int, every: float, known: bool, most: int = 8) -> tuple[list[float], int]:
    """(ages of the answers, captures dropped); known: whether the link's rate is."""
    backlog: CaptureBacklog[float] = CaptureBacklog(8, most, drops=True)
    ages: list[float] = []
    ends: list[tuple[float, float]] = []  # (answered, captured)
    free = 0.0
    for number in range(captures):
        now = number * every
        while ends and ends[0][0] <= now:
            at, captured = ends.pop(0)
            ages.append(at - captured)
            backlog.ended()
            free = _take(backlog, at, free, ends, known)
        backlog.add(now)
        free = _take(backlog, now, free, ends, known)
    return ages, backlog.dropped


def _take(
    backlog: CaptureBacklog[float],
    now: float,
    free: float,
    ends: list[tuple[float, float]],
    known: bool,
) -> float:
    while (captured := backlog.take(TRANSFER if known else 0.0, TRIP, HOLDING)) is not None:
        free = max(free, now) + TRANSFER
        ends.append((free + TRIP + HOLDING, captured))
    return free


def test_behind_a_known_slow_link_answers_are_of_the_newest_captures() -> None:
    ages, dropped = played(300, 1 / 30, known=True)
    old, _ = played(300, 1 / 30, known=False)
    assert sorted(ages)[len(ages) // 2] < 0.150 < 0.450 < sorted(old)[len(old) // 2]
    assert len(ages) > 0.9 * len(old)  # the link stays busy
    assert 0 < dropped < 300 - len(ages) + 10


def test_a_source_slower_than_its_link_loses_nothing() -> None:
    ages, dropped = played(100, 0.080, known=True)
    assert dropped == 0
    assert max(ages) == pytest.approx(TRANSFER + TRIP + HOLDING)


@given(
    st.lists(st.sampled_from(["add", "take", "ended"]), max_size=60),
    st.booleans(),
    st.floats(0, 1),
)
def test_every_capture_is_waiting_in_flight_ended_or_dropped(
    acts: list[str], drops: bool, transfer: float
) -> None:
    backlog: CaptureBacklog[int] = CaptureBacklog(3, 2, drops)
    added = taken = 0
    last = -1
    for act in acts:
        if act == "add" and not backlog.is_full:
            backlog.add(added)
            added += 1
        elif act == "take" and (capture := backlog.take(transfer, TRIP, HOLDING)) is not None:
            assert capture > last  # in order
            last, taken = capture, taken + 1
        elif act == "ended" and backlog.in_flight:
            backlog.ended()
        assert backlog.in_flight <= 2
        assert len(backlog) <= 3
        assert added == taken + len(backlog) + backlog.dropped
    assert drops or backlog.dropped == 0
