"""One rollout as one process sees it: its present share, and what was observed of it. Pure."""

from __future__ import annotations

from dataclasses import replace

from swarm.rollout.plan import RolloutPlan
from swarm.rollout.progress import RolloutProgress, progressed, share_of
from swarm.rollout.statement import MOST_REASON, RolloutReport, Statement
from swarm.rollout.tally import GuardTally
from swarm.rollout.verdict import Verdict, verdict, worst

REPORT_EVERY = 0.4  # seconds between reports, at least
HEARD_FOR = 3.0  # seconds for which a statement counts
MOST_JUDGES = 8  # whose statements are kept


class FollowedRollout:
    """One rollout as this process sees it. `now` in seconds, of one monotonic clock.

    base: the version with the largest share beside it, to which requests go that it fails.
    """

    def __init__(self, plan: RolloutPlan, base: str, age: float, now: float) -> None:
        self.plan = plan
        self.base = base
        self.reason = ""  # why it was aborted
        self.progress = RolloutProgress()
        self.tally = GuardTally(plan.guards)
        self.statements: dict[str, tuple[Statement, float]] = {}
        self._began = now - age
        self._heard_at = now
        self._reported = 0.0
        self._cannot_run = ""
        self._broken_here = False

    @property
    def done(self) -> bool:
        """Whether the version has all traffic for good."""
        return self.progress.done

    @property
    def aborted(self) -> bool:
        """Whether a judge has ended it."""
        return self.progress.aborted

    def elapsed(self, now: float) -> float:
        """Seconds since the plan was stored."""
        return now - self._began

    def heard(self, statement: Statement, now: float) -> None:
        """A judge states how the guards stand."""
        if statement.plan != self.plan.id:
            return
        if statement.judge in self.statements or len(self.statements) < MOST_JUDGES:
            self.statements[statement.judge] = statement, now
        self._heard_at = now

    def abort(self, reason: str) -> None:
        """A judge has ended the rollout."""
        self.reason = reason
        self.progress = replace(self.progress, aborted=True)

    def fresh(self, now: float) -> list[Statement]:
        """The statements that count at present."""
        self.statements = {
            judge: (statement, at)
            for judge, (statement, at) in self.statements.items()
            if now - at < HEARD_FOR
        }
        return [statement for statement, _ in self.statements.values()]

    def advance(self, now: float) -> RolloutProgress:
        """Take in what was heard; returns the progress of now."""
        self.progress = progressed(
            self.plan, self.progress, self.elapsed(now), self.fresh(now), now - self._heard_at
        )
        return self.progress

    def share(self, now: float) -> float:
        """Percent of this process's requests for the new version. None go to a version that has
        broken a guard here, whether a judge knows that or not."""
        return 0.0 if self._broken_here else share_of(self.plan, self.advance(now))

    def is_report_due(self, now: float) -> bool:
        """Whether the last report is old enough."""
        return now - self._reported >= REPORT_EVERY

    def report(self, reporter: str, now: float) -> RolloutReport:
        """What was observed, as of now."""
        self._reported = now
        total, recent = self.tally.total(), self.tally.recent(now)
        verdicts = [
            verdict(guard, seen, late, self.plan.samples)
            for guard, seen, late in zip(self.plan.guards, total, recent, strict=True)
        ]
        self._broken_here = worst(verdicts) is Verdict.BAD
        return RolloutReport(
            reporter, self.plan.id, self.progress.step, total, recent, self._cannot_run
        )

    def cannot_run(self, reason: str) -> None:
        """This process is a node that cannot run the version, and why; "" where it can."""
        self._cannot_run = reason[:MOST_REASON]
