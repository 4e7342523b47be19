"""Status documents of a node, as JSON, for dashboards.

A status document goes out each second, at each change of state, and on request. In a large fleet
it goes out less often: `swarm.fleet.status_interval`.
`swarm/schemas/status.schema.json` is its contract.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import swarm
from nodes.connection.connection import Connection
from nodes.connection.events import timestamp
from nodes.stage.pictures import codecs_read
from nodes.stage.server import StageServer
from nodes.versions.serving import Serving, link_rate
from swarm.fleet.status_interval import (
    MOST_EVERY,
    STATUS_EVERY,
    answer_after,
    asked_within,
    status_every,
)
from swarm.fleet.view import RATE_COUNTS, note_count, rate_of, served
from swarm.link import LinkMessage
from swarm.periodic import BEAT, next_beat

log = logging.getLogger("swarm.node")

STATUS_PAUSE = 0.02  # seconds between two documents, however often one is requested


class StatusPublisher:
    """`become` changes the node's state, `run()` publishes documents.

    States: waiting, loading, ready, draining, left, failed. servings: of the stages that others may
    ask. more: parts of the node, each adds fields to a document. started: the `clock` at the
    process's start, in seconds. on_change(document): is called at each change of state.
    """

    def __init__(
        self,
        connection: Connection,
        servings: Callable[[], list[Serving]],
        more: Sequence[Callable[[], dict[str, Any]]] = (),
        started: float | None = None,
        on_change: Callable[[dict[str, Any]], None] = lambda document: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = "waiting"
        self.detail = "connecting"
        self._since = timestamp()
        self._ready_ms = 0.0
        self._mesh = connection.mesh
        self._config = connection.config
        self._node = connection.id
        self._events = connection.events
        self._membership = connection.membership
        self._servings = servings
        self._more = more
        self._started = clock() if started is None else started
        self._on_change = on_change
        self._clock = clock
        self._served: deque[tuple[float, float]] = deque(maxlen=RATE_COUNTS)
        self._every = STATUS_EVERY  # seconds in which the next document comes, as the last one says
        # Milliseconds: in a large fleet each node has its own beat.
        self._apart = round(BEAT * 1000) * random.randrange(round(MOST_EVERY / BEAT))
        self._due = 0.0  # when the next document is, in the loop's time
        self._sooner = asyncio.Event()

    async def run(self) -> None:
        """Publish documents until cancelled."""
        self._mesh.link.subscribe(self._mesh.subjects.status_request, self._asked)
        while True:
            self._every = status_every(self._membership.gossip.alive)
            apart = self._apart if self._every > STATUS_EVERY else 0  # else with a second's work
            self._due = next_beat(self._every, apart)
            self.publish()
            with contextlib.suppress(TimeoutError):
                await self._until_due()

    async def _until_due(self) -> None:
        """Raises `TimeoutError` when the next document is due, which requests bring forward."""
        while True:
            async with asyncio.timeout_at(self._due):
                await self._sooner.wait()
            self._sooner.clear()

    def _asked(self, request: LinkMessage) -> None:
        alive = self._membership.gossip.alive
        after = answer_after(asked_within(request.data), alive, random.random())
        due = asyncio.get_running_loop().time() + max(STATUS_PAUSE, after)
        if due < self._due:
            self._due = due
            self._sooner.set()

    def become(self, state: str, detail: str) -> None:
        """Change state or detail, and publish the change, if it is one."""
        if self._changes_to(state, detail):
            self._on_change({"event": state, "node": self._node, "detail": detail})

    def explain(self, detail: str) -> None:
        """Change the detail alone."""
        self._changes_to(self.state, detail)

    def _changes_to(self, state: str, detail: str) -> bool:
        if (state, detail) == (self.state, self.detail):
            return False
        if state != self.state:
            self._since = timestamp()
        self.state, self.detail = state, detail
        if state == "ready" and not self._ready_ms:
            self._ready_ms = round((self._clock() - self._started) * 1e3, 1)
        log.info("%s: %s", state, detail)
        self.publish()
        return True

    def publish(self) -> None:
        """Publish the document as of now."""
        self._events.publish(self._mesh.subjects.status(self._node), self.document())

    def document(self) -> dict[str, Any]:
        """All times in milliseconds, memory in bytes; counters count since the node's start."""
        servings = self._servings()  # readers send requests to the stages that this names
        servers = [server for serving in servings for server in serving.servers]
        now = self._clock()
        doc: dict[str, Any] = {
            "v": 1,
            "node": self._node,
            "role": self._config.role,
            "mesh": self._config.mesh,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "state": self.state,
            "detail": self.detail,
            "since": self._since,
            "at": timestamp(),
            "every_s": self._every,
            "software": swarm.__version__,
            "model": servings[-1].info.model if servings else self._config.model_name,
            "version": servings[-1].info.version if servings else self._config.version,
            "stages": [_stage_document(server, now) for server in servers],
            "queue_depth": sum(server.waiting for server in servers),
            "rss_bytes": rss_bytes(),
            "cpu_seconds": round(time.process_time(), 3),
            "uptime_s": round(now - self._started, 1),
            "events": dict(self._events.counts),
            "host_id": self._mesh.lender.host,
            "inbox": self._mesh.inbox,
            "priority": self._config.priority,
            "codecs": codecs_read(),
            "gossip": self._gossip_document(),
        }
        for serving in servings:
            for name, rows in serving.rows(now).items():
                doc.setdefault(name, []).extend(rows)
        if brings := link_rate(servers):
            doc["link_rate"] = int(brings)
        if self._ready_ms:
            doc["ready_ms"] = self._ready_ms
        for part in self._more:
            doc |= part()
        rate = self._rate(doc, now)
        return doc if rate is None else doc | {"rate": rate}

    def _rate(self, doc: dict[str, Any], now: float) -> float | None:
        """Requests a second of the last seconds."""
        count = served(doc)
        if count is None:
            return None
        note_count(self._served, now, count)
        rate = rate_of(self._served)
        return None if rate is None else round(rate, 2)

    def _gossip_document(self) -> dict[str, Any]:
        states = [peer.state for peer in self._membership.view().values()]
        return {
            "peers": {state: states.count(state) for state in ("alive", "suspect", "dead", "left")},
            "refused": dict(self._membership.gossip.counters),
            "events": dict(self._membership.events),
            "sent_bytes": self._membership.sent_bytes,
            "received_bytes": self._membership.received_bytes,
        }


def _stage_document(server: StageServer, now: float) -> dict[str, Any]:
    return {
        "stage": server.stage,
        "model": server.info.model,
        "version": server.info.version,
        "weights": server.model.weights_version,
        "device": server.model.device,
        "wanted_device": server.model.wanted_device,
        "in_hand": server.queued,
        "waiting": server.waiting,
        "counters": server.stats.counters.as_doc(),
        **server.stats.as_doc(now),
    }


def rss_bytes() -> int:
    """Resident memory of this process; 0 where /proc is absent."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
