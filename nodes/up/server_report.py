"""What people hear of the embedded servers: a document of each one each second, and an event for
each change.

Events wait while there is no connection: the most important one, a restart, happens then.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

import swarm
from nodes.connection.events import timestamp
from nodes.up.server_watch import ServerWatch, Tell
from swarm.errors import SwarmError
from swarm.periodic import BEAT, next_beat

log = logging.getLogger("swarm.up")

REPORT_EVERY = 5 * BEAT  # seconds
MOST_NOTES = 8  # events that the document repeats, for those who come later


class ServerReport:
    """`tell` takes events; `run()` publishes them, and the document. mesh: a connected client."""

    def __init__(self, mesh: swarm.Mesh) -> None:
        self._mesh = mesh
        self._notes: deque[dict[str, Any]] = deque(maxlen=MOST_NOTES)
        self._untold: deque[dict[str, Any]] = deque(maxlen=MOST_NOTES)
        self._news = asyncio.Event()

    def teller(self, url: str) -> Tell:
        """`tell` for the events of one server, which name it."""
        return lambda kind, detail: self.tell(kind, {"url": url} | detail)

    def tell(self, kind: str, detail: dict[str, Any]) -> None:
        """An event of the server, or of what it keeps."""
        note = {"at": timestamp(), "kind": kind} | detail
        log.warning("%s: %s", kind, detail.get("detail", ""))
        self._notes.append(note)
        self._untold.append(note)
        self._news.set()

    async def run(self, watches: Sequence[ServerWatch]) -> None:
        """Publish until cancelled."""
        link, subjects = self._mesh.link, self._mesh.subjects
        sid = link.subscribe(subjects.status_request, lambda _: self._news.set())
        link.on_up.append(self._news.set)
        try:
            while True:
                self._news.clear()
                with contextlib.suppress(SwarmError):  # without a connection: at the next one
                    for watch in watches:
                        link.publish(subjects.server, json.dumps(self.document(watch)).encode())
                    self._publish_events()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(next_beat(REPORT_EVERY)):
                        await self._news.wait()
        finally:
            link.on_up.remove(self._news.set)
            link.unsubscribe(sid)

    def _publish_events(self) -> None:
        """Raises `NotConnected`; what was not published stays."""
        while self._untold:
            note = self._untold[0]
            document = {"v": 1, "node": "", "role": "server"} | note
            subject = self._mesh.subjects.event(note["kind"])
            self._mesh.link.publish(subject, json.dumps(document).encode())
            self._untold.popleft()

    def document(self, watch: ServerWatch) -> dict[str, Any]:
        """The server as of now: JSON types only; sizes in bytes."""
        server = watch.server
        return {
            "v": 1,
            "mesh": self._mesh.subjects.mesh,
            "url": server.url,
            "pid": server.pid,
            "state": "up" if watch.is_up else "away",
            "restarts": watch.restarts,
            "store": {
                "path": str(server.store or ""),
                "state": str(watch.store),
                "free_bytes": watch.files.free,
            },
            "notes": [note for note in self._notes if note.get("url", server.url) == server.url],
            "at": timestamp(),
        }
