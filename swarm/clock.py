"""The clock of a stream's leader as seen from here: how long a message has lain in its lane.

JetStream stamps each message with the wall clock of the server that leads its stream. Device clocks
may be hours off, and so may servers' clocks from each other: a stream's stamps are compared with
the clock of its own leader, and with no other. Its offset to this process's monotonic clock is
measured as NTP does it (RFC 5905): the answer's stamp against the round trip, keeping the sample
with the shortest trip. Its error is at most half that trip.

A wall clock may step, and another server may come to lead. A sample that the estimate does not
explain replaces it. What was stamped before then is not comparable any more, so a message is surely
no older than the time for which the present estimate has held (`least_age`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

RESAMPLE_AFTER = 60.0  # seconds; crystals drift by some 20 ppm, 1.2 ms a minute
# Of the time since a sample, by which a clock that is steered may run fast or slow; ntpd's limit.
DRIFT = 500e-6
TOLD_FROM = 0.025  # seconds; a smaller step is followed, and not told of


def nanoseconds(clock: Callable[[], float]) -> Callable[[], int]:
    """The same monotonic clock, of seconds, in whole nanoseconds."""
    return time.monotonic_ns if clock is time.monotonic else lambda: int(clock() * 1e9)


def asleep() -> int:
    """Nanoseconds for which this host was suspended since it was started: `time.monotonic` stood
    still meanwhile. 0 where the system does not tell."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return 0 if boot is None else time.clock_gettime_ns(boot) - time.monotonic_ns()


@dataclass(frozen=True, slots=True)
class ClockStep:
    """A server's clock was set. server: its name. seconds: by which it went forward; negative:
    back."""

    server: str
    seconds: float

    @property
    def text(self) -> str:
        """In words."""
        way, by = "forward" if self.seconds > 0 else "back", abs(self.seconds)
        size = f"{by:.0f} s" if by >= 10 else f"{by:.1f} s" if by >= 1 else f"{by * 1e3:.0f} ms"
        return f"the clock of server {self.server or '?'} went {way} by {size}"


@dataclass(frozen=True, slots=True)
class _Sample:
    """The server's clock less this process's lay between `low` and `high`, in ns, at some moment
    from `sent` to `received`. asleep: as `asleep()` said then."""

    sent: int
    received: int
    low: int
    high: int
    server: str
    asleep: int

    @property
    def trip(self) -> int:
        return self.received - self.sent

    @property
    def middle(self) -> int:
        return (self.low + self.high) // 2

    def explains(self, later: _Sample) -> bool:
        """Whether the clock may have gone on from here to there."""
        drift = int((later.received - self.sent) * DRIFT)
        return self.low - drift <= later.high and later.low <= self.high + drift


class ServerClock:
    """Learns the clock of one stream's leader from samples.

    Times in nanoseconds; `now` is `time.monotonic_ns()` of this process. on_step is told when a
    server's clock was set.
    """

    def __init__(self, on_step: Callable[[ClockStep], None] = lambda step: None) -> None:
        self._on_step = on_step
        self._best: _Sample | None = None
        self._middle = 0  # the offset by the best sample, for each message's age
        self._latest: _Sample | None = None
        self._since = 0  # from when on the present estimate has explained all samples
        self._replaced = False  # another estimate was there before
        # The lowest offset that samples allow: those since `_counted`, and those of before.
        self._low, self._low_before, self._counted = 0, 0, 0

    def sample(
        self, sent: int, received: int, stamp: str, server: str = "", slept: int = 0
    ) -> None:
        """A round trip from `sent` to `received` that carried the RFC 3339 stamp of the stream's
        leader. server: its name. slept: what `asleep()` says. Raises `ValueError` for a text that
        is no stamp."""
        at = parse_rfc3339(stamp)
        new = _Sample(sent, received, at - received, at - sent, server, slept)
        best, self._latest = self._best, new
        if best is None or not best.explains(new):
            self._best, self._middle = new, new.middle
            self._since, self._counted = sent, received
            self._low = self._low_before = new.low
            if best is not None:
                self._replaced = True
                self._tell(best, new)
            return
        if received - self._counted > RESAMPLE_AFTER * 1e9:
            self._low_before, self._counted = self._low, received
            self._low = new.low
        self._low = min(self._low, new.low)
        if new.trip <= best.trip or received - best.received > RESAMPLE_AFTER * 1e9:
            self._best, self._middle = new, new.middle

    def _tell(self, before: _Sample, new: _Sample) -> None:
        if before.server != new.server:
            return  # two clocks differ, and neither was set
        # While this host was suspended its own clock stood still, and the server's went on.
        by = (new.middle - before.middle) - (new.asleep - before.asleep)
        if abs(by) > TOLD_FROM * 1e9 + (before.trip + new.trip) // 2:
            self._on_step(ClockStep(new.server, by / 1e9))

    @property
    def round_trip(self) -> float:
        """Seconds of the trip that the present estimate rests on; 0.0 without a sample."""
        return self._best.trip / 1e9 if self._best is not None else 0.0

    def age(self, stored: int, now: int) -> int:
        """How long ago, in ns, the server stored a message stamped `stored`, as far as is known;
        at least 0, and 0 as long as no sample was taken. No request may be ended by it: the clock
        may have been set since the last sample."""
        if self._best is None:
            return 0
        age = now + self._middle - stored
        if self._replaced:
            age = min(age, now - self._since)
        return age if age > 0 else 0

    def is_from_the_future(self, stored: int, now: int) -> bool:
        """Whether a message that is here by `now` would be stored later than that: then the clock
        was set."""
        return self._best is not None and now + self._best.high < stored

    def least_age(self, stored: int, received: int) -> int | None:
        """The age in ns that a message surely had, which came here at `received`; None as long as
        no sample is newer than that.

        A sample from behind its arrival shows that the clock that stamped it is the one that is
        compared, if it was stored since the estimate holds. One that was stored before is as old as
        that, or older. A step too small for the samples' round trips to show does not count either:
        of all samples of the last minute, the one that makes the message youngest is taken."""
        if self._latest is None or self._latest.sent < received:
            return None
        low = min(self._low, self._low_before)
        return max(0, min(received + low - stored, received - self._since))

    def unix_us(self, moment: int) -> int:
        """A moment of this process's monotonic clock (ns) by the server's clock: microseconds since
        1970. By this host's own wall clock as long as no sample was taken."""
        if self._best is None:
            return (time.time_ns() - (time.monotonic_ns() - moment)) // 1000
        return (moment + self._middle) // 1000


def parse_rfc3339(stamp: str) -> int:
    """Nanoseconds since 1970 of e.g. `2026-01-02T03:04:05.123456789Z`."""
    whole, _, fraction = stamp.rstrip("Z").partition(".")
    # An offset such as +01:00 may follow the fraction when a server does not run in UTC.
    zone = ""
    for sign in "+-":
        if sign in fraction:
            fraction, _, rest = fraction.partition(sign)
            zone = sign + rest
        elif not fraction and whole.count(sign) == (1 if sign == "+" else 3):
            whole, _, rest = whole.rpartition(sign)
            zone = sign + rest
    seconds = int(datetime.fromisoformat(whole + (zone or "+00:00")).timestamp())
    return seconds * 1_000_000_000 + int(fraction.ljust(9, "0")[:9] or 0)
