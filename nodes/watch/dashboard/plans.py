"""The plan in force of a pipeline, drawn as lanes: a row for each device, its slot in it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from nodes.watch.dashboard.facts import PlanFacts
from nodes.watch.dashboard.health import GONE
from nodes.watch.dashboard.history import rounded
from nodes.watch.dashboard.pipelines import NodeNow

MOST_LANES = 48  # that a page shows


def plan_of(nodes: Sequence[NodeNow], pipeline: Mapping[str, Any]) -> dict[str, Any] | None:
    """The plan of the pipeline's version that most living nodes tell of, the newest of several;
    None without one.

    Of each slot: its stages, the nodes that it shall have and has, and how long a request waits for
    it, ms of the median: the hop that leads there. A lane's ms is a request's time on that node.
    """
    of = pipeline["model"], pipeline["version"]
    told = [
        (now, plan)
        for now in nodes
        if now.health not in GONE
        for plan in now.facts.plans
        if (plan.model, plan.version) == of and plan.number
    ]
    if not told:
        return None
    tell = Counter((plan.number, plan.slots) for _, plan in told)
    most = max(tell, key=lambda each: (tell[each], each))
    plan = next(plan for _, plan in told if (plan.number, plan.slots) == most)
    lanes = sorted(
        (_lane(now, each, plan) for now, each in told),
        key=lambda lane: (lane["slot"] is None, lane["slot"], lane["node"]),
    )
    waits = {stage["stage"]: stage["queue"][0] for stage in pipeline["stages"]}
    return {
        "number": plan.number,
        "frozen": plan.frozen,
        "reason": plan.reason,
        "lacking": next((each.lacking for _, each in told if each.lacking), ""),
        "stages": max([last for _, last in plan.slots] + list(waits)),
        "slots": [
            {
                "first": first,
                "last": last,
                "replicas": plan.replicas[place] if place < len(plan.replicas) else 1,
                "nodes": sum(lane["slot"] == place for lane in lanes),
                "hop": waits.get(first),
            }
            for place, (first, last) in enumerate(plan.slots)
        ],
        "lanes": lanes[:MOST_LANES],
        "more": max(0, len(lanes) - MOST_LANES),
    }


def _lane(now: NodeNow, told: PlanFacts, plan: PlanFacts) -> dict[str, Any]:
    fills = told.number == plan.number and told.slot in plan.slots
    slot = plan.slots.index(told.slot) if fills and told.slot is not None else None
    first, last = plan.slots[slot] if slot is not None else (0, 0)
    pace = told.pace_us[first - 1 : last] if slot is not None else ()
    return {
        "node": now.facts.node,
        "health": now.health,
        "slot": slot,
        "ms": rounded(sum(pace) / 1e3) if len(pace) == last - first + 1 else None,
    }
