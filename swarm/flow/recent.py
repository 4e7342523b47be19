"""Ids that were seen lately: of requests that nobody waits for any more, of messages that came."""

from __future__ import annotations

REMEMBERED_FOR = 5.0  # seconds: a message that is on its way then has reached its stage
MOST_REMEMBERED = 4096  # ids; older ones are forgotten first


class RecentIds:
    """Ids, each remembered for a while. `now`: seconds of one clock, never going back."""

    def __init__(self) -> None:
        # Until when each id is remembered; in order of time, since all are kept equally long.
        self.until: dict[str, float] = {}

    def __contains__(self, id_: str) -> bool:
        return id_ in self.until

    def add(self, id_: str, now: float) -> None:
        """Remember an id from now on, and forget those of long ago."""
        self.until.pop(id_, None)
        self.until[id_] = now + REMEMBERED_FOR
        while self.until[oldest := next(iter(self.until))] <= now or (
            len(self.until) > MOST_REMEMBERED
        ):
            del self.until[oldest]
