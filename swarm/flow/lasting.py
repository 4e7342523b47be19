"""For how long a condition has held, for decisions that wait until it has lasted. Pure."""

from __future__ import annotations


def holds_since(since: float | None, holds: bool, now: float) -> float | None:
    """The moment since which a condition has held without a break; None while it does not.

    since: what this gave at the last look. now: seconds of any monotonic clock.
    """
    if not holds:
        return None
    return now if since is None else since
