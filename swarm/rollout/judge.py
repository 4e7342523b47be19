"""One judge of one rollout: adds up what requesters report, and says how the guards stand.

The clock of the plan runs only while the guards hold. A step needs its own samples, so that traffic
never moves for lack of evidence.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from swarm.rollout.plan import RolloutPlan
from swarm.rollout.statement import RolloutReport, Statement
from swarm.rollout.verdict import GuardCounts, Verdict, is_breach, verdict, worst

MOST_REPORTERS = 4096  # whose evidence is kept
SILENT_AFTER = 3.0  # seconds after which what a reporter has seen of late is not of late any more


@dataclass(slots=True)
class _Heard:
    report: RolloutReport
    at: float


class Judge:
    """`heard` takes reports, `state` gives the statement of now. `now` in seconds, of one clock.

    A judge that begins late goes on from where requesters and other judges say that the rollout
    stands: see `resume`.

    A node that cannot run the version is evidence too, whatever the guards say.

    Evidence that was counted stays: it could else be flooded away. With `most_reporters` of them, a
    new one takes the place of a silent one that has observed nothing. Where there is none, its
    reports are refused, and counted as such (refused).
    """

    def __init__(self, plan: RolloutPlan, name: str, most_reporters: int = MOST_REPORTERS) -> None:
        self.plan = plan
        self.refused = 0
        self._name = name
        self._most_reporters = most_reporters
        self._reports: dict[str, _Heard] = {}
        # Those that have observed nothing yet, the longest silent first.
        self._without_evidence: OrderedDict[str, None] = OrderedDict()
        self._held = 0.0
        self._at: float | None = None  # when the clock was last looked at

    def heard(self, report: RolloutReport, now: float) -> bool:
        """A requester reports; returns whether it is a new one that is counted from now on. Reports
        of other plans, or with other guards, say nothing here."""
        guards = len(self.plan.guards)
        fits = len(report.total) == len(report.recent) == guards
        if report.plan != self.plan.id or not fits:
            return False
        is_new = report.reporter not in self._reports
        if is_new and len(self._reports) >= self._most_reporters and not self._make_place(now):
            self.refused += 1
            return False
        self._reports[report.reporter] = _Heard(report, now)
        self._without_evidence.pop(report.reporter, None)
        if not report.cannot_run and not any(seen.n for seen in report.total):
            self._without_evidence[report.reporter] = None
        return is_new

    def _make_place(self, now: float) -> bool:
        """Forget a silent reporter without evidence; whether there was one."""
        longest_silent = next(iter(self._without_evidence), None)
        if longest_silent is None or now - self._reports[longest_silent].at < SILENT_AFTER:
            return False
        del self._without_evidence[longest_silent], self._reports[longest_silent]
        return True

    def resume(self, statements: Iterable[Statement]) -> None:
        """Begin where the rollout stands: by other judges' statements, and by the steps at which
        requesters stand. Call it before the first `state`."""
        held = [s.held for s in statements if s.plan == self.plan.id]
        held += [heard.report.step * self.plan.every for heard in self._reports.values()]
        self._held = max([self._held, *held])

    def state(self, now: float, elapsed: float, ready: bool) -> Statement:
        """The statement of now. elapsed: seconds since the plan was stored. ready: every stage has
        a node that serves the new version."""
        total = self._sum(heard.report.total for heard in self._reports.values())
        recent = self._sum(
            heard.report.recent for heard in self._reports.values() if now - heard.at < SILENT_AFTER
        )
        least, guards = self.plan.samples, self.plan.guards
        verdicts = [
            verdict(guard, seen, late, least)
            for guard, seen, late in zip(guards, total, recent, strict=True)
        ]
        cannot_run = next(filter(None, (h.report.cannot_run for h in self._reports.values())), "")
        overall = Verdict.BAD if cannot_run else worst(verdicts)
        passed = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at = now
        if ready and overall is Verdict.GOOD:
            self._held = max(self._held, min(self._held + passed, self._proven(total), elapsed))
        return Statement(
            judge=self._name,
            plan=self.plan.id,
            ready=ready,
            held=self._held,
            verdict=overall,
            verdicts=tuple(verdicts),
            total=total,
            recent=recent,
            cannot_run=cannot_run,
        )

    def _sum(self, rows: Iterable[tuple[GuardCounts, ...]]) -> tuple[GuardCounts, ...]:
        sums = [GuardCounts()] * len(self.plan.guards)
        for row in rows:
            sums = [a + b for a, b in zip(sums, row, strict=True)]
        return tuple(sums)

    def _proven(self, total: tuple[GuardCounts, ...]) -> float:
        """Seconds of the plan for which there are samples enough. `agree` is not counted: the more
        traffic the new version has, the less is there to be copied."""
        seen = [
            counts.n
            for guard, counts in zip(self.plan.guards, total, strict=True)
            if guard.measure != "agree"
        ]
        return min(seen) // self.plan.samples * self.plan.every if seen else self.plan.lasts


def reason(plan: RolloutPlan, statement: Statement) -> str:
    """Why a rollout is rolled back, in one line; "" where nothing says so."""
    if statement.cannot_run:
        return statement.cannot_run
    for guard, stated, total, recent in zip(
        plan.guards, statement.verdicts, statement.total, statement.recent, strict=True
    ):
        if stated is Verdict.BAD:
            of_late = is_breach(guard, recent, plan.samples) and recent.share >= total.share
            seen, since = (recent, "of late") if of_late else (total, "since its beginning")
            return (
                f"guard {guard.text} is broken: {seen.bad} of {seen.n} requests {since} were "
                f"{_BAD[guard.measure]} ({seen.share:.1%}, allowed {guard.allowed:.1%})"
            )
    return ""


_BAD = {"latency": "slower or failed", "errors": "failed", "agree": "answered otherwise"}
