"""Counts of the last minutes are those of the last minutes, to a step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swarm.flow.recent_counts import SPAN, STEP, RecentCounts

EVENTS = st.lists(st.tuples(st.floats(0, 200), st.integers(0, 9), st.integers(0, 9)), max_size=40)


@given(EVENTS, st.floats(0, 400))
def test_sums_have_what_is_younger_than_the_span_and_nothing_older_than_a_step_more(
    events: list[tuple[float, int, int]], later: float
) -> None:
    counts, now, told = RecentCounts(2), 1000.0, []
    for pause, one, other in events:
        now += pause
        counts.add(now, one, other)
        told.append((now, one, other))
    now += later
    sums = counts.sums(now)
    for kind in (1, 2):
        least = sum(each[kind] for each in told if now - each[0] < SPAN)
        most = sum(each[kind] for each in told if now - each[0] < SPAN + STEP)
        assert least <= sums[kind - 1] <= most
    assert counts.sums(now + SPAN + STEP) == [0, 0]
