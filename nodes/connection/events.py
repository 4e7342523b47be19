"""What a node tells of itself on the mesh's subjects, as JSON, for dashboards."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from swarm.errors import SwarmError
from swarm.link import Link
from swarm.subjects import Subjects

log = logging.getLogger("swarm.node")

REASON_LIMIT = 500  # characters of an event's reason

Tell = Callable[[str, dict[str, Any]], None]  # (kind, detail): publishes an event


class Events:
    """`tell` publishes an event. Without a connection nothing is published, and nothing raised.

    counts: events since the start, by kind.
    """

    def __init__(self, link: Link, subjects: Subjects, node: str, role: str) -> None:
        self._link = link
        self._subjects = subjects
        self._head = {"node": node, "role": role}
        self.counts: Counter[str] = Counter()

    def tell(self, kind: str, detail: dict[str, Any]) -> None:
        """Publish an event on `swarm.<mesh>.events.<kind>`."""
        self.counts[kind] += 1
        head = {"v": 1, "kind": kind} | self._head | {"at": timestamp()}
        self.publish(self._subjects.event(kind), head | detail)

    def publish(self, subject: str, document: dict[str, Any]) -> None:
        """Publish a document."""
        try:
            self._link.publish(subject, json.dumps(document).encode())
        except SwarmError as error:
            log.debug("not published: %s", error)


def timestamp() -> str:
    """Now, RFC 3339 with milliseconds, UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
