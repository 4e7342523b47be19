"""Rollouts: how a new version proves itself under a part of the traffic."""

from swarm.rollout.followed import RolloutProgress, progressed, share_of
from swarm.rollout.guards import BadGuard, RolloutGuard, parse_guards
from swarm.rollout.plan import RolloutPlan, parse_plan, plan_of
from swarm.rollout.statement import RolloutReport, Statement
from swarm.rollout.verdict import GuardCounts, Verdict

__all__ = [
    "BadGuard",
    "GuardCounts",
    "RolloutGuard",
    "RolloutPlan",
    "RolloutProgress",
    "RolloutReport",
    "Statement",
    "Verdict",
    "parse_guards",
    "parse_plan",
    "plan_of",
    "progressed",
    "share_of",
]
