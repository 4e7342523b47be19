"""Of a flood of refusals some are recorded, and the next record counts the others."""

from __future__ import annotations

from typing import Any

from swarm.flow.bucket import TokenBucket

# Records a second, and at once: a flood of wrong keys must not push out what others asked.
RATE, BURST = 20.0, 100.0


class RecordRefusals:
    """`take` one; the fields of a record are those of `before` too."""

    def __init__(self) -> None:
        self._bucket = TokenBucket(RATE, BURST)
        self._unsaid = 0

    def take(self, now: float) -> bool:
        """Whether one more is recorded; else it is counted. now: seconds."""
        if self._bucket.take(now):
            return True
        self._unsaid += 1
        return False

    def before(self) -> dict[str, Any]:
        """Fields of the next record: how many before it have none."""
        unsaid, self._unsaid = self._unsaid, 0
        return {"refused_before": unsaid} if unsaid else {}
