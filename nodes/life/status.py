"""Status documents and events of a node, as JSON, for dashboards.

A status document goes out each second, at each change of state, and on request. In a large fleet
it goes out less often: `swarm.fleet.status_interval`.
`swarm/schemas/status.schema.json` is its contract.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import socket
import time
from collections import Counter, deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import swarm
from nodes.config import NodeConfig
from nodes.stage.server import StageServer
from nodes.versions.serving import link_rate
from nodes.versions.versions import Versions
from swarm.errors import SwarmError
from swarm.fleet.membership import Membership
from swarm.fleet.picture import RATE_COUNTS, note_count, rate_of, served
from swarm.fleet.status_interval import (
    MOST_EVERY,
    STATUS_EVERY,
    answer_after,
    asked_within,
    status_every,
)
from swarm.link import LinkMessage
from swarm.mesh import Mesh
from swarm.periodic import BEAT, next_beat
from swarm.wire.tensors import known_codecs

log = logging.getLogger("swarm.node")

STATUS_PAUSE = 0.02  # seconds between two documents, however often one is requested


class StatusPublisher:
    """`become` changes the node's state, `tell` publishes an event, `run()` publishes documents.

    States: waiting, loading, ready, draining, left, failed. started: the `clock` at the process's
    start, in seconds. more: fields that a role adds, asked for with each document.
    """

    def __init__(
        self,
        mesh: Mesh,
        config: NodeConfig,
        node: str,
        versions: Versions,
        membership: Membership,
        started: float,
        more: Callable[[], dict[str, Any]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = "waiting"
        self.detail = "connecting"
        self._since = timestamp()
        self._ready_ms = 0.0
        self._mesh = mesh
        self._config = config
        self._node = node
        self._versions = versions
        self._membership = membership
        self._started = started
        self._more = more
        self._clock = clock
        self._told: Counter[str] = Counter()  # events, by kind
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

    def become(self, state: str, detail: str) -> bool:
        """Change state or detail, and publish the change; returns False where nothing changed."""
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

    def tell(self, kind: str, detail: dict[str, Any]) -> None:
        """Publish an event on `swarm.<mesh>.events.<kind>`."""
        self._told[kind] += 1
        doc = {
            "v": 1,
            "kind": kind,
            "node": self._node,
            "role": self._config.role,
            "at": timestamp(),
        }
        self._publish(self._mesh.subjects.event(kind), doc | detail)

    def publish(self) -> None:
        """Publish the document as of now."""
        self._publish(self._mesh.subjects.status(self._node), self.document())

    def _publish(self, subject: str, doc: dict[str, Any]) -> None:
        try:
            self._mesh.link.publish(subject, json.dumps(doc).encode())
        except SwarmError as error:
            log.debug("not published: %s", error)

    def document(self) -> dict[str, Any]:
        """All times in milliseconds, memory in bytes; counters count since the node's start."""
        servings = self._versions.pulling()  # whoever reads of a stage here sends it requests
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
            "events": dict(self._told),
            "host_id": self._mesh.lender.host,
            "inbox": self._mesh.inbox,
            "priority": self._config.priority,
            "codecs": list(known_codecs()),
            "gossip": self._gossip_document(),
        }
        if brings := link_rate(servers):
            doc["link_rate"] = int(brings)
        if self._ready_ms:
            doc["ready_ms"] = self._ready_ms
        doc |= self._more()
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
        "in_hand": server.queued,
        "waiting": server.waiting,
        "counters": server.stats.counters.as_doc(),
        **server.stats.as_doc(now),
    }


def timestamp() -> str:
    """Now, RFC 3339 with milliseconds, UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def rss_bytes() -> int:
    """Resident memory of this process; 0 where /proc is absent."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
