"""A time in which no lane takes a request: the server is away, or the link to it is cut.

It may end at any moment, so a request waits for its end; but one that would hardly live to see it
is better refused at once. How long an outage will still last is unknown: as long again as it has
lasted is the usual guess for what has no scale of its own.
"""

from __future__ import annotations

from enum import Enum, auto

PROBE_EVERY = 0.25  # seconds between requests that are let through to see


class Leave(Enum):
    """What a request may do: be sent until its budget ends; be sent once, to see; nothing."""

    SEND = auto()
    PROBE = auto()
    REFUSED = auto()


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

    def lasts(self, now: float) -> float:
        """Seconds of the present outage; 0.0 without one."""
        return 0.0 if self.since is None else now - self.since

    def ask(self, budget: float, now: float) -> Leave:
        """For a request of `budget` seconds; each `PROBE` is to be made."""
        if self.since is None or budget > now - self.since:
            return Leave.SEND
        if now - self._probed < PROBE_EVERY:
            return Leave.REFUSED
        self._probed = now
        return Leave.PROBE
