"""What a mere client knows of where nodes are: whether tensors may go by shared memory, and which
node it can reach directly."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from swarm.errors import NotConnected
from swarm.fleet.advertised import StagePeer
from swarm.link import Link, LinkMessage
from swarm.subjects import Subjects

FORGET_AFTER = 3.0  # seconds without a word: a node speaks every second
# To listen means to parse each node's status each second: a thousand clients that did so would get
# more messages of a hundred nodes than the mesh carries otherwise (from 3 requests a second on,
# 300 clients got 8 messages of 12 nodes more with each). Small ones are worth it from so many a
# second on.
OFTEN = 8.0
IDLE_AFTER = 5.0  # seconds after which what was worth it is so no longer
# Seconds for which is remembered what was heard before. It may be wrong by then, at no great cost:
# the first message to a process that has ended tells so and is stored, and who cannot read a claim
# fetches. (Forgotten, a lone frame of 4 MiB every 8 s went by the server: 14 ms instead of 8.)
REMEMBER = 60.0


class _Heard(NamedTuple):
    """Of one node: what it is, what it serves (model, version, stage), `time.monotonic()`."""

    peer: StagePeer
    serves: frozenset[tuple[str, str, int]]
    at: float


class Hosts:
    """Listens to status documents while large messages are sent, or small ones often.

    asked: small messages since the last look, counted by whoever sends them. on_news: called when
    a node is heard of that was not, or is not what it was.
    """

    def __init__(
        self, link: Link, subjects: Subjects, on_news: Callable[[], None] = lambda: None
    ) -> None:
        self._link = link
        self._subjects = subjects
        self._on_news = on_news
        self._sid = 0
        self._since = 0.0  # it listens, time.monotonic()
        self.asked = 0
        self._looked = time.monotonic()
        self._until = 0.0  # it is worth it, time.monotonic()
        self._nodes: dict[str, _Heard] = {}

    def serving(self, model: str, version: str, stage: int, large: bool) -> list[StagePeer]:
        """The nodes heard of that serve the stage, for a large message or a small one."""
        now = time.monotonic()
        if large:
            self._until = now + IDLE_AFTER
        if now <= self._until and not self._sid:
            self._sid = self._link.subscribe(self._subjects.status_all, self._take)
            self._since = now
            with contextlib.suppress(NotConnected):  # they speak every second anyway
                self._link.publish(self._subjects.status_request)
        self._forget(now)
        key = (model, version, stage)
        return [peer for peer, serves, _ in self._nodes.values() if key in serves]

    def _forget(self, now: float) -> None:
        """Those that are silent. (An id is unique per start: the dead would be kept for ever.)"""

        def known(at: float) -> bool:
            silent = now - max(at, self._since) >= FORGET_AFTER
            return now - at < REMEMBER and not (self._sid and silent)

        self._nodes = {node: heard for node, heard in self._nodes.items() if known(heard.at)}

    def tend(self) -> None:
        """Call about every second."""
        now = time.monotonic()
        if self.asked >= OFTEN * (now - self._looked):
            self._until = now + IDLE_AFTER
        self.asked, self._looked = 0, now
        if self._sid and now > self._until:
            self._forget(now)  # what fell silent while it listened
            self._link.unsubscribe(self._sid)
            self._sid = 0

    def gone(self, inbox: str) -> None:
        """That process of this host has ended."""
        nodes = [node for node, heard in self._nodes.items() if heard.peer.inbox == inbox]
        for node in nodes:
            del self._nodes[node]
        if nodes:
            self._on_news()

    def _take(self, message: LinkMessage) -> None:
        try:
            doc: dict[str, Any] = json.loads(bytes(message.data))
            model = str(doc["model"])
            serves = frozenset((model, str(s["version"]), int(s["stage"])) for s in doc["stages"])
            peer = StagePeer(
                str(doc["node"]),
                int(doc.get("priority", 0)),
                str(doc.get("host_id", "")),
                doc["state"] != "ready",
                str(doc.get("inbox", "")),
            )
            left = doc["state"] == "left"
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return  # not a status: it says nothing about hosts
        before = self._nodes.pop(peer.node, None)
        if not left:
            self._nodes[peer.node] = _Heard(peer, serves, time.monotonic())
        if before is None or left or before[:2] != (peer, serves):
            self._on_news()
