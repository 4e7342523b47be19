"""Nodes of role `auto` in a mesh of this machine: who fills which slot, by their statuses."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

from nodes.up.mesh import LocalMesh
from nodes.up.supervisor import NodeProcess
from swarm.errors import Unavailable

SETTLES_WITHIN = 60.0  # seconds


def alive(local: LocalMesh) -> list[dict[str, Any]]:
    """The last statuses of living nodes of the role."""
    pids = {node.pid for node in local.supervisor.nodes if node.alive and node.role == "auto"}
    return [status for status in local.statuses.values() if status["pid"] in pids]


def newest(local: LocalMesh) -> dict[str, Any]:
    """The newest plan that any living node knows; {} where there is none."""
    plans = [plan for status in alive(local) for plan in status.get("plans", ())]
    return max(plans, key=lambda plan: plan.get("plan", 0), default={})


def is_settled(local: LocalMesh) -> bool:
    """Whether each slot of the newest plan has a living node that serves all its stages, and
    every living node has heard of the plan."""
    plan = newest(local)
    if not plan.get("slots"):
        return False
    filled = []
    for status in alive(local):
        own = next((p for p in status.get("plans", ()) if p.get("plan") == plan["plan"]), None)
        if own is None:
            return False
        held = {stage["stage"] for stage in status["stages"]}
        if (slot := own.get("slot")) and held.issuperset(range(slot[0], slot[1] + 1)):
            filled.append(tuple(slot))
    return sorted(filled) == sorted(map(tuple, plan["slots"]))


async def until_settled(local: LocalMesh, what: str) -> None:
    """Raises `Unavailable` with what the nodes say."""
    if not await local.until(lambda: is_settled(local), SETTLES_WITHIN):
        told = [
            (s["node"], [x["stage"] for x in s["stages"]], s.get("plans")) for s in alive(local)
        ]
        raise Unavailable(f"no placement within {SETTLES_WITHIN:g} s of {what}: {told}")


def start_auto(local: LocalMesh, model: str, memory: int, *more: str) -> NodeProcess:
    return local.start("auto", model, "--memory-mb", str(memory), *more)


def leaves(local: LocalMesh, number: signal.Signals, count: int) -> list[int]:
    """Send a signal to nodes that fill slots; none is started again. Returns their processes."""
    busy = {
        status["pid"]
        for status in alive(local)
        if any("slot" in p for p in status.get("plans", ()))
    }
    gone = [node for node in local.supervisor.nodes if node.pid in busy][:count]
    for node in gone:
        node.wanted = False
        node.signal(number)
    return [node.pid for node in gone]


def any_alive(local: LocalMesh, pids: Sequence[int]) -> bool:
    """Whether one of these processes lives."""
    return any(node.alive for node in local.supervisor.nodes if node.pid in pids)
