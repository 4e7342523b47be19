"""The gate of a pipeline of three stages with one server and one bounded lane each, simulated."""

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, pairwise
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.requests import admission
from swarm.requests.admission import Decision, QueueAdmission
from swarm.wire.urgency import HIGH, LOW, NORMAL

SERVICE_S = (0.004, 0.005, 0.003)
CAPACITY = 1 / max(SERVICE_S)
BUDGET_S = 0.100
LANE = 100


@pytest.fixture(autouse=True, scope="module")
def _short_runs() -> Iterator[None]:
    """Runs of milliseconds, budgets of a tenth of a second: less may stand than by default."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("MARGIN", 0.9),
            ("TARGET", 0.020),
            ("TARGET_RUNS", 2.0),
            ("INTERVAL", 0.100),
        ):
            patch.setattr(admission, name, value)
        yield


@dataclass
class Request:
    at: float
    decision: Decision
    stage: int = 0


@dataclass
class Told:
    """What happened: (arrival, answer) of what was admitted, times of refusals and lost."""

    answers: list[tuple[float, float]] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    overflowed: int = 0
    idle_at: float = 0.0


def run_pipeline(
    gate: QueueAdmission | None, load: list[tuple[float, float]], seed: int, wrong: float = 1.0
) -> Told:
    """Poisson arrivals by (until, rate) phases; its interval between answers is
    `wrong` times too long."""
    rng, told = Random(seed), Told()
    lanes: list[deque[Request]] = [deque() for _ in SERVICE_S]
    busy = [False] * len(SERVICE_S)
    heap: list[tuple[float, int, str, object]] = []
    order = count()
    interval = max(SERVICE_S) * wrong

    def at(when: float, kind: str, what: object = None) -> None:
        heapq.heappush(heap, (when, next(order), kind, what))

    def start(stage: int, now: float) -> None:
        if not busy[stage] and lanes[stage]:
            busy[stage] = True
            took = SERVICE_S[stage] * rng.lognormvariate(-0.02, 0.2)
            at(now + took, "finish", (stage, lanes[stage].popleft()))

    def enter(request: Request, stage: int, now: float) -> None:
        if len(lanes[stage]) >= LANE:
            told.overflowed += 1
            return
        lanes[stage].append(request)
        start(stage, now)

    now = 0.0
    for until, rate in load:
        while rate and (now := now + rng.expovariate(rate)) < until:
            at(now, "arrive")
        now = until
    while heap:
        now, _, kind, what = heapq.heappop(heap)
        if kind == "arrive":
            free = Decision(True, 0.0)
            decision = free if gate is None else gate.decide(interval, BUDGET_S, now)
            if decision.admitted:
                enter(Request(now, decision), 0, now)
            else:
                told.refused.append(now)
        else:
            assert isinstance(what, tuple)
            stage, request = what
            busy[stage] = False
            start(stage, now)
            if stage + 1 < len(SERVICE_S):
                enter(request, stage + 1, now)
                continue
            told.answers.append((request.at, now))
            told.idle_at = now
            if gate is not None:
                gate.observe(request.decision, interval, now - request.at, now)
    return told


def goodput(told: Told, start: float, end: float) -> float:
    good = sum(start <= at < end and done - at <= BUDGET_S for at, done in told.answers)
    return good / (end - start)


@pytest.mark.parametrize("seed", range(3))
def test_at_three_times_the_load_goodput_stays_near_capacity(seed: int) -> None:
    told = run_pipeline(QueueAdmission(), [(10.0, 3 * CAPACITY)], seed)
    assert goodput(told, 0.0, 10.0) >= 0.85 * CAPACITY
    assert told.overflowed == 0


@pytest.mark.parametrize("seed", range(3))
def test_what_is_admitted_meets_its_budget(seed: int) -> None:
    told = run_pipeline(QueueAdmission(), [(10.0, 3 * CAPACITY)], seed)
    late = sum(done - at > BUDGET_S for at, done in told.answers)
    assert late <= 0.01 * len(told.answers)


def test_without_the_gate_the_same_load_collapses() -> None:
    told = run_pipeline(None, [(10.0, 3 * CAPACITY)], 0)
    assert goodput(told, 0.0, 10.0) < 0.2 * CAPACITY


def test_below_capacity_nearly_everything_is_admitted() -> None:
    told = run_pipeline(QueueAdmission(), [(10.0, 0.7 * CAPACITY)], 1)
    offered = len(told.refused) + len(told.answers)
    assert len(told.refused) <= 0.01 * offered


@pytest.mark.parametrize("seed", range(3))
def test_within_a_second_after_the_overload_everything_is_admitted_again(seed: int) -> None:
    gate = QueueAdmission()
    told = run_pipeline(gate, [(5.0, 3 * CAPACITY), (10.0, 0.5 * CAPACITY)], seed)
    after = [at for at in told.refused if at > 5.5]
    assert not after
    late = [at for at, done in told.answers if at > 5.5 and done - at > BUDGET_S / 2]
    assert not late


def test_the_queue_is_empty_within_a_second_after_the_load_stops() -> None:
    told = run_pipeline(QueueAdmission(), [(5.0, 3 * CAPACITY)], 2)
    assert told.idle_at < 5.0 + BUDGET_S


@pytest.mark.parametrize("wrong", [0.5, 2.0])
def test_service_times_told_wrong_by_a_factor_of_two_are_survived(wrong: float) -> None:
    told = run_pipeline(QueueAdmission(), [(10.0, 3 * CAPACITY)], 0, wrong=wrong)
    assert goodput(told, 1.0, 10.0) >= 0.85 * CAPACITY


def test_a_refusal_says_why_and_when_to_come_back() -> None:
    gate = QueueAdmission()
    gate.inside = 100
    refused = gate.decide(0.005, 0.100, 0.0)
    assert not refused.admitted
    assert gate.inside == 100
    assert refused.reason == "the budget would end in the queue"
    assert refused.retry_after == pytest.approx(0.505 - 0.090)
    assert gate.decide(0.2, 0.100, 0.0).retry_after == inf


@given(st.floats(0.0001, 0.1))
def test_more_inside_never_predicts_less_time(interval: float) -> None:
    gate = QueueAdmission()
    predicted = [gate.decide(interval, 1e6, 0.0).predicted for _ in range(20)]
    assert all(one < other for one, other in pairwise(predicted))
    assert gate.inside == 20


def test_a_standing_queue_is_forgotten_when_no_answers_tell_of_it() -> None:
    gate, interval = QueueAdmission(), 0.005
    assert gate.decide(interval, 1.0, 0.0).admitted
    for tick in range(30):
        gate.inside = 11
        gate.observe(Decision(True, 0.055), interval, 0.080, tick * 0.01)
    assert gate.standing
    assert not gate.decide(interval, 1.0, 0.30).admitted
    assert gate.decide(interval, 1.0, 5.0).admitted
    assert not gate.standing


# --- priorities ---------------------------------------------------------------------------------


def busy_gate(normal: int, high: int = 0, low: int = 0) -> QueueAdmission:
    """With so many inside, admitted while the queue was short."""
    gate = QueueAdmission()
    for urgency, how_many in ((NORMAL, normal), (HIGH, high), (LOW, low)):
        for _ in range(how_many):
            assert gate.decide(0.0, 1.0, 0.0, urgency).admitted
    return gate


def test_a_high_one_is_let_in_where_a_normal_one_would_wait_for_longer_than_its_budget() -> None:
    gate = busy_gate(normal=100)
    assert not gate.decide(0.01, 1.0, 0.0).admitted
    assert gate.decide(0.01, 1.0, 0.0, HIGH).admitted
    # But not any number: high ones wait for each other, and others have their turns between.
    admitted = sum(gate.decide(0.01, 1.0, 0.0, HIGH).admitted for _ in range(100))
    assert 20 < admitted < 60


def test_the_wait_of_each_priority_is_predicted_by_its_share_and_is_no_longer_than_all() -> None:
    def predicted(gate: QueueAdmission, urgency: int) -> float:
        return int(gate.decide(0.01, 1e9, 0.0, urgency).predicted / 0.01 - 0.99)

    assert predicted(busy_gate(normal=100), NORMAL) == 100
    assert predicted(busy_gate(normal=100, high=4), HIGH) == 6
    assert predicted(busy_gate(normal=100, high=4), NORMAL) == 104
    assert predicted(busy_gate(normal=4, high=100), NORMAL) == 14
    assert predicted(busy_gate(normal=0, high=100), NORMAL) == 2
    assert predicted(busy_gate(normal=100, low=3), LOW) == 19
    assert predicted(busy_gate(normal=10, high=10, low=100), LOW) == 120


def test_what_passes_others_does_not_hide_that_their_queue_stands() -> None:
    gate, interval, now = busy_gate(normal=40), 0.01, 0.0
    for _ in range(200):
        now += interval
        normal = gate.decide(interval, 10.0, now)
        high = gate.decide(interval, 10.0, now, HIGH)
        assert high.admitted
        gate.observe(high, interval, interval, now)
        if normal.admitted:
            gate.observe(normal, interval, 0.6, now)
    assert gate.standing


def test_a_mesh_of_one_priority_is_decided_for_as_ever() -> None:
    for urgency in (LOW, NORMAL, HIGH):
        gates = QueueAdmission(), QueueAdmission()
        for number in range(100):
            now = number / 100
            one, other = gates[0].decide(0.01, 1.0, now, urgency), gates[1].decide(0.01, 1.0, now)
            assert one[:4] == other[:4]
