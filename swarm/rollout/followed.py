"""One rollout as one process sees it: its present share, and what was observed of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from swarm.rollout.plan import RolloutPlan
from swarm.rollout.statement import MOST_REASON, RolloutReport, Statement
from swarm.rollout.tally import GuardTally
from swarm.rollout.verdict import Verdict, verdict, worst

# The share of the traffic that a version under rollout gets now, as each requester computes it.
#
# It depends on the plan, the time since the plan was stored, and what the judges state. Nobody
# drives it: requesters that hear the same come to the same share.


# Seconds without any statement after which a requester goes by the time alone.
DEAF_AFTER = 3.0


@dataclass(frozen=True, slots=True)
class RolloutProgress:
    """How far a rollout has come. step: -1 before the first canary request. Once aborted it stays
    so, whatever is heard later."""

    step: int = -1
    done: bool = False
    aborted: bool = False


def progressed(
    plan: RolloutPlan,
    before: RolloutProgress,
    elapsed: float,
    statements: Iterable[Statement],
    deaf_for: float = 0.0,
) -> RolloutProgress:
    """The progress now. elapsed: seconds since the plan was stored. statements: the last one of
    each judge that is heard at present. deaf_for: seconds without any.

    The most cautious judge counts. A step that was reached is not left for a smaller one: in doubt
    the share stays. Without any judge to be heard for `DEAF_AFTER`, a plan whose time is over is
    taken for done; its nodes may have let the old version go.
    """
    if before.aborted or before.done:
        return before
    heard = [statement for statement in statements if statement.plan == plan.id]
    if not heard:
        over = elapsed >= plan.lasts and deaf_for >= DEAF_AFTER
        return replace(before, step=plan.last_step, done=True) if over else before
    if not all(statement.ready for statement in heard):
        return before
    if any(statement.verdict is Verdict.BAD for statement in heard):
        return before
    held = min(elapsed, *(statement.held for statement in heard))
    step = min(plan.last_step, int(held / plan.every + 1e-9))
    return replace(before, step=max(before.step, step), done=held >= plan.lasts)


def share_of(plan: RolloutPlan, progress: RolloutProgress) -> float:
    """Percent of the traffic for the new version, 0..100."""
    if progress.aborted or (progress.step < 0 and not progress.done):
        return 0.0
    if progress.done or progress.step >= plan.last_step:
        return 100.0
    return min(100.0, plan.canary + plan.step * progress.step)


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
