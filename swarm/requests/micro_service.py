"""Service discovery of NATS (ADR-32, nats-architecture-and-design), over the data link.

`nats service ls`, `info` and `stats` show each node. The endpoints of all nodes are in one queue
group, so a request reaches one of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from swarm.ids import ulid
from swarm.link import Link, LinkMessage

QUEUE = "q"  # ADR-32's default queue group
TYPE = "io.nats.micro.v1"


@dataclass(slots=True)
class Endpoint:
    """One subject, and what became of the requests to it. seconds: spent on all of them."""

    subject: str
    requests: int = 0
    errors: int = 0
    last_error: str = ""
    seconds: float = 0.0

    def done(self, seconds: float, error: str = "") -> None:
        """A request was answered; error: of an answer that is one."""
        self.requests += 1
        self.seconds += seconds
        if error:
            self.errors += 1
            self.last_error = error


@dataclass
class MicroService:
    """One instance of a service. `start` subscribes; after reconnects the link does so by itself.

    handle(endpoint, message) is called for each request.
    """

    link: Link
    name: str
    version: str
    description: str
    metadata: dict[str, str]
    handle: Callable[[Endpoint, LinkMessage], None]
    endpoints: list[Endpoint] = field(default_factory=list)
    id: str = field(default_factory=ulid)
    _started: str = ""
    _discovery: list[int] = field(default_factory=list)
    _subscribed: list[int] = field(default_factory=list)

    def start(self) -> None:
        """Answer service discovery, and take requests on the endpoints' subjects."""
        self._started = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        for verb, document in (
            ("PING", lambda: self._identity("ping")),
            ("INFO", self._info),
            ("STATS", self._stats),
        ):
            root = f"$SRV.{verb}"
            for subject in (root, f"{root}.{self.name}", f"{root}.{self.name}.{self.id}"):
                self._discovery.append(self.link.subscribe(subject, self._answering(document)))
        for endpoint in self.endpoints:
            self._listen(endpoint)

    def also(self, subject: str) -> None:
        """Take requests on one more subject."""
        self.endpoints.append(Endpoint(subject))
        self._listen(self.endpoints[-1])

    def _listen(self, endpoint: Endpoint) -> None:
        self._subscribed.append(
            self.link.subscribe(endpoint.subject, self._handing(endpoint), QUEUE)
        )

    async def stop(self, timeout: float) -> None:
        """Take no more requests; those that the server has sent already are still handled."""
        for sid in self._discovery:
            self.link.unsubscribe(sid)
        for sid in self._subscribed:
            await self.link.unsubscribe_and_drain(sid, timeout)

    def _answering(self, document: Callable[[], dict[str, Any]]) -> Callable[[LinkMessage], None]:
        def answer(message: LinkMessage) -> None:
            if message.reply:
                self.link.publish(message.reply, json.dumps(document()).encode())

        return answer

    def _handing(self, endpoint: Endpoint) -> Callable[[LinkMessage], None]:
        return lambda message: self.handle(endpoint, message)

    def _identity(self, kind: str) -> dict[str, Any]:
        return {
            "type": f"{TYPE}.{kind}_response",
            "name": self.name,
            "id": self.id,
            "version": self.version,
            "metadata": self.metadata,
        }

    def _info(self) -> dict[str, Any]:
        endpoints = [
            {"name": "infer", "subject": e.subject, "queue_group": QUEUE, "metadata": {}}
            for e in self.endpoints
        ]
        return {
            **self._identity("info"),
            "description": self.description,
            "endpoints": endpoints,
        }

    def _stats(self) -> dict[str, Any]:
        endpoints = [
            {
                "name": "infer",
                "subject": e.subject,
                "queue_group": QUEUE,
                "num_requests": e.requests,
                "num_errors": e.errors,
                "last_error": e.last_error,
                "processing_time": int(e.seconds * 1e9),
                "average_processing_time": int(e.seconds * 1e9 / max(1, e.requests)),
            }
            for e in self.endpoints
        ]
        return {**self._identity("stats"), "started": self._started, "endpoints": endpoints}
