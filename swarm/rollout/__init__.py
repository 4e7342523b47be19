"""Rollouts: how a new version proves itself under a part of the traffic."""

from swarm.rollout.guards import BadGuard, Guard, parse_guards
from swarm.rollout.plan import Plan, parse_plan, plan_of
from swarm.rollout.progress import Progress, progressed, share_of
from swarm.rollout.statement import Report, Statement
from swarm.rollout.verdict import Seen, Verdict

__all__ = [
    "BadGuard",
    "Guard",
    "Plan",
    "Progress",
    "Report",
    "Seen",
    "Statement",
    "Verdict",
    "parse_guards",
    "parse_plan",
    "plan_of",
    "progressed",
    "share_of",
]
