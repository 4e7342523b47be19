"""The clock of a stream's leader as seen from here: it is set, and others come to lead."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.clock import DRIFT, RESAMPLE_AFTER, TOLD_FROM, ClockStep, ServerClock, parse_rfc3339

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


# --- clocks that are set ------------------------------------------------------------------

MS = SECOND // 1000
STEPS = [
    sign * seconds for seconds in (0.05, 0.2, 1.0, 5.0, 60.0, 600.0, 86400.0) for sign in (-1, 1)
]
TRIP = 2 * MS


class World:
    """A node and its stream's servers. Times in ns; `now` is the node's monotonic clock, and each
    server's wall clock is `ahead` of it."""

    def __init__(self, steered: float = 0.0) -> None:
        """steered: share by which the servers' clocks run fast."""
        self.now = 10**12
        self.slept = 0
        self.steered = steered
        self.ahead = {"a": 10**18, "b": 10**18, "c": 10**18}
        self.leader = "a"
        self.told: list[ClockStep] = []
        self.clock = ServerClock(self.told.append)

    def wall(self) -> int:
        return self.now + self.slept + self.ahead[self.leader] + int(self.now * self.steered)

    def goes_on(self, ns: int) -> None:
        self.now += ns

    def read(self, there: int = TRIP // 2, back: int = TRIP // 2) -> None:
        sent = self.now
        self.now += there
        at = self.wall()
        self.now += back
        self.clock.sample(sent, self.now, stamp(at), self.leader, self.slept)

    def set_clock(self, seconds: float) -> None:
        self.ahead[self.leader] += int(seconds * SECOND)


@pytest.mark.parametrize("seconds", STEPS)
@pytest.mark.parametrize("waited", [0, 30 * MS, 4 * SECOND])
def test_a_message_stored_behind_a_step_is_as_old_as_it_is_once_the_clock_was_read_again(
    seconds: float, waited: int
) -> None:
    w = World()
    w.read()
    w.goes_on(20 * SECOND)
    w.set_clock(seconds)
    w.read()
    w.goes_on(SECOND)
    stored = w.wall()
    w.goes_on(waited)
    received = w.now
    assert w.clock.least_age(stored, received) is None, "the clock may have been set since"
    w.read()
    least = w.clock.least_age(stored, received)
    assert least is not None
    assert waited - TRIP <= least <= waited
    assert abs(w.clock.age(stored, received) - waited) <= TRIP


@pytest.mark.parametrize("seconds", STEPS)
@pytest.mark.parametrize("stored_first", [True, False], ids=["before the step", "behind it"])
def test_no_age_is_proven_by_a_clock_that_was_set_while_the_message_lay_there(
    seconds: float, stored_first: bool
) -> None:
    w = World()
    w.read()
    w.goes_on(20 * SECOND)
    stored = w.wall()
    if stored_first:
        w.goes_on(100 * MS)
    w.set_clock(seconds)
    if not stored_first:
        stored = w.wall()
    w.goes_on(10 * MS)
    received = w.now
    w.read()
    least = w.clock.least_age(stored, received)
    assert least is not None
    assert least <= (110 * MS if stored_first else 10 * MS)


@pytest.mark.parametrize("seconds", STEPS)
def test_another_leader_whose_clock_differs_is_no_step_and_makes_no_message_older(
    seconds: float,
) -> None:
    w = World()
    w.ahead["b"] += int(seconds * SECOND)
    w.read()
    w.goes_on(10 * SECOND)
    before = w.wall()
    w.leader = "b"
    behind = w.wall()
    w.goes_on(50 * MS)
    received = w.now
    w.read()
    for stored in (before, behind):
        least = w.clock.least_age(stored, received)
        assert least is not None
        assert least <= 50 * MS
    assert w.told == []


@pytest.mark.parametrize("seconds", STEPS)
def test_a_step_is_told_once_with_its_server_its_way_and_its_size(seconds: float) -> None:
    w = World()
    for _ in range(3):
        w.read()
        w.goes_on(10 * SECOND)
    w.set_clock(seconds)
    for _ in range(3):
        w.read()
        w.goes_on(SECOND)
    [step] = w.told
    assert step.server == "a"
    assert abs(step.seconds - seconds) <= 2 * TRIP / SECOND
    assert ("back" in step.text) == (seconds < 0)


def test_a_host_that_was_suspended_takes_no_server_for_one_whose_clock_was_set() -> None:
    w = World()
    w.read()
    w.goes_on(SECOND)
    w.slept += 600 * SECOND
    w.read()
    stored = w.wall()
    w.goes_on(40 * MS)
    received = w.now
    w.read()
    assert w.told == []
    least = w.clock.least_age(stored, received)
    assert least is not None
    assert 40 * MS - TRIP <= least <= 40 * MS


@pytest.mark.parametrize("steered", [-DRIFT / 2, DRIFT / 2])
def test_a_clock_that_is_steered_is_followed_and_was_not_set(steered: float) -> None:
    w = World(steered)
    for _ in range(100):
        w.read()
        w.goes_on(5 * SECOND)
    assert w.told == []
    stored = w.wall()
    w.goes_on(30 * MS)
    assert abs(w.clock.age(stored, w.now) - 30 * MS) <= RESAMPLE_AFTER * DRIFT * SECOND + TRIP


def test_a_small_step_is_followed_and_not_told() -> None:
    w = World()
    w.read()
    w.set_clock(-TOLD_FROM / 2)
    w.read()
    stored = w.wall()
    w.goes_on(MS)
    assert w.clock.age(stored, w.now) <= 2 * MS
    assert w.told == []


changes = st.one_of(
    st.tuples(st.just("step"), st.sampled_from(STEPS)),
    st.tuples(st.just("lead"), st.sampled_from("abc")),
    st.tuples(st.just("sleep"), st.sampled_from([0.1, 5.0, 600.0])),
    st.tuples(st.just("nothing"), st.just(0)),
)
moments = st.integers(0, 3 * SECOND)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.sampled_from(STEPS), min_size=2, max_size=2),
    st.lists(
        st.tuples(changes, moments, moments, moments, st.integers(0, SECOND)),
        min_size=1,
        max_size=12,
    ),
)
def test_no_message_is_surely_older_than_it_is_whatever_clocks_do(
    skews: list[float], rounds: list[tuple[tuple[str, float | str], int, int, int, int]]
) -> None:
    """In each round a clock changes once, before, between and behind messages that are stored; then
    the clock is read."""
    w = World()
    w.ahead["b"] += int(skews[0] * SECOND)
    w.ahead["c"] += int(skews[1] * SECOND)
    lying: list[tuple[int, int]] = []  # when they were stored, by the node's clock, and their stamp
    w.read()
    for (kind, how), before, between, behind, trip in rounds:
        w.goes_on(before)
        lying.append((w.now, w.wall()))
        w.goes_on(between)
        if kind == "step":
            w.set_clock(float(how))
        elif kind == "lead":
            w.leader = str(how)
        elif kind == "sleep":
            w.slept += int(float(how) * SECOND)
        lying.append((w.now, w.wall()))
        w.goes_on(behind)
        received = w.now
        w.read(trip // 3, trip - trip // 3)
        lying = [each for each in lying if received - each[0] < RESAMPLE_AFTER * SECOND]
        for stored, stamped in lying:
            least = w.clock.least_age(stamped, received)
            assert least is not None
            assert least <= received - stored
            assert w.clock.age(stamped, received) >= 0


def test_a_step_that_hides_in_a_slow_reading_makes_no_message_surely_older() -> None:
    w = World()
    w.read(there=100 * MS, back=700 * MS)
    w.goes_on(SECOND)
    stored, stamped = w.now, w.wall()
    w.set_clock(0.05)
    w.goes_on(MS)
    received = w.now
    w.read()
    assert w.told == []
    least = w.clock.least_age(stamped, received)
    assert least is not None
    assert least <= received - stored


def test_a_message_from_the_future_shows_that_the_clock_was_set() -> None:
    w = World()
    w.read()
    assert not w.clock.is_from_the_future(w.wall(), w.now)
    w.set_clock(5.0)
    stored = w.wall()
    w.goes_on(MS)
    assert w.clock.is_from_the_future(stored, w.now)
    w.read()
    assert not w.clock.is_from_the_future(stored, w.now)


def test_what_was_stored_before_anybody_looked_is_surely_no_older_than_the_first_look() -> None:
    w = World()
    stored = w.wall() - 100 * SECOND  # by a clock that may have been set since
    assert w.clock.least_age(stored, w.now) is None
    w.read()
    w.goes_on(SECOND)
    received = w.now
    w.read()
    least = w.clock.least_age(stored, received)
    assert least is not None
    assert SECOND <= least <= SECOND + TRIP
    assert w.clock.age(stored, received) >= 100 * SECOND - TRIP, "as far as is known"
