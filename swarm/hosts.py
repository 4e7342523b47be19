"""Which stages are served on this host only: where tensors may go by shared memory."""

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


class Hosts:
    """Learns from status documents, from the first question on (most clients never ask)."""

    def __init__(self, link: Link, subjects: Subjects) -> None:
        self._link = link
        self._subjects = subjects
        self._sid = 0
        self._nodes: dict[str, tuple[StagePeer, frozenset[tuple[str, str, int]], float]] = {}

    def serving(self, model: str, version: str, stage: int) -> list[StagePeer]:
        """The nodes heard of that serve the stage."""
        if not self._sid:
            self._sid = self._link.subscribe(self._subjects.status_all, self._take)
            with contextlib.suppress(NotConnected):  # they speak every second anyway
                self._link.publish(self._subjects.status_request)
        now = time.monotonic()
        key = (model, version, stage)
        # An id is unique per start: those of the dead would be kept for ever.
        self._nodes = {n: v for n, v in self._nodes.items() if now - v[2] < FORGET_AFTER}
        return [peer for peer, serves, _ in self._nodes.values() if key in serves]

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
                    doc["state"] == "draining",
                    str(doc.get("inbox", "")),
                )
                self._nodes[peer.node] = (peer, serves, time.monotonic())
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return  # not a status: it says nothing about hosts
