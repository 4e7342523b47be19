"""Answers of lighter models are counted by who could not answer, and by cause, within bounds."""

from __future__ import annotations

import pytest

from swarm.requests.stood_in import LONGEST, MOST_TOLD, StoodIn, in_place_of
from swarm.wire.messages import Features


def test_rows_say_how_many_ever_and_lately() -> None:
    counted = StoodIn()
    for at in (0.0, 1.0, 900.0):
        counted.note(in_place_of("digits", "1", "UNAVAILABLE"), at)
    counted.note(in_place_of("digits", "2", "DEADLINE_EXCEEDED"), 900.0)
    told = [tuple(row.values()) for row in counted.rows(901.0)]
    assert told == [
        ("digits", "1", "UNAVAILABLE", 3, 1),
        ("digits", "2", "DEADLINE_EXCEEDED", 1, 1),
    ]


@pytest.mark.parametrize(
    "text", ["", " ", "digits UNAVAILABLE", "@1 UNAVAILABLE", "digits@1", "digits@1 <b>", "x" * 999]
)
def test_what_a_requester_makes_up_is_not_counted(text: str) -> None:
    counted = StoodIn()
    counted.note(text, 0.0)
    counted.note(in_place_of("x" * LONGEST, "1", "UNAVAILABLE"), 0.0)
    assert counted.rows(0.0) == []


def test_no_more_rows_are_kept_than_are_told() -> None:
    counted = StoodIn()
    for number in range(MOST_TOLD + 9):
        counted.note(in_place_of("m", str(number), "UNAVAILABLE"), 0.0)
    assert len(counted.rows(0.0)) == MOST_TOLD


@pytest.mark.parametrize("instead", ["", "digits@1 UNAVAILABLE"])
def test_it_travels_with_a_request_and_other_requests_are_as_ever(instead: str) -> None:
    features = Features("r", "m", "1", 1, "_INBOX.r", 1, {}, instead=instead)
    data = b"".join(map(bytes, features.parts()))
    assert Features.decode(data).instead == instead
    assert (b"instead" in data) == bool(instead)
