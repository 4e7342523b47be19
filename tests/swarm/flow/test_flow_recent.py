"""Ids are remembered for a while: no run is spent on a cancelled request, nor on a copy."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swarm.flow.recent import MOST_REMEMBERED, REMEMBERED_FOR, RecentIds


@given(st.lists(st.tuples(st.integers(0, 20), st.floats(0, 2)), min_size=1, max_size=60))
def test_ids_that_were_added_lately_are_known_and_no_others(
    named: list[tuple[int, float]],
) -> None:
    cancelled, now, last = RecentIds(), 0.0, dict[str, float]()
    for number, pause in named:
        now += pause
        cancelled.add(str(number), now)
        last[str(number)] = now
    expected = {key for key, at in last.items() if at + REMEMBERED_FOR > now}
    assert {str(n) for n in range(21) if str(n) in cancelled} == expected


def test_a_flood_of_ids_is_bounded_and_the_newest_are_kept() -> None:
    cancelled = RecentIds()
    for number in range(3 * MOST_REMEMBERED):
        cancelled.add(str(number), 1.0)
    assert [
        str(n) in cancelled
        for n in (0, 2 * MOST_REMEMBERED - 1, 2 * MOST_REMEMBERED, 3 * MOST_REMEMBERED - 1)
    ] == [
        False,
        False,
        True,
        True,
    ]
