"""How `ack_wait` follows the work, and how it goes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.flow.latency import LatencyWindow
from swarm.transport.lane import MOST_ACK_WAIT, Tuning, measured_work
from swarm.transport.lane.tuning import CALM, ENOUGH, STOPS, STOPS_WITHIN, Stops, Work

USUAL = 0.1  # seconds; the model's own
EVERY = 5.0  # seconds between looks


class Lane:
    """An ack_wait that is tuned again and again."""

    def __init__(self, present: float = USUAL) -> None:
        self.present, self.now = present, 1000.0
        self.tuning = Tuning(present, self.now)

    def look(self, count: int = 0, p99: float = 0.0, link: float = 0.0) -> float:
        self.now += EVERY
        self.tuning, self.present = self.tuning.look(
            Work(count, p99), self.present, USUAL, link, MOST_ACK_WAIT, self.now
        )
        return self.present


def test_one_slow_message_among_few_changes_nothing() -> None:
    window = LatencyWindow()
    for seconds in (0.01, 0.01, 0.3, 0.01, 0.01, 0.01):
        window.add(seconds, 1000.0)
    work = measured_work(window, 1001.0)
    assert work.count == 6 < ENOUGH
    assert Lane().look(work.count, work.p99) == USUAL


@given(st.integers(2, 400))
def test_the_slowest_of_any_number_of_samples_does_not_count(number: int) -> None:
    window = LatencyWindow()
    for _ in range(number - 1):
        window.add(0.01, 1000.0)
    window.add(3.0, 1000.0)
    assert measured_work(window, 1001.0).p99 == pytest.approx(0.01, rel=0.05)


def test_samples_that_the_window_has_forgotten_are_not_counted() -> None:
    window = LatencyWindow()
    for _ in range(100):
        window.add(0.01, 1000.0)
    assert measured_work(window, 1001.0).count == 100
    assert measured_work(window, 1030.0) == Work(0, 0.0)


def test_it_follows_work_that_is_known_well() -> None:
    lane = Lane()
    assert lane.look(ENOUGH, 0.3) == pytest.approx(1.2)
    assert lane.look(ENOUGH, 0.02) == pytest.approx(0.08)


def test_it_goes_back_to_the_models_own_when_the_lane_is_idle() -> None:
    lane = Lane()
    lane.look(ENOUGH, 1.0)
    seen = [lane.look() for _ in range(20)]
    calm = int(CALM / EVERY) - 1
    assert seen[:calm] == [4.0] * calm
    assert seen[-1] == USUAL
    assert seen == sorted(seen, reverse=True)
    lane.present = 0.4  # another node has lengthened it
    assert lane.look() == 0.4
    assert [lane.look() for _ in range(20)][-1] == USUAL


def test_an_idle_lane_is_not_below_its_models_own() -> None:
    lane = Lane()
    assert lane.look(100, 0.001) < USUAL
    assert lane.look() == USUAL


@given(st.lists(st.tuples(st.integers(0, 200), st.floats(0.0, 100.0), st.floats(0.0, 2.0))))
def test_it_stays_within_its_bounds_and_what_the_link_needs(
    looks: list[tuple[int, float, float]],
) -> None:
    lane = Lane()
    for count, p99, link in looks:
        assert max(link, 0.06) <= lane.look(count, p99, link) <= MOST_ACK_WAIT


def test_a_few_stops_are_stops_and_more_of_them_are_a_loop_that_is_behind() -> None:
    stops = Stops()
    for number in range(STOPS + 3):
        for _ in range(2):  # seen twice
            stops.ended(float(number + 1), 1000.0 + number)
    assert stops.until == 1000.0 + STOPS - 1
    stops.ended(0.5, 1000.0 + STOPS + 3 + STOPS_WITHIN)
    assert stops.until == 1000.0 + STOPS + 3 + STOPS_WITHIN
