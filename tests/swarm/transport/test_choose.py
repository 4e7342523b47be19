"""Which way a parcel goes: the table of one pure choice."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from swarm.transport.stage_sender import MOST_IN_FLIGHT, Way, choose

BEST: dict[str, Any] = {
    "attempt": 1,
    "reachable": True,
    "connected": True,
    "doubtful": False,
    "in_flight": MOST_IN_FLIGHT,
    "accepted": True,
}
AGAINST = [
    ("a later attempt", {"attempt": 2}),
    ("no process of this host serves the stage alone", {"reachable": False}),
    ("no connection to fall back on", {"connected": False}),
    ("processes of this host may hang", {"doubtful": True}),
    ("many are under way", {"in_flight": MOST_IN_FLIGHT + 1}),
]


def test_where_nothing_speaks_against_it_a_parcel_goes_to_the_process_of_this_host() -> None:
    assert choose(fast=False, **BEST) is Way.HAND_OVER
    assert choose(fast=True, **BEST) is Way.SOCKET


@pytest.mark.parametrize(("why", "change"), AGAINST, ids=[why for why, _ in AGAINST])
def test_whatever_speaks_against_the_short_cut_sends_a_parcel_by_the_server(
    why: str, change: dict[str, Any]
) -> None:
    assert choose(fast=False, **BEST | change) is Way.LANE
    assert choose(fast=True, **BEST | change) is Way.SERVER


def test_a_process_that_accepts_nothing_at_present_is_handed_nothing_over() -> None:
    assert choose(fast=False, **BEST | {"accepted": False}) is Way.LANE


def test_fast_mode_asks_no_process_whether_it_accepts_since_nothing_is_held_for_it() -> None:
    assert choose(fast=True, **BEST | {"accepted": False}) is Way.SOCKET


def test_a_parcel_that_must_be_stored_never_goes_a_way_that_stores_nothing() -> None:
    values = ([1, 2], [True, False], [True, False], [True, False], [0, 65], [True, False])
    for attempt, reachable, connected, doubtful, in_flight, accepted in product(*values):
        state: dict[str, Any] = {
            "attempt": attempt,
            "reachable": reachable,
            "connected": connected,
            "doubtful": doubtful,
            "in_flight": in_flight,
            "accepted": accepted,
        }
        assert choose(fast=False, **state) in (Way.LANE, Way.HAND_OVER)
        assert choose(fast=True, **state) in (Way.SERVER, Way.SOCKET)
