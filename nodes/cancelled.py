"""Requests that nobody waits for any more: answered by another attempt, or given up.

The requester names them on `swarm.<mesh>.cancel.<model>.<version>`, by id, so all attempts are
meant, in whichever stage they are. It saves work and is no promise: a lost cancellation costs
a run whose answer is thrown away.
"""

from __future__ import annotations

import time

REMEMBERED = 5.0  # seconds: what is on its way then has reached its stage
MOST = 4096  # ids; older ones are forgotten first


class Cancelled:
    """Ids, each remembered for a while. `now` is `time.monotonic()`."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}  # in order of time, since all are kept equally long

    def __bool__(self) -> bool:
        return bool(self._until)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._until

    def first(self, request_id: str) -> bool:
        """Whether it is new; it is remembered from now on."""
        if request_id in self._until:
            return False
        self.add(request_id)
        return True

    def add(self, request_id: str, now: float | None = None) -> None:
        """Remember an id, and forget those of long ago."""
        now = time.monotonic() if now is None else now
        self._until.pop(request_id, None)
        self._until[request_id] = now + REMEMBERED
        while self._until[oldest := next(iter(self._until))] <= now or len(self._until) > MOST:
            del self._until[oldest]
