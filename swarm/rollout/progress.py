"""The share of the traffic that a version under rollout gets now, as each requester computes it.

It depends on the plan, the time since the plan was stored, and what the judges state. Nobody drives
it: requesters that hear the same come to the same share.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from swarm.rollout.plan import RolloutPlan
from swarm.rollout.statement import Statement
from swarm.rollout.verdict import Verdict

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
