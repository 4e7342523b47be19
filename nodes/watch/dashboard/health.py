"""How a node is, as far as its last words and its peers' tell: pure."""

from __future__ import annotations

from enum import StrEnum

from swarm.fleet.view import FleetNode


class HealthLevel(StrEnum):
    """Each has a colour and a sign of its own on the page."""

    WELL = "well"
    BUSY = "busy"  # waits, loads, drains: it takes no work just now
    SUSPECT = "suspect"
    FAILED = "failed"
    DEAD = "dead"
    LEFT = "left"


GONE = frozenset({HealthLevel.DEAD, HealthLevel.LEFT})
BY_STATE = {"left": HealthLevel.LEFT, "failed": HealthLevel.FAILED, "ready": HealthLevel.WELL}


def health_of(node: FleetNode, suspected: float | None, since: float, now: float) -> HealthLevel:
    """suspected: the moment of the last event that suspects the node, None for none. since: the
    moment from which the mesh has been heard: nobody is silent for what came before. Seconds."""
    if node.status.get("state") == "left":
        return HealthLevel.LEFT
    if node.gone and (node.heard is None or node.gone_at > node.heard):
        return HealthLevel.LEFT if node.gone == "left" else HealthLevel.DEAD
    if node.heard is None:
        if node.gossiped.get("state") == "suspect":
            return HealthLevel.SUSPECT
        return HealthLevel.BUSY if node.gossiped.get("draining") else HealthLevel.WELL
    if now - max(node.heard, since) > node.silent_after:
        return HealthLevel.DEAD
    if node.status.get("state") == "ready" and suspected is not None and suspected > node.heard:
        return HealthLevel.SUSPECT
    return BY_STATE.get(str(node.status.get("state")), HealthLevel.BUSY)
