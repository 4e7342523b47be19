"""Rollouts in simulated time: shares, verdicts, judges."""

from __future__ import annotations

import contextlib
import json
import random
from dataclasses import replace
from itertools import pairwise
from math import comb, exp, fsum, isqrt, lgamma, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.errors import DecodeError
from swarm.rollout import (
    GuardCounts,
    RolloutProgress,
    RolloutReport,
    Statement,
    Verdict,
    parse_guards,
    plan_of,
    progressed,
    share_of,
)
from swarm.rollout.followed import DEAF_AFTER
from swarm.rollout.judge import MOST_REPORTERS, SILENT_AFTER, Judge, reason
from swarm.rollout.statement import MOST_COUNT
from swarm.rollout.tally import RECENT, GuardTally
from swarm.rollout.verdict import EXACT_UP_TO, tail, verdict

PLAN = plan_of("p1", "2", "10%", "30%/10s", "p99<20ms,errors<1%", samples=20)
[P99, ERRORS] = PLAN.guards


def said(held: float, word: Verdict = Verdict.GOOD, ready: bool = True) -> Statement:
    nothing = (GuardCounts(), GuardCounts())
    return Statement("judge", "p1", ready, held, word, (word, word), nothing, nothing)


@given(st.integers(1, 60), st.integers(0, 60), st.floats(0.001, 0.999))
def test_the_tail_is_the_binomial_one(n: int, bad: int, p: float) -> None:
    exact = sum(comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(bad, n + 1))
    assert tail(n, bad, p) == pytest.approx(min(1.0, exact), abs=1e-9)


COUNTS = st.integers(1, EXACT_UP_TO * 4).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))


@settings(deadline=None)
@given(COUNTS, st.sampled_from([0.001, 0.01, 0.02, 0.3]))
def test_what_is_said_of_many_observations_is_a_bound_of_the_exact_tail(
    counts: tuple[int, int], p: float
) -> None:
    n, bad = counts

    def probability(k: int) -> float:
        ways = lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
        return exp(ways + k * log(p) + (n - k) * log(1 - p))

    # The rest only adds to the exact tail.
    exact = fsum(probability(k) for k in range(bad, min(n, bad + 400) + 1))
    assert tail(n, bad, p) >= exact * (1 - 1e-6)


def test_more_observations_than_anyone_could_sum_up_are_judged_all_the_same() -> None:
    for n in (10**12, MOST_COUNT, MOST_COUNT * MOST_REPORTERS):
        allowed = n // 100
        deviation = isqrt(allowed)
        assert (
            verdict(ERRORS, GuardCounts(n, allowed - deviation), GuardCounts(), 20) is Verdict.GOOD
        )
        assert (
            verdict(ERRORS, GuardCounts(n, allowed + deviation), GuardCounts(), 20) is Verdict.DOUBT
        )
        assert (
            verdict(ERRORS, GuardCounts(n, allowed + 5 * deviation), GuardCounts(), 20)
            is Verdict.BAD
        )
        assert verdict(ERRORS, GuardCounts(n, n), GuardCounts(), 20) is Verdict.BAD


def test_a_guard_says_nothing_good_before_it_has_samples() -> None:
    assert verdict(ERRORS, GuardCounts(19, 0), GuardCounts(19, 0), 20) is Verdict.FEW
    assert verdict(ERRORS, GuardCounts(20, 0), GuardCounts(), 20) is Verdict.GOOD
    assert (
        verdict(ERRORS, GuardCounts(20, 1), GuardCounts(), 20) is Verdict.DOUBT
    )  # it may be an accident
    assert verdict(ERRORS, GuardCounts(20, 20), GuardCounts(20, 20), 20) is Verdict.BAD


def test_a_version_that_fails_all_its_first_requests_is_bad_before_it_has_samples() -> None:
    assert verdict(ERRORS, GuardCounts(34, 34), GuardCounts(34, 34), 50) is Verdict.BAD
    assert (
        verdict(ERRORS, GuardCounts(2, 2), GuardCounts(2, 2), 50) is Verdict.FEW
    )  # it may be an accident
    judge = Judge(PLAN, "judge")
    judge.heard(told("a", 12, 12), 0.0)
    assert "12 of 12 requests" in reason(PLAN, judge.state(0.0, 0.0, True))


@given(st.integers(1, 60), st.data())
def test_a_breach_seen_before_there_are_samples_stays_one_if_all_that_follows_is_good(
    least: int, data: st.DataObject
) -> None:
    n = data.draw(st.integers(0, least - 1))
    bad = data.draw(st.integers(0, n))
    early = verdict(ERRORS, GuardCounts(n, bad), GuardCounts(), least)
    later = verdict(ERRORS, GuardCounts(least, bad), GuardCounts(), least)
    assert early is (Verdict.BAD if later is Verdict.BAD else Verdict.FEW)


def test_a_version_that_turns_bad_late_is_seen_by_its_last_seconds() -> None:
    assert verdict(ERRORS, GuardCounts(100_000, 30), GuardCounts(100, 30), 20) is Verdict.BAD


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_a_version_well_inside_its_guard_is_never_rolled_back(seed: int) -> None:
    drawn = random.Random(seed)
    seen = GuardCounts()
    for _ in range(1000):
        seen += GuardCounts(1, int(drawn.random() < ERRORS.allowed / 20))
        assert verdict(ERRORS, seen, seen, 20) is not Verdict.BAD


def test_the_share_follows_the_time_for_which_the_guards_held() -> None:
    progress = RolloutProgress()
    assert share_of(PLAN, progress) == 0.0
    shares = []
    for held in (0.0, 9.9, 10.0, 20.0, 30.0, 39.9, 40.0):
        progress = progressed(PLAN, progress, 100.0, [said(held)])
        shares.append(share_of(PLAN, progress))
    assert shares == [10.0, 10.0, 40.0, 70.0, 100.0, 100.0, 100.0]
    assert progress.done


def test_nothing_goes_to_a_version_that_no_nodes_serve_or_nobody_judges() -> None:
    waiting = progressed(PLAN, RolloutProgress(), 100.0, [said(0.0, ready=False)])
    assert share_of(PLAN, waiting) == 0.0
    assert share_of(PLAN, progressed(PLAN, RolloutProgress(), 30.0, [])) == 0.0


def test_a_judge_cannot_hurry_time_and_the_most_cautious_one_counts() -> None:
    hurried = progressed(PLAN, RolloutProgress(), 12.0, [said(4000.0)])
    assert share_of(PLAN, hurried) == 40.0
    two = progressed(PLAN, RolloutProgress(), 100.0, [said(4000.0), said(11.0)])
    assert share_of(PLAN, two) == 40.0
    assert progressed(PLAN, RolloutProgress(), 1e6, [replace(said(4000.0), plan="p2")]).step == -1


def test_a_requester_that_hears_nobody_goes_by_the_time_once_it_is_over() -> None:
    late = progressed(PLAN, RolloutProgress(), PLAN.lasts, [], deaf_for=DEAF_AFTER)
    assert late.done
    assert not progressed(PLAN, RolloutProgress(), PLAN.lasts, [], deaf_for=0.0).done


statements = st.lists(
    st.builds(
        said,
        st.floats(0, 100),
        st.sampled_from(list(Verdict)),
        st.booleans(),
    ),
    max_size=3,
)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(0, 5), statements), max_size=30))
def test_whatever_is_heard_the_share_never_falls_and_never_outruns_the_plan(
    story: list[tuple[float, list[Statement]]],
) -> None:
    progress, elapsed, before = RolloutProgress(), 0.0, 0.0
    for passed, heard in story:
        elapsed += passed
        progress = progressed(PLAN, progress, elapsed, heard)
        share = share_of(PLAN, progress)
        assert before <= share <= min(100.0, PLAN.canary + PLAN.step * (elapsed // PLAN.every))
        before = share
    aborted = replace(progress, aborted=True)
    assert share_of(PLAN, progressed(PLAN, aborted, elapsed + 1e6, [said(1e6)])) == 0.0


class Fleet:
    """Requesters that ask at a pace, and one judge, in simulated time."""

    def __init__(self, rate: float = 100.0, slow: float = 0.0, begins: float = 0.0) -> None:
        self.rate, self.slow, self.begins = rate, slow, begins
        self.judge = Judge(PLAN, "judge")
        self.tally = GuardTally(PLAN.guards)
        self.progress = RolloutProgress()
        self.now = 0.0
        self.last = self.judge.state(0.0, 0.0, True)
        self.shares: list[float] = []

    def run(self, seconds: float, stop_at_bad: bool = True) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += 0.5
            self.progress = progressed(PLAN, self.progress, self.now, [self.last])
            share = share_of(PLAN, self.progress)
            self.shares.append(share)
            for number in range(round(self.rate * share / 100 * 0.5)):
                slow = self.now >= self.begins and number % 100 < self.slow * 100
                self.tally.answered(0.05 if slow else 0.005, False, self.now)
            report = RolloutReport(
                "a", "p1", self.progress.step, self.tally.total(), self.tally.recent(self.now)
            )
            self.judge.heard(report, self.now)
            self.last = self.judge.state(self.now, self.now, True)
            if stop_at_bad and self.last.verdict is Verdict.BAD:
                return


def test_a_good_version_serves_everybody_when_its_last_step_has_held() -> None:
    fleet = Fleet()
    fleet.run(60.0)
    assert fleet.progress.done
    steps = [b - a for a, b in pairwise(fleet.shares) if b != a]
    assert fleet.shares[0] == 10.0
    assert steps == [30.0, 30.0, 30.0]


def test_a_version_that_turns_slow_is_seen_within_a_second() -> None:
    fleet = Fleet(slow=1.0, begins=15.0)
    fleet.run(60.0)
    assert fleet.last.verdict is Verdict.BAD
    assert fleet.now - 15.0 <= 1.0
    assert "p99<20ms is broken" in reason(PLAN, fleet.last)


def test_without_samples_the_share_stays_where_it_is() -> None:
    fleet = Fleet(rate=0.0)
    fleet.run(300.0)
    assert fleet.shares[-1] == 10.0
    assert fleet.last.verdict is Verdict.FEW
    slow_trickle = Fleet(rate=2.0)  # 0.2 a second at first
    slow_trickle.run(40.0)
    assert not slow_trickle.progress.done
    assert max(slow_trickle.shares) == 10.0


def test_a_judge_that_begins_late_goes_on_from_where_the_others_stand() -> None:
    fleet = Fleet()
    fleet.run(25.0)
    late = Judge(PLAN, "late")
    late.heard(RolloutReport("a", "p1", fleet.progress.step, fleet.tally.total(), ()), 25.0)
    late.resume([fleet.last])
    assert late.state(25.0, 25.0, True).held == fleet.last.held
    alone = Judge(PLAN, "alone")
    counts = fleet.tally.total()
    alone.heard(RolloutReport("a", "p1", fleet.progress.step, counts, counts), 25.0)
    alone.resume([])
    assert (
        progressed(PLAN, RolloutProgress(), 25.0, [alone.state(25.0, 25.0, True)]) == fleet.progress
    )


def test_reports_with_other_guards_or_of_other_plans_count_for_nothing() -> None:
    judge = Judge(PLAN, "judge")
    judge.heard(
        RolloutReport("a", "p2", 0, (GuardCounts(50, 50),) * 2, (GuardCounts(50, 50),) * 2), 0.0
    )
    judge.heard(RolloutReport("a", "p1", 0, (GuardCounts(50, 50),), (GuardCounts(50, 50),)), 0.0)
    assert judge.state(0.0, 0.0, True).verdict is Verdict.FEW


def test_a_judge_knows_new_requesters_from_those_that_it_has_heard() -> None:
    judge = Judge(PLAN, "judge")
    nothing = (GuardCounts(), GuardCounts())
    assert judge.heard(RolloutReport("a", "p1", 0, nothing, nothing), 0.0)
    assert not judge.heard(RolloutReport("a", "p1", 1, nothing, nothing), 1.0)
    assert not judge.heard(RolloutReport("b", "p2", 0, nothing, nothing), 1.0), (
        "it follows another plan"
    )
    assert judge.heard(RolloutReport("b", "p1", 0, nothing, nothing), 1.0)


def told(reporter: str, n: int, bad: int = 0) -> RolloutReport:
    """A requester's report of n requests, all of late."""
    return RolloutReport(reporter, "p1", 0, (GuardCounts(n, bad),) * 2, (GuardCounts(n, bad),) * 2)


def test_a_flood_of_new_reporters_drives_no_evidence_out_of_a_judge_and_is_counted() -> None:
    judge = Judge(PLAN, "judge")
    judge.heard(told("honest", 50, 50), 0.0)
    for number in range(MOST_REPORTERS + 10):
        judge.heard(told(f"flood-{number}", 1), 10.0)
    assert judge.refused == 11
    assert judge.state(10.0, 10.0, True).total[0] == GuardCounts(50 + MOST_REPORTERS - 1, 50)
    judge.heard(told("honest", 60, 60), 11.0)
    assert judge.state(11.0, 11.0, True).total[0].bad == 60, "who is known is heard on"
    assert judge.refused == 11


def test_a_new_reporter_takes_the_place_of_a_silent_one_that_has_observed_nothing() -> None:
    judge = Judge(PLAN, "judge", most_reporters=2)
    judge.heard(told("seen", 5), 0.0)
    judge.heard(told("idle", 0), 0.0)
    assert not judge.heard(told("late", 7), SILENT_AFTER / 2), "the idle one may still report"
    assert judge.heard(told("late", 7), SILENT_AFTER)
    assert judge.state(SILENT_AFTER, 10.0, True).total[0].n == 5 + 7
    assert not judge.heard(told("idle", 1), SILENT_AFTER)
    assert judge.refused == 2


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 3), st.floats(0, 5))))
def test_whatever_is_reported_no_evidence_is_lost_and_the_bound_holds(
    story: list[tuple[str, int, float]],
) -> None:
    judge, now, last = Judge(PLAN, "judge", most_reporters=3), 0.0, {}
    for reporter, more, passed in story:
        now += passed
        seen = last.get(reporter, 0) + more
        refused = judge.refused
        judge.heard(told(reporter, seen), now)
        if judge.refused == refused:
            last[reporter] = seen
        assert judge.state(now, now, True).total[0].n == sum(last.values())
        assert sum(1 for n in last.values() if n) <= 3


def test_a_version_that_one_node_cannot_run_is_bad_whatever_the_guards_say() -> None:
    judge = Judge(PLAN, "judge", most_reporters=1)
    assert judge.heard(told("node", 0), 0.0)
    cannot = replace(told("node", 0), cannot_run="shard-3-x cannot run it: there is no shard-3")
    judge.heard(RolloutReport.decode(cannot.encode()), 1.0)
    assert not judge.heard(told("late", 7), 10.0), "that is evidence, and keeps its place"
    statement = judge.state(10.0, 10.0, ready=False)
    assert statement.verdict is Verdict.BAD
    assert Statement.decode(statement.encode()) == statement
    assert reason(PLAN, statement) == "shard-3-x cannot run it: there is no shard-3"
    judge.heard(told("node", 0), 11.0)
    assert judge.state(11.0, 11.0, True).verdict is Verdict.FEW, "it can run it after all"


def test_a_tally_forgets_what_is_no_longer_of_late() -> None:
    tally = GuardTally(parse_guards("errors<1%"))
    tally.answered(0.1, True, 5.0)
    tally.answered(0.1, False, 5.2)
    assert tally.recent(5.5) == (GuardCounts(2, 1),)
    assert tally.recent(5.5 + RECENT) == (GuardCounts(),)
    assert tally.total() == (GuardCounts(2, 1),)


ENDS = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=200)


@given(ENDS, st.floats(0.0, 100.0))
def test_what_both_versions_fail_alike_is_no_evidence(
    ends: list[tuple[bool, bool]], now: float
) -> None:
    """Behind a cut link each request fails, whichever version it is for."""
    tally, alone = (
        GuardTally(parse_guards("errors<1%,p99<20ms")),
        GuardTally(parse_guards("errors<1%")),
    )
    counted = {True: 0, False: 0}
    for beside, _ in ends:
        tally.answered(9.0, True, now, beside=beside)
        counted[beside] += 1
        alone.answered(9.0, True, now)
    assert alone.total() == (GuardCounts(len(ends), len(ends)),), "alone, each failure counts"
    new = counted[False]
    expected = GuardCounts() if counted[True] else GuardCounts(new, new)
    assert tally.total() == tally.recent(now) == (expected, expected)


@given(ENDS)
def test_what_the_new_version_fails_alone_counts_in_full(ends: list[tuple[bool, bool]]) -> None:
    tally = GuardTally(parse_guards("errors<1%"))
    seen = GuardCounts()
    for beside, bad in ends:
        tally.answered(0.0, bad and not beside, 3.0, beside=beside)
        seen += GuardCounts(not beside, bad and not beside)
    assert tally.total() == (seen,)


def test_a_cut_that_is_over_excuses_nothing() -> None:
    tally = GuardTally(parse_guards("errors<1%"))
    tally.answered(9.0, True, 0.0, beside=True)
    tally.answered(9.0, True, 1.0)
    assert tally.total() == (GuardCounts(),)
    for second in range(2, 100):
        tally.answered(0.1, True, float(second))
        tally.answered(0.1, False, float(second), beside=True)
    assert tally.total() == (GuardCounts(98, 98),)


def test_a_report_and_a_statement_arrive_as_they_were_sent() -> None:
    report = RolloutReport(
        "a", "p1", -1, (GuardCounts(3, 1), GuardCounts()), (GuardCounts(), GuardCounts())
    )
    assert RolloutReport.decode(report.encode()) == report
    statement = said(12.5, Verdict.DOUBT)
    assert Statement.decode(statement.encode()) == statement


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from(sorted(json.loads(said(1.0).encode()))), JSON))
def test_a_malformed_statement_is_a_typed_error_or_one_that_travels(
    fields: dict[str, object],
) -> None:
    document = json.loads(said(1.0).encode()) | fields
    with contextlib.suppress(DecodeError):
        statement = Statement.decode(json.dumps(document).encode())
        assert Statement.decode(statement.encode()).encode() == statement.encode()


@given(st.binary(max_size=60))
def test_bytes_that_are_no_report_are_a_typed_error(data: bytes) -> None:
    with pytest.raises(DecodeError):
        RolloutReport.decode(data)
