"""Refusals of a gateway in the mesh's audit: whom, when, why."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable

from swarm.errors import SwarmError
from swarm.flow.bucket import TokenBucket
from swarm.ids import ulid
from swarm.records.record import Entry, agent_token

# Records a second, and at once: a flood of wrong keys must not push out what others asked.
RATE, BURST = 20.0, 100.0


class Refusals:
    """offer: of a recorder. Refusals beyond `RATE` are counted in the next record."""

    def __init__(self, offer: Callable[[Entry], None]) -> None:
        self._offer = offer
        self._bucket = TokenBucket(RATE, BURST)
        self._unsaid = 0

    def note(self, agent: str, error: SwarmError, peer: str) -> None:
        """agent: "" where nobody knows who asks. peer: an address, or any other text."""
        if not self._bucket.take(time.monotonic()):
            self._unsaid += 1
            return
        fields: dict[str, object] = {"status": str(error.status), "by": "gateway", "hops": []}
        fields |= {"model": "", "version": "", "peer": _address(peer)}
        if self._unsaid:
            fields["refused_before"], self._unsaid = self._unsaid, 0
        self._offer(Entry("request", agent_token(agent), time.time(), ulid(), fields))


def _address(peer: str) -> str:
    """An address, "" for what is none."""
    try:
        return str(ipaddress.ip_address(peer))
    except ValueError:
        return ""
