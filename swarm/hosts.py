"""Which stages are served on this host only: where tensors may go by shared memory."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

from swarm.errors import NotConnected
from swarm.link import Link, LinkMessage
from swarm.subjects import Subjects

FORGET_AFTER = 3.0  # seconds without a word: a node speaks every second


class Hosts:
    """Learns from status documents, from the first question on (most clients never ask)."""

    def __init__(self, link: Link, subjects: Subjects) -> None:
        self._link = link
        self._subjects = subjects
        self._sid = 0
        self._nodes: dict[str, tuple[str, frozenset[tuple[str, str, int]], float]] = {}

    def all_local(self, model: str, version: str, stage: int, host: str) -> bool:
        """Whether every node heard of that serves the stage shares `host`'s memory."""
        if not self._sid:
            self._sid = self._link.subscribe(self._subjects.status_all, self._take)
            with contextlib.suppress(NotConnected):  # they speak every second anyway
                self._link.publish(self._subjects.status_request)
        now = time.monotonic()
        key = (model, version, stage)
        # An id is unique per start: those of the dead would be kept for ever.
        self._nodes = {n: v for n, v in self._nodes.items() if now - v[2] < FORGET_AFTER}
        return {where for where, serves, _ in self._nodes.values() if key in serves} == {host}

    def _take(self, message: LinkMessage) -> None:
        try:
            doc: dict[str, Any] = json.loads(bytes(message.data))
            model = str(doc["model"])
            serves = frozenset((model, str(s["version"]), int(s["stage"])) for s in doc["stages"])
            if doc["state"] == "left":
                self._nodes.pop(str(doc["node"]), None)
            else:
                heard = time.monotonic()
                self._nodes[str(doc["node"])] = (str(doc.get("host_id", "")), serves, heard)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return  # not a status: it says nothing about hosts
