"""Which requests of a model version are let in, with all times passed in."""

from __future__ import annotations

import contextlib
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.errors import ResourceExhausted, Status, Unavailable
from swarm.requests.admission import (
    PROBE_EVERY,
    STALL,
    ModelAdmission,
    Stalls,
)
from swarm.requests.breaker import MOST_OPEN_S, PROBE_TIMEOUT_S
from swarm.wire.messages import Result
from swarm.wire.urgency import HIGH, LOW, NORMAL

INTERVAL = 0.01  # seconds from one answer to the next
SECONDS = st.floats(0, 100, allow_nan=False)


def answer(status: Status = Status.OK, stage: int = 0) -> Result:
    return Result("r", "m", "1", status=status, stage=stage)


def fail(
    admission: ModelAdmission, now: float, stage: int = 0, status: Status = Status.UNAVAILABLE
) -> None:
    admission.leave(admission.enter(5.0, now), answer(status, stage), now + 0.001)


def broken(admission: ModelAdmission, now: float, stage: int) -> None:
    """Open one stage's breaker."""
    for _ in range(5):
        fail(admission, now, stage)


class Pipeline:
    """Requests that queue for one server, `service` seconds each, first come first served."""

    def __init__(self, admission: ModelAdmission, service: float) -> None:
        self.admission = admission
        self.service = service
        self.free = 0.0
        self.under_way: deque[tuple[float, object]] = deque()
        self.refused = 0
        self.late = 0
        self.answered = 0

    def until(self, now: float) -> None:
        while self.under_way and self.under_way[0][0] <= now:
            done, taken = self.under_way.popleft()
            in_time = done - taken.started <= taken.budget  # type: ignore[attr-defined]
            status = Status.OK if in_time else Status.DEADLINE_EXCEEDED
            self.answered += in_time
            self.late += not in_time
            self.admission.leave(taken, answer(status), done)  # type: ignore[arg-type]

    def send(self, budget: float, now: float) -> None:
        self.until(now)
        try:
            taken = self.admission.enter(budget, now)
        except (ResourceExhausted, Unavailable):
            self.refused += 1
            return
        self.free = max(self.free, now) + self.service
        self.under_way.append((self.free, taken))


def test_an_idle_admission_lets_everything_in() -> None:
    """One at a time, however slow the mesh and however small the budget."""
    admission = ModelAdmission()
    now = 0.0
    for number in range(500):
        taken = admission.enter(0.001 if number % 2 else 5.0, now)
        now += 0.3
        admission.leave(taken, answer(), now)
    assert (admission.shed, admission.refused, admission.inside) == (0, 0, 0)


def test_light_load_is_never_shed() -> None:
    """Half of what the pipeline can do."""
    pipeline = Pipeline(ModelAdmission(), service=0.010)
    for number in range(3000):
        pipeline.send(1.0, number * 0.020)
    assert pipeline.refused == 0
    assert pipeline.late == 0


def test_overload_is_shed_at_once_and_admitted_requests_are_answered_in_time() -> None:
    """Three times what the pipeline can do: it stays busy, and refusals replace late answers."""
    pipeline = Pipeline(ModelAdmission(), service=0.010)
    for number in range(6000):
        pipeline.send(0.2, number * 0.0033)
    pipeline.until(1e9)
    assert pipeline.refused > 2000
    assert pipeline.answered > 0.8 * 6000 * 0.0033 / 0.010  # the pipeline's own pace
    assert pipeline.late < 0.05 * pipeline.answered
    assert pipeline.admission.inside == 0


def test_a_request_that_is_shed_is_told_when_to_come_back() -> None:
    pipeline = Pipeline(ModelAdmission(), service=0.010)
    now = 0.0
    while not pipeline.refused:
        now += 0.001
        pipeline.send(0.2, now)
    with pytest.raises(ResourceExhausted, match=r"try again in \d+\.\d{3} s") as refused:
        pipeline.admission.enter(0.2, now)
    assert pipeline.admission.shed == 2
    assert 0 < refused.value.retry_after < 0.2
    pipeline.until(now + refused.value.retry_after)
    pipeline.admission.enter(0.2, now + refused.value.retry_after)


def test_after_an_overload_admission_opens_again() -> None:
    pipeline = Pipeline(ModelAdmission(), service=0.010)
    for number in range(3000):
        pipeline.send(0.2, number * 0.001)
    assert pipeline.refused > 0
    pipeline.until(100.0)
    refused = pipeline.refused
    for number in range(200):
        pipeline.send(0.2, 100.0 + number * 0.05)
    assert pipeline.refused == refused


def test_larger_budgets_pass_where_smaller_ones_are_shed() -> None:
    admission = ModelAdmission()
    pipeline = Pipeline(admission, service=0.010)
    for number in range(3000):
        pipeline.send(0.3, number * 0.005)
    with pytest.raises(ResourceExhausted):
        admission.enter(0.02, 15.0)
    admission.leave(admission.enter(30.0, 15.0), None, 15.0)


def test_admission_learns_the_pace_of_a_pipeline_that_became_faster() -> None:
    """Twice as fast after a while: twice as many are let in."""
    pipeline = Pipeline(ModelAdmission(), service=0.010)
    now = 0.0
    for _ in range(8000):
        now += 0.0025
        pipeline.send(0.2, now)
    slow = pipeline.answered / now
    pipeline.service, before, since = 0.005, pipeline.answered, now
    for _ in range(16000):
        now += 0.0025
        pipeline.send(0.2, now)
    fast = (pipeline.answered - before) / (now - since)
    assert fast > 1.6 * slow


def test_repeated_failures_of_a_stage_are_refused_at_once_and_name_it() -> None:
    admission = ModelAdmission()
    broken(admission, 1.0, stage=2)
    with pytest.raises(Unavailable, match="stage 2 failed repeatedly"):
        admission.enter(5.0, 1.01)
    assert (admission.refused, admission.inside) == (1, 0)


def test_failures_of_nobody_in_particular_open_the_whole_pipeline() -> None:
    admission = ModelAdmission()
    broken(admission, 1.0, stage=0)
    with pytest.raises(Unavailable, match="the pipeline failed"):
        admission.enter(5.0, 1.01)


@pytest.mark.parametrize(
    "status",
    [Status.INVALID_ARGUMENT, Status.NOT_FOUND, Status.RESOURCE_EXHAUSTED, Status.UNAUTHENTICATED],
)
def test_faults_of_the_requester_never_open_a_breaker(status: Status) -> None:
    admission = ModelAdmission()
    for number in range(100):
        fail(admission, number * 0.01, 1, status)
    admission.enter(5.0, 2.0)
    assert admission.refused == 0


def test_budgets_that_are_too_small_never_open_a_breaker() -> None:
    """The mesh usually takes 100 ms; asking for 10 says nothing about the mesh."""
    admission = ModelAdmission()
    for number in range(50):
        admission.leave(admission.enter(5.0, number * 1.0), answer(), number + 0.1)
    for number in range(50):
        taken = admission.enter(0.010, 50.0 + number * 0.2)
        admission.leave(taken, answer(Status.DEADLINE_EXCEEDED), taken.started + 0.010)
    assert admission.refused == 0


def test_after_the_open_period_one_probe_passes_and_its_success_closes_the_breaker() -> None:
    admission = ModelAdmission()
    broken(admission, 1.0, stage=2)
    with pytest.raises(Unavailable):
        admission.enter(5.0, 1.1)
    later = 1.1 + MOST_OPEN_S
    probe = admission.enter(5.0, later)
    with pytest.raises(Unavailable):
        admission.enter(5.0, later + 0.01)  # one probe at a time
    admission.leave(probe, answer(), later + 0.02)
    for number in range(10):
        admission.leave(admission.enter(5.0, later + 0.03 + number * 0.01), answer(), later + 0.2)
    assert admission.inside == 0


def test_a_probe_that_fails_opens_it_again_for_at_most_a_second() -> None:
    admission = ModelAdmission()
    broken(admission, 1.0, stage=2)
    now, probes = 1.1, 0
    for _ in range(1000):
        now += 0.01
        try:
            taken = admission.enter(5.0, now)
        except Unavailable:
            continue
        probes += 1
        admission.leave(taken, answer(Status.UNAVAILABLE, 2), now + 0.001)
    assert 8 <= probes <= 20  # one a second, for ten seconds; the first after half of one


def test_a_probe_that_is_abandoned_does_not_block_for_ever() -> None:
    admission = ModelAdmission()
    broken(admission, 1.0, stage=2)
    admission.leave(admission.enter(5.0, 3.0), None, 3.1)
    passed = []
    now = 3.1
    while now < 3.1 + 2 * (MOST_OPEN_S + PROBE_TIMEOUT_S):
        now += 0.05
        try:
            passed.append(admission.enter(5.0, now))
        except Unavailable:
            continue
        admission.leave(passed[-1], answer(), now + 0.001)
    assert len(passed) > 1


def test_one_stages_open_breaker_consumes_no_probe_of_another() -> None:
    """Stage 1 is due for its probe while stage 2 has only just opened: the refusal of stage 2
    must not use up the probe of stage 1."""
    admission = ModelAdmission()
    under_way = [admission.enter(5.0, 1.0) for _ in range(10)]
    for taken in under_way[:5]:
        admission.leave(taken, answer(Status.UNAVAILABLE, 1), 1.0)
    for taken in under_way[5:]:
        admission.leave(taken, answer(Status.UNAVAILABLE, 2), 1.4)
    with pytest.raises(Unavailable, match="stage 2"):
        admission.enter(5.0, 1.55)  # half a second has passed for stage 1, not for stage 2
    probe = admission.enter(5.0, 1.95)  # both are due: one probe for both
    admission.leave(probe, answer(), 1.96)
    admission.leave(admission.enter(5.0, 1.97), answer(), 1.98)
    assert admission.inside == 0


OUTCOMES = [None, *Status]


def test_the_first_answer_behind_a_stall_is_no_pace_though_it_is_to_a_young_request() -> None:
    """A node hangs with the requests of a client that was never busy before; another one answers
    those that come then."""
    admission = ModelAdmission()
    held = [admission.enter(10.0, 1.0 + number / 100) for number in range(10)]
    admission.leave(held.pop(0), answer(), 1.1)
    held += [admission.enter(10.0, 1.1 + number / 50) for number in range(30)]
    admission.leave(admission.enter(10.0, 1.79), answer(), 1.8)
    assert admission.answer_interval == 0.0
    admission.leave(admission.enter(10.0, 1.80), answer(), 1.82)
    assert admission.answer_interval == pytest.approx(0.02)


def test_the_time_in_which_nobody_was_inside_is_no_pace() -> None:
    admission = ModelAdmission()
    taken = [admission.enter(10.0, 1.0) for _ in range(10)]
    admission.leave(taken.pop(), answer(), 1.01)
    for each in taken:
        admission.leave(each, None, 1.02)  # given up by their callers
    admission.leave(admission.enter(10.0, 1.06), answer(), 1.07)
    assert admission.answer_interval == 0.0


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(0, 2),  # seconds that pass
            st.sampled_from([0.0, 1e-6, 0.01, 0.3, 5.0, 600.0]),  # budget
            st.integers(0, 3),  # the answer that comes: how many places back
            st.sampled_from(OUTCOMES),
            st.integers(0, 3),  # its stage
            st.sampled_from([LOW, NORMAL, HIGH]),
        ),
        max_size=120,
    )
)
def test_nothing_leaks_whatever_the_outcomes(
    steps: list[tuple[float, float, int, Status | None, int, int]],
) -> None:
    """Entered and left in any order with any outcome, refused or not: inside ends at 0, and the
    admission opens again by itself."""
    admission = ModelAdmission()
    now = 100.0
    held = []
    for passed, budget, back, status, stage, urgency in steps:
        now += passed
        with contextlib.suppress(ResourceExhausted, Unavailable):
            held.append(admission.enter(budget, now, urgency))
        assert admission.inside == len(held)
        if back and len(held) >= back:
            taken = held.pop(-back)
            admission.leave(taken, None if status is None else answer(status, stage), now)
            assert admission.inside == len(held)
    for taken in held:
        admission.leave(taken, None, now)
    assert admission.inside == 0
    for _ in range(20):  # the pace and the breakers recover from a minute of single requests
        now += 3.0
        try:
            admission.leave(admission.enter(5.0, now), answer(), now + 0.01)
        except (ResourceExhausted, Unavailable):
            continue
    assert admission.inside == 0
    now += 3.0
    admission.leave(admission.enter(5.0, now), answer(), now + 0.01)


# --- a stage that is away, and comes back ---------------------------------------------------


def outage(
    pipeline: Pipeline, began: float, away: float, until: float, rate: float = 60.0
) -> float:
    """Requests with a budget of 5 s go on coming while the pipeline is away, and until `until`
    seconds later. Returns the time of the last one."""
    pipeline.free = began + away
    now = began
    while now < began + until:
        now += 1 / rate
        pipeline.send(5.0, now)
    return now


def test_requests_that_waited_for_a_stage_that_was_away_make_no_standing_queue() -> None:
    """Outage after outage: each request's budget is longer than it, and none is refused."""
    pipeline = Pipeline(ModelAdmission(), service=0.010)
    now = 1.0
    for away in (0.5, 1.0, 2.0, 1.5, 0.2, 2.0):
        now = outage(pipeline, now, away, until=8.0)
    pipeline.until(now + 10.0)
    assert (pipeline.refused, pipeline.late) == (0, 0)
    assert pipeline.answered == pytest.approx(60 * (now - 1.0), abs=5)


def test_a_standing_queue_is_still_refused_where_answers_keep_coming() -> None:
    """Larger budgets than the queue may stand: a quarter of a second of work, as ever."""
    pipeline = Pipeline(ModelAdmission(), service=0.010)
    for number in range(6000):
        pipeline.send(5.0, number * 0.0033)
    assert pipeline.refused > 2000
    assert len(pipeline.under_way) * pipeline.service < 1.0


class Fleet:
    """The nodes that are known to serve a stage."""

    def __init__(self, *nodes: str) -> None:
        self.nodes = set(nodes)

    def present(self, stage: int) -> frozenset[str]:
        return frozenset(self.nodes)


def test_a_breaker_lets_all_requests_through_as_soon_as_a_new_node_is_known() -> None:
    fleet = Fleet("a")
    admission = ModelAdmission(fleet.present)
    broken(admission, 1.0, stage=2)
    with pytest.raises(Unavailable):
        admission.enter(5.0, 1.1)
    fleet.nodes = {"b"}
    for number in range(10):
        admission.leave(admission.enter(5.0, 1.11), answer(), 1.12 + number * 0.01)
    assert admission.refused == 1


def test_a_node_that_was_gone_and_is_known_again_closes_the_breaker_too() -> None:
    fleet = Fleet("a", "b")
    admission = ModelAdmission(fleet.present)
    broken(admission, 1.0, stage=2)
    fleet.nodes = {"b"}
    with pytest.raises(Unavailable):
        admission.enter(5.0, 1.1)
    fleet.nodes = {"a", "b"}
    admission.leave(admission.enter(5.0, 1.11), answer(), 1.12)


def test_the_nodes_that_failed_do_not_close_their_own_breaker() -> None:
    fleet = Fleet("a", "b")
    admission = ModelAdmission(fleet.present)
    broken(admission, 1.0, stage=2)
    fleet.nodes = {"b"}
    for number in range(10):
        with pytest.raises(Unavailable):
            admission.enter(5.0, 1.1 + number * 0.01)


def test_a_newcomer_that_fails_as_well_opens_it_again() -> None:
    fleet = Fleet("a")
    admission = ModelAdmission(fleet.present)
    broken(admission, 1.0, stage=2)
    fleet.nodes = {"b"}
    broken(admission, 1.1, stage=2)
    with pytest.raises(Unavailable):
        admission.enter(5.0, 1.2)


def test_while_no_lane_takes_requests_short_budgets_are_refused_and_long_ones_wait() -> None:
    admission = ModelAdmission()
    late = Result("r", status=Status.DEADLINE_EXCEEDED)
    for second in range(10):  # as many failures as would open a breaker
        taken = admission.enter(5.0, float(second))
        admission.leave(taken, late, second + 0.9, no_lane_at=second + 0.5)
    probe = admission.enter(0.3, 20.0)
    assert probe.is_probe
    with pytest.raises(Unavailable, match=r"no lane has taken a request for 19\.6 s"):
        admission.enter(0.3, 20.1)
    patient = admission.enter(60.0, 20.1)
    assert not patient.is_probe
    admission.leave(patient, Result("r"), 20.2)
    assert not admission.enter(0.3, 20.3).is_probe, "a lane has taken one"


# --- stalls: times without any answer while requests wait ----------------------------------


def test_the_silence_before_the_first_answer_after_an_outage_is_a_stall() -> None:
    stalls = Stalls()
    assert not stalls.answered(0.99, 1.0, INTERVAL)
    assert stalls.answered(1.5, 3.5, INTERVAL)
    assert stalls.during(1.5, 3.5, INTERVAL) == pytest.approx(2.0)
    assert stalls.during(3.0, 3.55, INTERVAL) == pytest.approx(0.5), "sent in the middle of it"
    assert stalls.during(3.51, 3.55, INTERVAL) == 0.0, "sent after it"


def test_a_stall_that_lasts_counts_before_it_ends() -> None:
    stalls = Stalls()
    stalls.answered(0.99, 1.0, INTERVAL)
    assert stalls.during(2.0, 7.0, INTERVAL) == pytest.approx(5.0)


def test_steady_answers_are_no_stall_however_long_each_request_waits() -> None:
    stalls = Stalls()
    for number in range(100):
        now = 10.0 + number * INTERVAL
        assert not stalls.answered(now - 3.0, now, INTERVAL) or number == 0
    assert stalls.during(10.5, now, INTERVAL) == 0.0


def test_slow_pipelines_have_longer_gaps_than_fast_ones() -> None:
    stalls = Stalls()
    stalls.answered(0.0, 1.0, 2.0)
    assert not stalls.answered(1.0, 4.0, answer_interval=2.0)
    assert stalls.answered(1.0, 13.0, answer_interval=2.0)


def test_the_backlog_of_a_stall_may_be_there_for_four_times_as_long() -> None:
    stalls = Stalls()
    assert not stalls.is_catching_up(1.0)
    stalls.answered(1.0, 1.5, INTERVAL)
    assert stalls.is_catching_up(3.4)
    assert not stalls.is_catching_up(3.6)


def test_a_client_that_was_idle_has_no_stall() -> None:
    stalls = Stalls()
    stalls.answered(0.99, 1.0, INTERVAL)
    assert not stalls.answered(100.0, 100.0 + STALL / 2, INTERVAL)


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), max_size=60), st.floats(0, 1))
def test_no_request_spends_more_time_in_stalls_than_it_lived(
    answers: list[tuple[float, float]], interval: float
) -> None:
    stalls, now = Stalls(), 100.0
    for passed, took in answers:
        now += passed
        stalls.answered(now - took, now, interval)
        for lived in (0.0, took, 50.0):
            assert -1e-9 <= stalls.during(now - lived, now, interval) <= lived + 1e-9


# --- outages: who waits for the end, and who is refused --------------------------------------


def sends(admission: ModelAdmission, budget: float, now: float) -> str:
    """How often a request would be sent."""
    try:
        return "once" if admission.enter(budget, now).is_probe else "until answered"
    except Unavailable:
        return "never"


def test_a_budget_that_is_longer_than_the_outage_waits_for_its_end() -> None:
    admission = ModelAdmission()
    assert sends(admission, 0.1, 5.0) == "until answered", "there is no outage"
    admission.no_lane(10.0)
    assert sends(admission, 3.0, 12.9) == "until answered"
    assert sends(admission, 30.0, 39.9) == "until answered"


def test_a_shorter_budget_is_refused_but_for_one_probe_in_a_while() -> None:
    admission = ModelAdmission()
    admission.no_lane(10.0)
    taken = [sends(admission, 0.3, 11.0 + step * 0.01) for step in range(100)]
    assert "until answered" not in taken
    assert 3 <= taken.count("once") <= 1 / PROBE_EVERY + 1
    admission.leave(admission.enter(5.0, 12.0), answer(), 12.0)
    assert sends(admission, 0.3, 12.1) == "until answered", "a lane has taken one"


@given(st.lists(SECONDS, min_size=1), SECONDS, SECONDS)
def test_an_outage_lasts_from_the_first_request_that_found_no_lane(
    sent: list[float], budget: float, later: float
) -> None:
    admission = ModelAdmission()
    for at in sent:
        admission.no_lane(at)
    now = min(sent) + later
    waits = sends(admission, budget, now) == "until answered"
    assert waits == (budget > now - min(sent) or now == min(sent))
