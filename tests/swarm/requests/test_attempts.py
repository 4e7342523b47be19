"""What a requester does next: decisions in simulated time."""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable, Generator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import (
    InvalidArgument,
    NoResponders,
    NotConnected,
    ResourceExhausted,
    Status,
    SwarmError,
    Unavailable,
)
from swarm.flow.backoff import Backoff
from swarm.flow.rules import decide
from swarm.requests import silence
from swarm.requests.attempts import (
    AT_THE_END,
    RULES,
    AttemptAction,
    AttemptConfig,
    Attempts,
    AttemptSituation,
    AttemptsOver,
    AttemptStep,
    Outcome,
    ends_wait,
    goes_fast,
    is_unserved,
    is_unusual,
    missing_after,
    no_lane_took,
)
from swarm.requests.retry import RetryBudget
from swarm.requests.silence import Silences
from swarm.wire.hops import Hop
from swarm.wire.messages import Result

KNOBS = AttemptConfig()
LOST = Unavailable("no PubAck")
NOBODY = NoResponders("nobody listens")
FULL = ResourceExhausted("the lane is full")
OFFLINE = NotConnected("there is no connection")


def result(status: Status = Status.OK, attempt: int = 1, stage: int = 1, node: str = "n") -> Result:
    return Result("r", "m", "1", status, stage=stage, node=node, attempt=attempt)


def hung(now: float, unanswered: int = silence.PROBES_AFTER) -> Silences:
    """So many attempts in a row were not answered."""
    silences = Silences()
    for _ in range(unanswered):
        silences.silent(now)
    return silences


def step(
    outcome: Outcome,
    tried: Attempts,
    silences: Silences | None = None,
    *,
    now: float = 10.0,
    remaining: float = 5.0,
    has_retry: bool = True,
    pause: float = 0.01,
) -> AttemptStep:
    found = silences or Silences()
    return decide(RULES, AttemptSituation(outcome, tried, found, now, remaining, has_retry, pause))


booleans = st.booleans()
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.none(),
    st.sampled_from([LOST, NOBODY, FULL, OFFLINE, InvalidArgument("a wrong shape")]),
    st.builds(
        result, st.sampled_from(Status), st.integers(1, 5), st.integers(0, 3), st.sampled_from("n")
    ),
    st.builds(result, st.just(Status.UNAVAILABLE), st.integers(1, 5), st.just(2), st.just("")),
)
all_tried = st.builds(
    Attempts,
    wants_fast=booleans,
    begun=st.just(0.0),
    at=st.floats(0, 10),
    number=st.integers(1, 20),
    fast=booleans,
    laneless=booleans,
    stored=booleans,
    leaving=booleans,
    unanswered=st.integers(0, 20),
)


@st.composite
def all_silences(draw: st.DrawFn) -> Silences:
    """Whatever was heard and not heard before."""
    silences = Silences()
    for now, event in enumerate(draw(st.lists(st.sampled_from("shua"), max_size=30))):
        match event:
            case "s":
                silences.silent(now / 4)
            case "h":
                silences.answered(now / 4)
            case "u":
                silences.unserved(now / 4)
            case _:
                silences.asked(now / 4)
    return silences


# --- the end ----------------------------------------------------------------------------


@given(all_tried, all_silences(), booleans, st.floats(-1, 600), st.floats(0, 1))
def test_a_success_ends_a_request_and_so_does_every_failure_but_unavailable(
    tried: Attempts, silences: Silences, has_retry: bool, remaining: float, pause: float
) -> None:
    """A full lane too: its refusal comes fast, and to wait is the caller's choice."""
    for status in set(Status) - {Status.UNAVAILABLE}:
        for outcome in (result(status), result(status, attempt=20)):
            assert step(
                outcome, tried, silences, remaining=remaining, has_retry=has_retry, pause=pause
            ) == AttemptStep(AttemptAction.END)
    assert step(FULL, tried, silences, has_retry=has_retry) == AttemptStep(AttemptAction.END)


@given(
    st.lists(outcomes.filter(lambda o: o is None or o.status is Status.UNAVAILABLE)),
    st.floats(0, 30),
)
def test_a_budget_ends_with_the_last_failure_where_each_attempt_was_answered(
    ended: list[Outcome], silent_for: float
) -> None:
    tried = Attempts(False, 0.0)
    for at, outcome in enumerate(ended, 1):
        tried.ended(outcome, at)
    answered = all(isinstance(outcome, Result | NoResponders) for outcome in ended)
    refused = bool(ended) and answered and silent_for <= len(ended)
    wanted = Status.UNAVAILABLE if refused else Status.DEADLINE_EXCEEDED
    if ended or silent_for:
        assert decide(AT_THE_END, AttemptsOver(tried, len(ended) + silent_for)) is wanted


@given(all_tried, all_silences())
def test_a_success_of_any_attempt_ends_the_present_wait(
    tried: Attempts, silences: Silences
) -> None:
    for attempt in (1, tried.number, tried.number + 1):
        assert ends_wait(result(attempt=attempt), tried, silences)


@given(outcomes, all_tried, all_silences(), st.floats(0, 600), booleans, st.floats(0, 1))
def test_an_attempt_is_made_only_inside_the_budget_and_paid_only_if_it_is_granted(
    outcome: Outcome,
    tried: Attempts,
    silences: Silences,
    remaining: float,
    has_retry: bool,
    pause: float,
) -> None:
    taken = step(outcome, tried, silences, remaining=remaining, has_retry=has_retry, pause=pause)
    if taken.do is AttemptAction.AGAIN:
        assert taken.seconds <= pause < remaining
        assert has_retry or not taken.paid
    else:
        assert not taken.paid
    assert taken.when_connected == (
        taken.do is AttemptAction.AGAIN and isinstance(outcome, NotConnected)
    )


def over(silence_ended: float) -> Silences:
    """A lasting silence that was over at this time."""
    silences = hung(silence_ended)
    silences.answered(silence_ended)
    return silences


SWALLOWED_BY, BUSY, UNDER_WAY = over(6.0), over(6.0), contextlib.ExitStack()
UNDER_WAY.enter_context(BUSY.repeating())  # as many repeats as there may be
LANE, FAST, LEAVING = (
    Attempts(False, 0.0, at=5.0, number=1, stored=True),
    Attempts(True, 0.0, at=5.0, number=1, fast=True),
    Attempts(False, 0.0, at=5.0, number=1, leaving=True),
)
CALM, ASKED = Silences(), hung(10.0)
ASKED.asked(10.0)
SITUATIONS = [
    AttemptSituation(result(), LANE, CALM, 10.0, 5.0, True, 0.01),
    AttemptSituation(None, LEAVING, CALM, 10.0, 5.0, True, 0.01),
    AttemptSituation(None, FAST, SWALLOWED_BY, 10.0, 5.0, True, 0.01),
    AttemptSituation(None, FAST, BUSY, 10.0, 5.0, True, 0.01),
    AttemptSituation(None, FAST, ASKED, 10.0, 5.0, True, 0.01),
    AttemptSituation(None, LANE, CALM, 10.0, 5.0, False, 0.01),
    AttemptSituation(result(Status.UNAVAILABLE), LANE, CALM, 10.0, 5.0, False, 0.01),
    AttemptSituation(result(Status.UNAVAILABLE), LANE, CALM, 10.0, 0.1, True, 0.2),
    AttemptSituation(OFFLINE, LANE, CALM, 10.0, 5.0, True, 0.01),
    AttemptSituation(None, LANE, CALM, 10.0, 5.0, True, 0.01),
    AttemptSituation(LOST, LANE, CALM, 10.0, 5.0, True, 0.01),
]


@pytest.mark.parametrize(("number", "situation"), list(enumerate(SITUATIONS, 1)))
def test_each_rule_of_the_table_decides_somewhere(number: int, situation: AttemptSituation) -> None:
    """A row that an earlier one always hides would be a lie on the page."""
    assert len(SITUATIONS) == len(RULES)
    assert 1 + next(n for n, rule in enumerate(RULES) if rule.holds(situation)) == number


@given(outcomes, all_tried, all_silences())
def test_asking_whether_to_ask_again_changes_nothing(
    outcome: Outcome, tried: Attempts, silences: Silences
) -> None:
    assert step(outcome, tried, silences) == step(outcome, tried, silences)


# --- one step ---------------------------------------------------------------------------


def test_a_request_that_could_not_be_stored_is_asked_again_at_no_cost() -> None:
    tried = Attempts(False, 0.0, number=1)
    assert step(LOST, tried, has_retry=False) == AttemptStep(AttemptAction.AGAIN, 0.01)
    assert step(OFFLINE, tried, has_retry=False) == AttemptStep(
        AttemptAction.AGAIN, 0.01, when_connected=True
    )


def test_to_ask_again_for_a_stored_request_costs_a_retry_and_without_one_it_is_awaited() -> None:
    """A silence of many spends the retries: whoever comes too late for one gets a later one."""
    tried = Attempts(False, 0.0, number=1, stored=True)
    assert step(None, tried) == AttemptStep(AttemptAction.AGAIN, paid=True)
    assert step(None, tried, has_retry=False) == AttemptStep(
        AttemptAction.WAIT, KNOBS.ask_stored_later
    )
    assert step(result(Status.UNAVAILABLE), tried) == AttemptStep(
        AttemptAction.AGAIN, 0.01, paid=True
    )
    assert step(result(Status.UNAVAILABLE), tried, has_retry=False) == AttemptStep(
        AttemptAction.LAST_CHANCE
    )


@given(booleans, st.floats(0.1, 60), booleans)
def test_a_request_that_its_slow_link_has_not_carried_yet_is_never_sent_again(
    fast: bool, remaining: float, has_retry: bool
) -> None:
    tried = Attempts(fast, begun=0.0, at=1.0, number=1, leaving=True)
    decided = step(None, tried, remaining=remaining, has_retry=has_retry)
    assert decided.do is AttemptAction.WAIT
    assert decided.seconds >= KNOBS.ask_stored_later


def test_a_request_that_has_just_left_has_one_more_wait_to_be_answered() -> None:
    tried = Attempts(False, begun=0.0, at=1.0, number=1)
    tried.looked(carried=True)
    assert not tried.leaving, "it remaining long ago"
    tried.looked(carried=False)
    assert tried.leaving
    tried.looked(carried=True)
    assert tried.leaving
    tried.looked(carried=True)
    assert not tried.leaving
    tried.looked(carried=False)
    tried.stored = True
    tried.looked(carried=True)
    assert not tried.leaving


def test_without_a_retry_a_request_that_nobody_keeps_waits_until_one_is_granted() -> None:
    """Its last chance would never come: no lane has it."""
    tried = Attempts(True, 0.0, number=1, fast=True, stored=True)
    assert step(None, tried, has_retry=False) == AttemptStep(AttemptAction.WAIT, KNOBS.ask_later)


@pytest.mark.parametrize("outcome", [NOBODY, result(Status.UNAVAILABLE, stage=2, node="")], ids=str)
def test_a_stage_that_nobody_serves_is_asked_again_at_no_cost_for_a_second(
    outcome: Outcome,
) -> None:
    """Within it gossip knows of a death, and a fallback listens."""
    tried = Attempts(True, begun=10.0, number=3, fast=True, stored=isinstance(outcome, Result))
    soon, later = 10.0 + 0.9 * KNOBS.unserved_for, 10.0 + KNOBS.unserved_for
    assert step(outcome, tried, now=soon, has_retry=False) == AttemptStep(AttemptAction.AGAIN, 0.01)
    assert step(outcome, tried, now=later) == AttemptStep(AttemptAction.AGAIN, 0.01, paid=True)
    assert step(outcome, tried, now=later, has_retry=False) == AttemptStep(
        AttemptAction.LAST_CHANCE
    )


def test_a_lane_that_is_not_there_yet_is_asked_for_at_no_cost_until_the_budget_ends() -> None:
    """Nothing computes for it: a model's lanes may come with its first node."""
    tried = Attempts(False, begun=0.0, number=50)
    assert step(NOBODY, tried, now=100.0, has_retry=False) == AttemptStep(AttemptAction.AGAIN, 0.01)


def test_a_request_that_a_lasting_silence_swallowed_is_repeated_when_it_is_its_turn() -> None:
    silences = hung(9.0)
    tried = Attempts(True, 9.0, at=9.0, number=1, fast=True, stored=True)
    silences.asked(9.99)
    assert step(None, tried, silences) == AttemptStep(AttemptAction.WAIT, KNOBS.ask_later), (
        "others ask for all"
    )
    silences.answered(10.0)
    assert step(None, tried, silences, has_retry=False) == AttemptStep(AttemptAction.REPEAT)
    with silences.repeating():
        assert step(None, tried, silences) == AttemptStep(AttemptAction.WAIT, KNOBS.ask_later), (
            "one at a time at first"
        )
    tried.at = 10.1
    assert step(None, tried, silences, now=11.0) == AttemptStep(AttemptAction.AGAIN, paid=True), (
        "once"
    )


def test_durable_requests_are_kept_by_their_lane_whatever_fast_mode_swallows() -> None:
    silences = hung(9.0)
    tried = Attempts(False, 9.0, at=9.0, number=1, stored=True)
    silences.answered(10.0)
    assert step(None, tried, silences) == AttemptStep(AttemptAction.AGAIN, paid=True)


# --- ways -------------------------------------------------------------------------------


def test_fast_mode_is_the_way_of_first_attempts_while_no_stage_may_hang() -> None:
    assert goes_fast(Attempts(True, 0.0, number=1), doubtful=False)
    assert not goes_fast(Attempts(True, 0.0, number=1), doubtful=True), "lanes find who covers"
    assert not goes_fast(Attempts(True, 0.0, number=2), doubtful=False), "it was lost once"
    assert goes_fast(Attempts(True, 0.0, number=2, laneless=True), doubtful=True), "no lane took it"


@given(all_tried, booleans, outcomes)
def test_a_durable_request_never_goes_without_a_lane(
    tried: Attempts, doubtful: bool, outcome: Outcome
) -> None:
    tried.wants_fast = False
    assert not goes_fast(tried, doubtful)
    assert not no_lane_took(tried, outcome)
    assert not tried.needs_requester


def test_lanes_that_refuse_a_request_of_fast_mode_are_done_without() -> None:
    by_lane = Attempts(True, 0.0, number=2)
    for error in (LOST, NOBODY, FULL):
        assert no_lane_took(by_lane, error)
        assert not no_lane_took(Attempts(True, 0.0, number=2, fast=True), error)
    for other in (None, OFFLINE, result(), result(Status.UNAVAILABLE), InvalidArgument("no")):
        assert not no_lane_took(by_lane, other)


# --- patience ---------------------------------------------------------------------------


@given(all_tried, st.floats(0, 600), st.floats(0, 10), booleans)
def test_no_answer_is_awaited_beyond_the_budget(
    tried: Attempts, remaining: float, p99: float, lasting: bool
) -> None:
    after = missing_after(tried, remaining, p99, lasting)
    assert after <= remaining
    least = KNOBS.fast_missing_after if tried.fast else KNOBS.missing_after
    assert after >= min(remaining, least)


def test_a_lane_has_a_share_of_the_budget_to_answer() -> None:
    tried = Attempts(False, 0.0, number=1)
    assert missing_after(tried, 10.0, 0.001, False) == 10.0 * KNOBS.missing_after_share
    assert missing_after(tried, 0.3, 0.001, False) == KNOBS.missing_after
    assert missing_after(tried, 0.1, 0.001, False) == 0.1


@given(st.floats(0, 1))
def test_fast_mode_is_patient_for_longer_from_silence_to_silence_but_not_for_ever(
    p99: float,
) -> None:
    patience = [
        missing_after(
            Attempts(True, 0.0, number=1, fast=True, unanswered=n), 600.0, p99, lasting=True
        )
        for n in range(12)
    ]
    first = max(KNOBS.fast_missing_after, KNOBS.fast_missing_after_p99 * p99)
    assert patience[0] == first
    assert patience == sorted(patience)
    assert patience[-1] == max(first, KNOBS.fast_missing_after_most)
    tried = Attempts(True, 0.0, number=5, fast=True, unanswered=12)
    assert missing_after(tried, 600.0, p99, lasting=False) == first, "one message was lost"


# --- answers ----------------------------------------------------------------------------


def test_a_failure_of_an_earlier_attempt_does_not_end_the_present_one() -> None:
    tried, none = Attempts(False, 0.0, number=2), Silences()
    assert not ends_wait(result(Status.UNAVAILABLE, attempt=1), tried, none)
    assert ends_wait(result(Status.UNAVAILABLE, attempt=2), tried, none)
    assert ends_wait(result(Status.INVALID_ARGUMENT, attempt=1), tried, none), "it would fail again"


def test_in_fast_mode_the_refusal_of_a_stage_that_hung_ends_nothing() -> None:
    """Requests lay there; another node takes them."""
    silences = hung(9.0)
    silences.answered(10.0)
    refusal = result(Status.RESOURCE_EXHAUSTED, attempt=1)
    lay_there = Attempts(True, 9.0, at=9.5, number=1, fast=True)
    assert not ends_wait(refusal, lay_there, silences)
    assert not ends_wait(refusal, Attempts(True, 9.0, at=10.5, number=2), silences)
    assert ends_wait(refusal, Attempts(True, 9.0, at=10.5, number=1, fast=True), silences)
    assert ends_wait(refusal, Attempts(False, 9.0, at=9.5, number=1), silences), "a lane is full"


@pytest.mark.parametrize(
    ("tried", "attempt", "took", "unusual"),
    [
        (Attempts(True, 0.0, number=1, fast=True), 1, 5.0, False),  # slow
        (Attempts(True, 0.0, number=1), 1, 0.1, True),  # by a lane
        (Attempts(True, 0.0, number=2), 2, 0.1, True),  # the first attempt was lost
        (
            Attempts(True, 0.0, number=2),
            1,
            0.1,
            False,
        ),  # the first attempt was slow, as its hops say
        (Attempts(True, 0.0, number=2), 1, 1.0, True),  # the first attempt lay somewhere
        (Attempts(False, 0.0, number=2), 2, 5.0, False),  # durable
    ],
    ids=["slow", "by a lane", "second answered", "first late", "first lay", "durable"],
)
def test_fast_mode_learns_its_patience_from_slow_requests_and_not_from_lost_ones(
    tried: Attempts, attempt: int, took: float, unusual: bool
) -> None:
    hops = (Hop(1, "n", 30_000, 60_000, 1),)
    answer = Result("r", "m", "1", attempt=attempt, hops=hops)
    assert is_unusual(tried, False, answer, took) == unusual
    assert not is_unusual(tried, True, answer, took), "of hedged ones all is learned"
    assert not is_unusual(tried, False, None, took)


def test_a_failure_without_a_node_means_that_nobody_listened() -> None:
    assert is_unserved(NOBODY)
    assert is_unserved(result(Status.UNAVAILABLE, stage=3, node=""))
    assert not is_unserved(result(Status.UNAVAILABLE, stage=3, node="n"))
    assert not is_unserved(result(Status.UNAVAILABLE, stage=0, node=""))
    assert not is_unserved(LOST)
    assert not is_unserved(None)


# --- whole requests, in simulated time --------------------------------------------------


class Mesh:
    """A mesh in simulated time. answer(now, fast): the outcome of an attempt made now, and after
    how many seconds it comes."""

    def __init__(self, answer: Callable[[float, bool], tuple[Outcome, float]]) -> None:
        self.answer = answer
        self.budget = RetryBudget(0.1, 0.5)  # a reserve of five
        self.silences = Silences()
        # When, of which request, why, and whether in fast mode.
        self.attempts: list[tuple[float, int, AttemptAction, bool]] = []
        self.ended: dict[int, tuple[float, Outcome]] = {}
        self.paid = 0
        self.repeating = 0
        self.most_repeating = 0

    def run(self, count: int, apart: float, budget: float, *, fast: bool) -> None:
        """So many requests, each so many seconds behind the one before."""
        requests = [self._request(n, n * apart, budget, fast) for n in range(count)]
        queue = [(number * apart, number, True) for number in range(count)]
        while queue:
            now, number, begins = heapq.heappop(queue)
            with contextlib.suppress(StopIteration):
                seconds = next(requests[number]) if begins else requests[number].send(now)
                heapq.heappush(queue, (now + seconds, number, False))

    def _request(
        self, number: int, begun: float, budget: float, fast: bool
    ) -> Generator[float, float, None]:
        """Yields seconds to wait, is sent the time."""
        now, deadline = begun, begun + budget
        tried = Attempts(fast, begun)
        backoff = Backoff(0.005, 0.1, Random(number))
        self.budget.on_requests(1, now)
        outcome: Outcome = None
        why = AttemptAction.AGAIN
        while True:
            # An attempt.
            assert now <= deadline
            tried.number += 1
            tried.at = now
            tried.fast = goes_fast(tried, self.silences.doubtful(now))
            tried.laneless = False
            self.attempts.append((now, number, why, tried.fast))
            outcome, after = self.answer(now, tried.fast)
            tried.stored = not isinstance(outcome, SwarmError)
            patience = missing_after(tried, deadline - now, 0.01, self.silences.lasting)
            if outcome is None or after > patience:
                outcome, after = None, patience
            with self._turn(why):
                now = yield after
            if no_lane_took(tried, outcome) and now < deadline:
                tried.laneless = True
                continue
            self._learn(tried, outcome, now)
            # What next?
            while True:
                remaining = deadline - now
                if remaining <= 1e-9:
                    self.ended[number] = now, outcome
                    return
                has_retry, pause = self.budget.has_retry(now), backoff.next()
                found = AttemptSituation(
                    outcome, tried, self.silences, now, remaining, has_retry, pause
                )
                taken = decide(RULES, found)
                if taken.do is AttemptAction.WAIT:
                    now = yield min(taken.seconds, remaining)
                    continue
                if taken.do in (AttemptAction.END, AttemptAction.LAST_CHANCE):
                    self.ended[number] = now, outcome
                    return
                break
            if taken.paid:
                assert self.budget.try_retry(now)
                self.paid += 1
            if taken.do is AttemptAction.AGAIN:
                self.silences.asked(now)
                now = yield (min(0.02, remaining) if taken.when_connected else taken.seconds)
            why = taken.do

    def _learn(self, tried: Attempts, outcome: Outcome, now: float) -> None:
        if isinstance(outcome, Result):
            self.silences.answered(now, outcome.status is Status.OK)
        elif outcome is None and tried.wants_fast and not tried.fast:
            tried.laneless = True
        elif outcome is None:
            self.silences.silent(now)
        if tried.fast and is_unserved(outcome):
            self.silences.unserved(now)
        tried.unanswered = tried.unanswered + 1 if outcome is None else 0

    @contextlib.contextmanager
    def _turn(self, why: AttemptAction) -> Generator[None]:
        if why is not AttemptAction.REPEAT:
            yield
            return
        with self.silences.repeating():
            self.repeating += 1
            self.most_repeating = max(self.most_repeating, self.repeating)
            yield
            self.repeating -= 1

    @property
    def made(self) -> int:
        return len(self.attempts)


def test_a_mesh_that_is_well_is_asked_once_for_each_request() -> None:
    for fast in (False, True):
        mesh = Mesh(lambda now, fast: (result(), 0.002))
        mesh.run(500, 0.01, 1.0, fast=fast)
        assert mesh.made == len(mesh.ended) == 500
        assert {outcome and outcome.status for _, outcome in mesh.ended.values()} == {Status.OK}


@given(st.lists(st.tuples(outcomes, st.floats(0, 1)), min_size=1, max_size=40), booleans)
def test_whatever_happens_retries_are_no_more_than_the_budget_grants_and_end_with_the_request(
    story: list[tuple[Outcome, float]], fast: bool
) -> None:
    told = 0

    def answer(now: float, fast: bool) -> tuple[Outcome, float]:
        nonlocal told
        told += 1
        return story[told % len(story)]

    mesh = Mesh(answer)
    mesh.run(20, 0.05, 1.0, fast=fast)
    assert len(mesh.ended) == 20
    assert all(now <= number * 0.05 + 1.0 + 1e-6 for number, (now, _) in mesh.ended.items())
    assert mesh.paid <= 5 + 0.1 * 20


def test_when_everything_fails_retries_add_a_tenth_to_the_load() -> None:
    mesh = Mesh(lambda now, fast: (result(Status.UNAVAILABLE), 0.001))
    mesh.run(1000, 0.01, 1.0, fast=False)
    assert 1000 < mesh.made <= 1000 * 1.1 + 5
    assert {outcome.status for _, outcome in mesh.ended.values() if outcome} == {Status.UNAVAILABLE}


@pytest.mark.parametrize("seconds", [0.5, 1.0, 2.0])
def test_a_stage_that_hangs_for_a_while_loses_no_request_and_is_asked_little_meanwhile(
    seconds: float,
) -> None:
    """No lane covers for it: requests wait, few ask for all, and each is repeated when it is over,
    a few at a time."""

    def answer(now: float, fast: bool) -> tuple[Outcome, float]:
        if not fast:
            return NOBODY, 0.001  # there is no lane
        return (None, 0.0) if 1.0 <= now < 1.0 + seconds else (result(), 0.002)

    mesh = Mesh(answer)
    mesh.run(400, 0.01, 10.0, fast=True)
    assert {outcome and outcome.status for _, outcome in mesh.ended.values()} == {Status.OK}
    since, until = 1.0 + silence.DOUBT_FOR / 4, 1.0 + seconds
    during = [number for at, number, _, fast in mesh.attempts if fast and since <= at < until]
    probes = seconds / silence.PROBE_EVERY + silence.LASTING_AFTER
    assert len(during) - len(set(during)) <= probes
    assert mesh.most_repeating <= silence.REPEATS
    repeated = [
        number for _, number, why, fast in mesh.attempts if fast and why is AttemptAction.REPEAT
    ]
    assert len(repeated) == len(set(repeated)), "each once"
    assert max(now for now, _ in mesh.ended.values()) < 400 * 0.01 + 2.0
