"""How a node is, as far as its last words and its peers' tell: pure."""

from __future__ import annotations

from enum import StrEnum

from swarm.fleet.picture import FleetNode


class Health(StrEnum):
    """Each has a colour and a sign of its own on the page."""

    WELL = "well"
    BUSY = "busy"  # waits, loads, drains: it takes no work just now
    SUSPECT = "suspect"
    FAILED = "failed"
    DEAD = "dead"
    LEFT = "left"


GONE = frozenset({Health.DEAD, Health.LEFT})
BY_STATE = {"left": Health.LEFT, "failed": Health.FAILED, "ready": Health.WELL}


def health_of(node: FleetNode, suspected: float | None, since: float, now: float) -> Health:
    """suspected: the moment of the last event that suspects the node, None for none. since: the
    moment from which the mesh has been heard: nobody is silent for what came before. Seconds."""
    if node.status.get("state") == "left":
        return Health.LEFT
    if node.gone and (node.heard is None or node.gone_at > node.heard):
        return Health.LEFT if node.gone == "left" else Health.DEAD
    if node.heard is None:
        if node.gossiped.get("state") == "suspect":
            return Health.SUSPECT
        return Health.BUSY if node.gossiped.get("draining") else Health.WELL
    if now - max(node.heard, since) > node.silent_after:
        return Health.DEAD
    if node.status.get("state") == "ready" and suspected is not None and suspected > node.heard:
        return Health.SUSPECT
    return BY_STATE.get(str(node.status.get("state")), Health.BUSY)
