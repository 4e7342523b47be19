"""Ids that were seen lately: of requests that nobody waits for any more, of messages that came."""

from __future__ import annotations

REMEMBERED_FOR = 5.0  # seconds: a message that is on its way then has reached its stage
MOST_REMEMBERED = 4096  # ids; older ones are forgotten first


class RecentIds:
    """Ids, each remembered for a while. `now`: seconds of one clock, never going back."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}  # in order of time, since all are kept equally long

    def __bool__(self) -> bool:
        return bool(self._until)

    def __contains__(self, id_: str) -> bool:
        return id_ in self._until

    def add(self, id_: str, now: float) -> None:
        """Remember an id from now on, and forget those of long ago."""
        self._until.pop(id_, None)
        self._until[id_] = now + REMEMBERED_FOR
        while self._until[oldest := next(iter(self._until))] <= now or (
            len(self._until) > MOST_REMEMBERED
        ):
            del self._until[oldest]
