"""What a mere client knows of where nodes are: whether tensors may go by shared memory, and which
node it can reach directly."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

from swarm.errors import NotConnected
from swarm.link import Link, LinkMessage
from swarm.peerstate import StagePeer
from swarm.subjects import Subjects

FORGET_AFTER = 3.0  # seconds without a word: a node speaks every second
# To listen means to parse each node's status each second: a thousand clients that did so would get
# more messages of a hundred nodes than the mesh carries otherwise (from 3 requests a second on,
# 300 clients got 8 messages of 12 nodes more with each). Small ones are worth it from so many a
# second on.
OFTEN = 8.0
IDLE_AFTER = 5.0  # seconds after which what was worth it is so no longer


class Hosts:
    """Listens to status documents while large messages are sent, or small ones often.

    asked: small messages since the last look, counted by whoever sends them.
    """

    def __init__(self, link: Link, subjects: Subjects) -> None:
        self._link = link
        self._subjects = subjects
        self._sid = 0
        self.asked = 0
        self._looked = time.monotonic()
        self._until = 0.0  # it is worth it, time.monotonic()
        self._nodes: dict[str, tuple[StagePeer, frozenset[tuple[str, str, int]], float]] = {}

    def serving(self, model: str, version: str, stage: int, large: bool) -> list[StagePeer]:
        """The nodes heard of that serve the stage, for a large message or a small one."""
        now = time.monotonic()
        if large:
            self._until = now + IDLE_AFTER
        elif now > self._until:
            return []
        if not self._sid:
            self._sid = self._link.subscribe(self._subjects.status_all, self._take)
            with contextlib.suppress(NotConnected):  # they speak every second anyway
                self._link.publish(self._subjects.status_request)
        key = (model, version, stage)
        # An id is unique per start: those of the dead would be kept for ever.
        self._nodes = {n: v for n, v in self._nodes.items() if now - v[2] < FORGET_AFTER}
        return [peer for peer, serves, _ in self._nodes.values() if key in serves]

    def tend(self) -> None:
        """Call about every second."""
        now = time.monotonic()
        if self.asked >= OFTEN * (now - self._looked):
            self._until = now + IDLE_AFTER
        self.asked, self._looked = 0, now
        if self._sid and now > self._until:
            self._link.unsubscribe(self._sid)
            self._sid = 0
            self._nodes.clear()

    def _take(self, message: LinkMessage) -> None:
        try:
            doc: dict[str, Any] = json.loads(bytes(message.data))
            model = str(doc["model"])
            serves = frozenset((model, str(s["version"]), int(s["stage"])) for s in doc["stages"])
            if doc["state"] == "left":
                self._nodes.pop(str(doc["node"]), None)
            else:
                peer = StagePeer(
                    str(doc["node"]),
                    int(doc.get("priority", 0)),
                    str(doc.get("host_id", "")),
                    doc["state"] != "ready",
                    str(doc.get("inbox", "")),
                )
                self._nodes[peer.node] = (peer, serves, time.monotonic())
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return  # not a status: it says nothing about hosts
