"""How a node is, as far as its last words tell: pure."""

from __future__ import annotations

from enum import StrEnum

SILENT_AFTER = 3.5  # seconds; a node speaks each second
FORGET_LEFT_AFTER = 60.0  # seconds that a node which left stays on the page
FORGET_DEAD_AFTER = 600.0
# A status that was on its way when the node died may come after the event of its death.
BELATED = 0.5  # seconds


class Health(StrEnum):
    """Each has a colour and a sign of its own on the page."""

    WELL = "well"
    BUSY = "busy"  # waits, loads, drains: it takes no work just now
    SUSPECT = "suspect"
    FAILED = "failed"
    DEAD = "dead"
    LEFT = "left"


ALIVE = frozenset({Health.WELL, Health.BUSY, Health.SUSPECT, Health.FAILED})


def health_of(
    state: str, heard: float, died: float | None, suspected: float | None, now: float
) -> Health:
    """heard, died, suspected: moments in seconds; None where there was no such event. state: as in
    its last status document."""
    if state == "left":
        return Health.LEFT
    if died is not None and heard <= died + BELATED:
        return Health.DEAD
    if now - heard > SILENT_AFTER:
        return Health.DEAD
    if state == "failed":
        return Health.FAILED
    if suspected is not None and heard <= suspected + BELATED:
        return Health.SUSPECT
    return Health.WELL if state == "ready" else Health.BUSY


def is_forgotten(health: Health, silent: float) -> bool:
    """Whether a node leaves the page. silent: seconds since its last status."""
    if health is Health.LEFT:
        return silent > FORGET_LEFT_AFTER
    return health is Health.DEAD and silent > FORGET_DEAD_AFTER
