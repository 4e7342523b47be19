"""The server's clock as seen from here."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.clock import RESAMPLE_AFTER, ServerClock, parse_rfc3339

SECOND = 1_000_000_000
times = st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1))


@settings(deadline=None)
@given(times, st.integers(0, 999_999_999), st.integers(0, 9), st.integers(-14 * 60, 14 * 60))
def test_any_rfc_3339_stamp_is_read_to_the_nanosecond(
    when: datetime, nanoseconds: int, digits: int, minutes: int
) -> None:
    whole = when.replace(microsecond=0, tzinfo=UTC)
    fraction = f"{nanoseconds:09d}"[:digits]
    expected = int(whole.timestamp()) * SECOND + int(fraction.ljust(9, "0"))
    tail = f".{fraction}" if fraction else ""
    utc = whole.strftime("%Y-%m-%dT%H:%M:%S")
    assert parse_rfc3339(f"{utc}{tail}Z") == expected
    zone = timezone(timedelta(minutes=minutes))
    local = whole.astimezone(zone)
    sign = "-" if minutes < 0 else "+"
    offset = f"{sign}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"
    stamp = f"{local.strftime('%Y-%m-%dT%H:%M:%S')}{tail}{offset}"
    assert parse_rfc3339(stamp) == expected


@pytest.mark.parametrize("stamp", ["", "Z", "yesterday", "2026-13-01T00:00:00Z", "2026-01-01T"])
def test_text_that_is_no_stamp_is_a_value_error(stamp: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_rfc3339(stamp)


def stamp(nanoseconds: int) -> str:
    whole = datetime.fromtimestamp(nanoseconds // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{whole}.{nanoseconds % SECOND:09d}Z"


@settings(deadline=None)
@given(st.integers(-(10**17), 10**17), st.integers(0, 10**8), st.integers(0, 10**8))
def test_the_age_of_a_message_is_known_to_half_a_round_trip_however_clocks_differ(
    offset: int, there: int, back: int
) -> None:
    clock = ServerClock()
    sent = 5 * SECOND
    server_then = 10**18 + offset + sent + there  # the server's clock when it answered
    clock.sample(sent, sent + there + back, stamp(server_then))
    stored, now = server_then - SECOND // 2, sent + there + back
    truth = SECOND // 2 + back
    assert abs(clock.age(stored, now) - truth) <= (there + back) // 2 + 1


def test_the_shortest_round_trip_counts_until_it_is_old() -> None:
    clock = ServerClock()
    base = 10**18
    assert clock.age(base, 0) == 0  # nothing is known yet: nothing is claimed
    clock.sample(0, 100, stamp(base + 50))
    exact = clock.age(base, 1000)
    assert exact == 1000
    clock.sample(1000, 1000 + SECOND, stamp(base + 999_999_999))  # slow: ignored
    assert clock.age(base, 1000) == exact
    later = int((RESAMPLE_AFTER + 1) * SECOND)
    clock.sample(later, later + 1000, stamp(base + later + 500 + 7))  # the old one drifted
    assert clock.age(base, 1000) == exact + 7


def test_a_message_from_the_future_has_no_age() -> None:
    clock = ServerClock()
    clock.sample(0, 2, stamp(10**18))
    assert clock.age(10**18 + SECOND, 1) == 0
