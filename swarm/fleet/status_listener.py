"""The nodes that a mere client knows of, from the status documents that nodes publish.

A node learns from gossip where its peers are. A client does not gossip: it listens to statuses
while that is worth its cost. Two things depend on it: whether tensors may go through shared memory,
and which node can be reached without the server.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from swarm.errors import NotConnected, ResourceExhausted
from swarm.fleet.advertised import MAX_CODECS, StagePeer
from swarm.fleet.bound_names import MOST_OF_USER, is_bound, of_user
from swarm.fleet.status_interval import request_body, silent_after
from swarm.link import Link, LinkMessage
from swarm.subjects import Subjects, speaker

# A listener parses a hundred statuses a second of a large fleet: a thousand clients that listen get
# more statuses than the mesh carries otherwise. Large messages are always worth that. Small ones
# are worth it from so many a second on.
MESSAGES_PER_SECOND = 8.0
IDLE_AFTER = 5.0  # seconds without a reason to listen, after which listening ends
# Seconds for which a node is remembered while nobody listens. It may have ended by then, at no
# great cost: the first message to it is refused by its socket and goes to the lane, and a node that
# cannot read shared memory says so. (Measured: a lone message of 4 MiB every 8 s takes 8 ms with
# this memory and 14 ms without.)
REMEMBER_FOR = 60.0
# Seconds in which the nodes of a large fleet answer, one after the other: for who reads all they
# say, and for a listener.
ANSWER_WITHIN, ASK_WITHIN = 1.0, 0.5
CURRENT_AFTER = 1.0  # seconds of listening: the nodes were asked, and say a status each second
MOST_FLAWS, LONGEST_FLAW = 8, 400  # of one node; characters
MOST_NODES = 4096  # that are known at a time; a member may say any number of names


def request_statuses(link: Link, subjects: Subjects, within: float = ANSWER_WITHIN) -> None:
    """Have every node say its status: at once in a small fleet, within so many seconds in a large
    one. Nothing happens where this user may not ask, or is not connected: a node speaks by itself
    in a while."""
    if link.grants.may_publish(subjects.status_request):
        with contextlib.suppress(NotConnected, ResourceExhausted):
            link.publish(subjects.status_request, request_body(within))


def _flaw(doc: dict[str, Any]) -> tuple[str, str]:
    """Raises what a document of another form raises."""
    text = f"{doc['title']}: {doc['detail']}; an operator mends it: {doc['mend']}"
    line = "".join(sign if sign.isprintable() else "?" for sign in text[:LONGEST_FLAW])
    return str(doc.get("of", "")), line


class _Heard(NamedTuple):
    """The last status of one node: the node, its stages (model, version, stage), when it came, and
    for how many seconds it holds while no other comes."""

    peer: StagePeer
    serves: frozenset[tuple[str, str, int]]
    at: float
    holds: float
    flaws: tuple[tuple[str, str], ...] = ()  # of what: model@version or "", and in words


class StatusListener:
    """Listens to the statuses of nodes while large messages are sent, or many small ones.

    on_news: called when a node appears, goes, or is not as it was. clock: seconds, monotonic.
    """

    def __init__(
        self,
        link: Link,
        subjects: Subjects,
        on_news: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link = link
        self._subjects = subjects
        self._on_news = on_news
        self._clock = clock
        self._sid = 0
        self._since = 0.0  # when listening began
        self._until = 0.0  # the moment up to which it is worth it
        self._sent = 0  # messages when `tend` was called last
        self._tended = clock()
        self._nodes: dict[str, _Heard] = {}

    # --- questions ------------------------------------------------------------------------

    @property
    def listening(self) -> bool:
        """Whether statuses are subscribed to at present."""
        return self._sid != 0

    @property
    def current(self) -> bool:
        """Whether the nodes known are those of now: statuses are heard, and each node of a small
        fleet has said one since."""
        return self._sid != 0 and self._clock() - self._since >= CURRENT_AFTER

    def serving(self, model: str, version: str, stage: int) -> list[StagePeer]:
        """The nodes known of that serve the stage."""
        key, now = (model, version, stage), self._clock()
        return [
            heard.peer
            for heard in self._nodes.values()
            if key in heard.serves and self._is_known(heard, now)
        ]

    def _is_known(self, heard: _Heard, now: float) -> bool:
        """Whether the node of this last status is still believed to be there."""
        silent = now - max(heard.at, self._since) >= heard.holds
        return now - heard.at < REMEMBER_FOR and not (self._sid and silent)

    def holds(self, model: str, version: str = "") -> bool:
        """Whether a node that is known has a stage of the model; version: "" for any."""
        now = self._clock()
        return any(
            served == model and version in ("", of)
            for heard in self._nodes.values()
            if self._is_known(heard, now)
            for served, of, _ in heard.serves
        )

    def flaw(self, model: str, version: str) -> str:
        """What a node says is wrong at the server with what this version needs there; "" where
        none says so, or nobody listens."""
        now, of = self._clock(), (f"{model}@{version}", "")
        for heard in self._nodes.values():
            if self._is_known(heard, now):
                for where, text in heard.flaws:
                    if where in of:
                        return text
        return ""

    # --- acts -----------------------------------------------------------------------------

    def wanted(self) -> None:
        """A large message is about to be sent to a stage: listen from now on."""
        self._until = self._clock() + IDLE_AFTER
        self._listen()

    def tend(self, sent: int) -> None:
        """Begin or end listening, and forget nodes that are silent. Call it about every second.

        sent: messages, large and small, that this client has sent to stages since its start."""
        now = self._clock()
        lately = sent - self._sent
        if lately and lately >= MESSAGES_PER_SECOND * (now - self._tended):
            self._until = now + IDLE_AFTER
            self._listen()
        self._sent, self._tended = sent, now
        # A node's id is new with each start: without this the dead would be kept for ever.
        self._nodes = {n: heard for n, heard in self._nodes.items() if self._is_known(heard, now)}
        if now > self._until:
            self.rest()

    def rest(self) -> None:
        """End listening; the nodes that were heard stay known for a while."""
        if self._sid:
            self._link.unsubscribe(self._sid)
            self._sid = 0

    def gone(self, inbox: str) -> None:
        """The process of this host that has this inbox has ended."""
        nodes = [node for node, heard in self._nodes.items() if heard.peer.inbox == inbox]
        for node in nodes:
            del self._nodes[node]
        if nodes:
            self._on_news()

    def _listen(self) -> None:
        if self._sid or not self._link.grants.may_subscribe(self._subjects.status_all):
            return
        self._sid = self._link.subscribe(self._subjects.status_all, self._heard)
        self._since = self._clock()
        request_statuses(self._link, self._subjects, ASK_WITHIN)

    def _heard(self, message: LinkMessage) -> None:
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
                link_rate=float(doc.get("link_rate", 0)),
                codecs=frozenset(map(str, doc.get("codecs", [])[:MAX_CODECS])),
            )
            left = doc["state"] == "left"
            holds = silent_after(doc)
            flaws = tuple(map(_flaw, doc.get("flaws", [])[:MOST_FLAWS]))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return  # not a status: it tells nothing about a node
        if speaker(message.subject, message.headers) != peer.node:
            return  # a member speaks for another
        before = self._nodes.pop(peer.node, None)
        if before is None and not self._has_place(peer.node):
            return  # `tend` forgets those that are silent
        if not left:
            self._nodes[peer.node] = _Heard(peer, serves, self._clock(), holds, flaws)
        if before is None or left or before[:2] != (peer, serves):
            self._on_news()

    def _has_place(self, node: str) -> bool:
        if len(self._nodes) >= MOST_NODES:
            return False
        if not is_bound(self._link.grants, self._subjects):
            return True
        return len(of_user(node, self._nodes)) < MOST_OF_USER
