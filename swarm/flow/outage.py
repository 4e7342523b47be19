"""A time in which no lane takes a request: the server is away, or the link to it is cut.

It may end at any moment, so a request waits for its end; but one that would hardly live to see it
is better refused at once. How long an outage will still last is unknown: as long again as it has
lasted is the usual guess for what has no scale of its own.
"""

from __future__ import annotations

PROBE_EVERY = 0.25  # seconds between requests that are let through to see


class Outage:
    """Times are seconds of one clock. since: when the present outage was noticed, None without."""

    __slots__ = ("_probed", "since")

    def __init__(self) -> None:
        self.since: float | None = None
        self._probed = 0.0

    def unheard(self, at: float) -> None:
        """A request that was sent at `at` found no lane."""
        if self.since is None or at < self.since:
            self.since = at
            self._probed = at

    def heard(self) -> None:
        """A lane took a request."""
        self.since = None

    def lets_through(self, budget: float, now: float) -> bool:
        """Whether a request of `budget` seconds is to be sent now; each True for a budget that is
        shorter than the outage is a probe."""
        if self.since is None or budget > now - self.since:
            return True
        if now - self._probed < PROBE_EVERY:
            return False
        self._probed = now
        return True
