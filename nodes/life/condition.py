"""What a status says of the node's connection and of its device, looked at no more often than it
can change."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from nodes.life.gpus import Gpus
from swarm.link import Link
from swarm.link.condition import condition, expiries

READ_FILES_EVERY = 60.0  # seconds


class NodeCondition:
    """`status()` has the fields of a status document. link: the node's connection. computes_on():
    the devices of its stages."""

    def __init__(
        self,
        link: Link,
        computes_on: Callable[[], set[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link = link
        self._clock = clock
        self._gpus = Gpus(computes_on)
        self._connections = 0
        self._expires: dict[str, float] = {}
        self._read_at = float("-inf")
        link.on_up.append(self._went_up)

    def _went_up(self) -> None:
        self._connections += 1
        self._read_at = float("-inf")  # another server may have another certificate

    def status(self) -> dict[str, Any]:
        """`connection`, `expires` and `gpus`, as far as there are any."""
        now = self._clock()
        if now - self._read_at >= READ_FILES_EVERY:
            self._read_at, self._expires = now, expiries(self._link)
        found: dict[str, Any] = {"expires": self._expires} if self._expires else {}
        if (seen := condition(self._link)) is not None:
            found["connection"] = {
                "round_trip_us": round(seen.round_trip * 1e6),
                "sent": seen.sent,
                "resent": seen.resent,
                "connections": self._connections,
            }
        if gpus := self._gpus.look():
            found["gpus"] = gpus
        return found
