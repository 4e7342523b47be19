"""The view of a fleet: what is known of each node at this moment, for whoever shows it.

First come the pages of one node that answers (`swarm.fleet.pages`), then each node's status
documents and the events. Nothing here reads a clock or a socket: `swarm.fleet.service` feeds it. It
is bounded in nodes and in bytes, whatever comes. A node that sends impossible messages is marked.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swarm.errors import DecodeError
from swarm.fleet.bound_names import MOST_OF_USER, of_user
from swarm.fleet.documents import Faults, read_event, read_status
from swarm.fleet.status_interval import every_of, silent_after
from swarm.flow.bucket import TokenBucket
from swarm.subjects import TOKEN, speaker

# Seconds without a status after which a node is shown as silent, where three of its statuses would
# have come by then.
SILENT_AFTER = 5.0
FORGET_GONE, FORGET_SILENT = 60.0, 600.0  # seconds until a node that left, or is silent, goes
MARK_FOR = 60.0  # seconds that a node stays marked after its last offence
MOST_NODES, MOST_BYTES, MOST_EVENTS = 4096, 16 << 20, 1000
# Of one node, which says its status each second or less, at each change, and at each request.
STATUSES_PER_SECOND, STATUSES_AT_ONCE = 20.0, 60.0
EVENTS_PER_SECOND, EVENTS_AT_ONCE = 200.0, 1000.0  # of all nodes
RATE_LEAST, RATE_COUNTS = 0.4, 6  # seconds between two counts that give a rate; counts kept
RATE_WITHIN = 5.0  # seconds before which no count is needed, where later ones give a rate
LONGEST_MARK = 200  # characters

# What an event says of the node that it is about.
_LIFE = {"died": "dead", "left": "left"}
_BACK = ("joined", "refuted", "returned")


@dataclass(slots=True)
class Offence:
    """Why a node is marked. text: for people, without a word of the node's own. at: seconds."""

    text: str
    at: float
    count: int = 1


@dataclass(slots=True)
class FleetNode:
    """One node. All moments are seconds of the caller's clock.

    status: its last status document, {} before the first. gossiped: its entry of the last page, {}
    where no page had it. heard: when the last status came. rate: requests a second, None where that
    is not known. offences: by kind: `malformed`, `absurd`, `flood`.
    """

    node: str
    status: Mapping[str, Any] = field(default_factory=dict)
    gossiped: Mapping[str, Any] = field(default_factory=dict)
    heard: float | None = None
    unheard: float | None = None  # when it had not answered whoever asked it to speak
    known: float = 0.0
    rate: float | None = None
    offences: dict[str, Offence] = field(default_factory=dict)
    status_bytes: int = 0
    gossiped_bytes: int = 0
    gone: str = ""  # dead or left, where an event or a page said so
    gone_at: float = 0.0
    bucket: TokenBucket = field(
        default_factory=lambda: TokenBucket(STATUSES_PER_SECOND, STATUSES_AT_ONCE)
    )
    counts: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=RATE_COUNTS))

    @property
    def role(self) -> str:
        """As its status says, else as others know it."""
        return str(self.status.get("role") or self.gossiped.get("role") or "")

    @property
    def stages(self) -> Sequence[Mapping[str, Any]]:
        """The stages that it serves, with their loads: of its status, else as others know them."""
        return list(self.status.get("stages") or self.gossiped.get("stages") or ())

    @property
    def silent_after(self) -> float:
        """Seconds behind its last status after which it counts as silent."""
        return max(SILENT_AFTER, silent_after(self.status))

    def state(self, now: float) -> str:
        """waiting, loading, ready, draining, left, failed, as the node says; `dead` where the mesh
        says so, `silent` where nothing is heard, `suspect` where only the mesh speaks of it, and
        doubts."""
        if self.status.get("state") == "left":
            return "left"
        if self.gone and (self.heard is None or self.gone_at > self.heard):
            return self.gone
        if self.unheard is not None and self.unheard > (self.heard or 0.0):
            return "silent"
        if self.heard is None:
            if self.gossiped.get("state") == "suspect":
                return "suspect"
            return "draining" if self.gossiped.get("draining") else "ready"
        return "silent" if now - self.heard > self.silent_after else str(self.status["state"])

    def marks(self, now: float) -> dict[str, str]:
        """Why this node is marked at present, by the kind of offence."""
        return {k: o.text for k, o in self.offences.items() if now - o.at < MARK_FOR}

    def spoke(self, since: float) -> bool:
        """Whether a status of it came at that moment or later."""
        return self.heard is not None and self.heard >= since

    def is_gone(self, now: float) -> bool:
        """Whether it left, died, or is silent."""
        return self.state(now) in ("left", "dead", "silent")

    def is_over(self, now: float) -> bool:
        """Whether this node has been gone for so long that it need not be shown any more."""
        last = max(self.known, self.heard or 0.0, self.gone_at)
        longest = FORGET_GONE if self.state(now) in ("left", "dead") else FORGET_SILENT
        return now - last > longest


class FleetView:
    """`take_…` take messages as they come, and never raise; `tend` forgets.

    nodes: by id. events: the last ones, oldest first. changed: ids of the nodes that changed since
    the reader cleared it. refused: messages that were not taken, by reason. Moments (`now`) are
    seconds of one clock that does not go back. bound: whether rights bind a node's name to its
    user, of whose nodes at most `MOST_OF_USER` are kept then.
    """

    def __init__(
        self,
        most_nodes: int = MOST_NODES,
        most_bytes: int = MOST_BYTES,
        most_events: int = MOST_EVENTS,
    ) -> None:
        self.nodes: dict[str, FleetNode] = {}
        self.events: deque[dict[str, Any]] = deque(maxlen=most_events)
        self.changed: set[str] = set()
        self.refused: dict[str, int] = {}
        self.bound = False
        self.nbytes = 0  # of the documents that are kept, as they came
        self._most_nodes = most_nodes
        self._most_bytes = most_bytes
        self._event_bucket = TokenBucket(EVENTS_PER_SECOND, EVENTS_AT_ONCE)

    # --- messages -----------------------------------------------------------------------------

    def take_status(self, subject: str, data: bytes | memoryview, now: float) -> FleetNode | None:
        """A status document; returns its node where something was learned."""
        id_ = speaker(subject)
        node = self._node(id_, now)
        if node is None:
            return None
        if not node.bucket.take(now):
            self._offence(node, "flood", f"above {STATUSES_PER_SECOND:.0f} statuses a second", now)
            return None
        try:
            doc, faults = read_status(data, id_)
        except DecodeError as error:
            self._offence(node, "malformed", str(error), now)
            return None
        if not self._has_bytes_for(len(data) - node.status_bytes):
            return None
        node.status_bytes = len(data)
        if faults.count:
            self._offence(node, "absurd", _words(faults), now)
        node.status, node.heard, node.known = doc, now, now
        if doc["state"] != "left":
            node.gone = ""
        self._count(node, now)
        self.changed.add(id_)
        return node

    def take_event(self, subject: str, data: bytes | memoryview, now: float) -> bool:
        """An event as it happens, taken as one of now; whether it was taken."""
        event = self._event(subject, data, now)
        if event is None:
            return False
        self.events.append(event)
        kind = event["kind"]
        about = event.get("subject") or event["node"]
        tells_of_life = kind in _LIFE or kind in _BACK
        node = self._node(about, now) if tells_of_life and isinstance(about, str) else None
        if node is not None:
            if about == event["node"] and not node.gossiped:
                self._take_entry(node, {"role": event.get("role", "")})
            if kind in _LIFE:
                node.gone, node.gone_at = _LIFE[kind], now
            elif kind in _BACK:
                node.gone = ""
            self.changed.add(node.node)
        return True

    def take_past(self, past: Sequence[tuple[str, bytes]], now: float) -> None:
        """Events that happened before this reader came, (subject, bytes) of each, oldest first:
        they are shown, and change no node."""
        found = [self._event(subject, data, now, live=False) for subject, data in past]
        known = {_identity(event) for event in self.events}
        fresh = [event for event in found if event is not None and _identity(event) not in known]
        together = sorted([*fresh, *self.events], key=lambda event: str(event.get("at", "")))
        self.events = deque(together, maxlen=self.events.maxlen)

    def take_page(self, page: Mapping[str, Any], now: float) -> None:
        """A page that `read_page` has read."""
        for entry in page["nodes"]:
            node = self._node(entry["node"], now)
            if node is None or not self._take_entry(node, entry):
                continue
            node.known = now
            if entry["state"] in ("dead", "left"):
                if not node.gone:
                    # A node that publishes is alive, whatever other nodes believe.
                    node.gone, node.gone_at = entry["state"], now
                    its_turn = max(SILENT_AFTER, every_of(node.status))
                    if node.heard is not None and now - node.heard < its_turn:
                        node.gone = ""
            else:
                node.gone = ""
            self.changed.add(node.node)

    def did_not_speak(self, since: float, now: float) -> None:
        """All nodes were asked to speak, and had the time to: those that have not are silent until
        they do, whatever others believe of them."""
        for node in self.living(now):
            if not node.spoke(since):
                node.unheard = now
                self.changed.add(node.node)

    def tend(self, now: float) -> None:
        """Call it about every second: forget nodes that are gone."""
        for id_ in [id_ for id_, node in self.nodes.items() if node.is_over(now)]:
            self._forget(id_)

    # --- questions ----------------------------------------------------------------------------

    def by_state(self, now: float) -> dict[str, int]:
        """How many nodes are in each state."""
        states: dict[str, int] = {}
        for node in self.nodes.values():
            state = node.state(now)
            states[state] = states.get(state, 0) + 1
        return states

    def living(self, now: float) -> list[FleetNode]:
        """The nodes that neither left nor died."""
        return [n for n in self.nodes.values() if n.state(now) not in ("left", "dead")]

    # --- bounds -------------------------------------------------------------------------------

    def _node(self, id_: str, now: float) -> FleetNode | None:
        node = self.nodes.get(id_)
        if node is None and TOKEN.fullmatch(id_) is not None and self._has_place(id_, now):
            node = self.nodes[id_] = FleetNode(id_, known=now)
        return node

    def _has_place(self, id_: str, now: float) -> bool:
        if self.bound and len(same := of_user(id_, self.nodes)) >= MOST_OF_USER:
            # A node that never published may be made up by the node that told of it.
            nodes = [self.nodes[each] for each in same]
            if not self._makes_place([n for n in nodes if n.heard is None or n.is_gone(now)]):
                self._refuse("too_many_of_one_user")
                return False
        if len(self.nodes) < self._most_nodes:
            return True
        if not self._makes_place([n for n in self.nodes.values() if n.is_gone(now)]):
            self._refuse("too_many_nodes")
            return False
        return True

    def _makes_place(self, gone: Sequence[FleetNode]) -> bool:
        """Forget the one of these nodes that was heard last the longest ago, if there is one."""
        if not gone:
            return False
        self._forget(min(gone, key=lambda n: n.heard or n.known).node)
        return True

    def _has_bytes_for(self, more: int) -> bool:
        """Count so many bytes more, which may be less; whether there is room for them."""
        if self.nbytes + more > self._most_bytes:
            self._refuse("too_many_bytes")
            return False
        self.nbytes += more
        return True

    def _take_entry(self, node: FleetNode, entry: Mapping[str, Any]) -> bool:
        """Keep what others say of a node; whether there was room for it."""
        size = len(json.dumps(entry))
        if not self._has_bytes_for(size - node.gossiped_bytes):
            return False
        node.gossiped, node.gossiped_bytes = entry, size
        return True

    def _forget(self, id_: str) -> None:
        node = self.nodes.pop(id_)
        self.nbytes -= node.status_bytes + node.gossiped_bytes
        self.changed.add(id_)

    def _refuse(self, reason: str) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def _offence(self, node: FleetNode, kind: str, reason: str, now: float) -> None:
        known = node.offences.get(kind)
        count = 1 if known is None else known.count + 1
        node.offences[kind] = Offence(reason[:LONGEST_MARK], now, count)
        self._refuse(kind)
        self.changed.add(node.node)

    def _event(
        self, subject: str, data: bytes | memoryview, now: float, live: bool = True
    ) -> dict[str, Any] | None:
        if live and not self._event_bucket.take(now):
            self._refuse("event_flood")
            return None
        try:
            return read_event(data, subject.rpartition(".")[2])
        except DecodeError:
            self._refuse("malformed_event")
            return None

    # --- rates --------------------------------------------------------------------------------

    def _count(self, node: FleetNode, now: float) -> None:
        """The rate that the node tells; of an older node's, of its counts."""
        rate = node.status.get("rate")
        count = served(node.status)
        if count is not None:
            note_count(node.counts, now, count)
        node.rate = rate_of(node.counts) if rate is None else float(rate)


def served(status: Mapping[str, Any]) -> float | None:
    """The requests that a node has answered since its start, of a status that was read; None where
    it does not count them."""
    if "edge" in status:
        return float(status["edge"].get("answered", 0))
    counts = [
        stage["counters"]["served"]
        for stage in status.get("stages", ())
        if "served" in stage.get("counters", {})
    ]
    return float(sum(counts)) if counts else None


def note_count(counts: deque[tuple[float, float]], now: float, count: float) -> None:
    """Keep the requests since the start, where that gives a rate: of the last seconds, or since the
    count before where that one is older."""
    if counts and now - counts[-1][0] < RATE_LEAST:
        return
    counts.append((now, count))
    while len(counts) > 2 and now - counts[1][0] >= RATE_WITHIN:
        counts.popleft()


def rate_of(counts: Sequence[tuple[float, float]]) -> float | None:
    """Requests a second, from (moment in seconds, requests since the start), oldest first; None
    where they do not tell: fewer than two, or a count that went back."""
    if len(counts) < 2:
        return None
    (began, before), (ended, after) = counts[0], counts[-1]
    if after < before or ended <= began:
        return None
    return (after - before) / (ended - began)


def _words(faults: Faults) -> str:
    more = faults.count - len(faults.named)
    return "; ".join([*faults.named, *([f"and {more} more"] if more > 0 else [])])


def _identity(event: Mapping[str, Any]) -> tuple[Any, ...]:
    return event["kind"], event["node"], event.get("at"), str(event.get("subject"))
