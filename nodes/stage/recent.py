"""Ids that came lately: of requests nobody waits for any more, and of messages seen already.

The requester names the former on `swarm.<mesh>.cancel.<model>.<version>`, by id, so all attempts
are meant, in whichever stage they are. It saves work and is no promise: a lost cancellation costs
a run whose answer is thrown away.
"""

from __future__ import annotations

import time

REMEMBERED = 5.0  # seconds: what is on its way then has reached its stage
MOST = 4096  # ids; older ones are forgotten first


class Recent:
    """Ids, each remembered for a while. `now` is `time.monotonic()`."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}  # in order of time, since all are kept equally long

    def __bool__(self) -> bool:
        return bool(self._until)

    def __contains__(self, id_: str) -> bool:
        return id_ in self._until

    def first(self, id_: str) -> bool:
        """Whether it is new; it is remembered from now on."""
        if id_ in self._until:
            return False
        self.add(id_)
        return True

    def add(self, id_: str, now: float | None = None) -> None:
        """Remember an id, and forget those of long ago."""
        now = time.monotonic() if now is None else now
        self._until.pop(id_, None)
        self._until[id_] = now + REMEMBERED
        while self._until[oldest := next(iter(self._until))] <= now or len(self._until) > MOST:
            del self._until[oldest]
