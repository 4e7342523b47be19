"""The server's clock as seen from here: how long a message has lain in its lane.

JetStream stamps each message with the server's time; device clocks may be hours off, so
an offset is measured as NTP does it (RFC 5905): the answer's stamp against the middle of
the round trip, keeping the sample with the shortest trip. Its error is at most half that
trip. Based on the monotonic clock: stepping the wall clock here changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

RESAMPLE_AFTER = 60.0  # seconds; crystals drift by some 20 ppm, 1.2 ms a minute


def nanoseconds(clock: Callable[[], float]) -> Callable[[], int]:
    """The same monotonic clock, of seconds, in whole nanoseconds."""
    return time.monotonic_ns if clock is time.monotonic else lambda: int(clock() * 1e9)


class ServerClock:
    """Learns the server's clock from samples.

    Times in nanoseconds; `now` is `time.monotonic_ns()` of this process.
    """

    def __init__(self) -> None:
        self._offset: int | None = None
        self._trip = 0
        self._sampled = 0

    def sample(self, sent: int, received: int, stamp: str) -> None:
        """A round trip from `sent` to `received` that carried the server's RFC 3339 stamp."""
        trip = received - sent
        fresh = self._offset is None or received - self._sampled > RESAMPLE_AFTER * 1e9
        if fresh or trip <= self._trip:
            self._offset = parse_rfc3339(stamp) - (sent + received) // 2
            self._trip, self._sampled = trip, received

    @property
    def round_trip(self) -> float:
        """Seconds of the trip that the present estimate rests on; 0.0 without a sample."""
        return self._trip / 1e9

    def age(self, stored: int, now: int) -> int:
        """How long ago, in ns, the server stored a message stamped `stored`; at least 0.

        0 as long as no sample was taken.
        """
        if self._offset is None:
            return 0
        return max(0, now + self._offset - stored)

    def unix_us(self, moment: int) -> int:
        """A moment of this process's monotonic clock (ns) by the server's clock: microseconds since
        1970. By this host's own wall clock as long as no sample was taken."""
        if self._offset is None:
            return (time.time_ns() - (time.monotonic_ns() - moment)) // 1000
        return (moment + self._offset) // 1000


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
