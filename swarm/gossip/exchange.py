"""Push-pull anti-entropy: reading a message against the table, and writing the answer.

A round's SYN carries what is news (rumours) and, to one peer, a repair window: everything known in
a slice of the id space. The answer brings what the asker lacks and names what the answerer needs;
an ACK brings that. No message lists the fleet, so its cost does not grow with it.

When not everything fits, the most outdated go first (Scuttlebutt's "depth" order): notices of death
or departure, then the nodes of which the peer lacks the most versions, then by id.

Who may say what. Keys, suspicions and first acquaintance are taken from anybody. Death, departure,
return and a new incarnation are taken from nobody: they are `claims`, which the caller checks by
asking the node itself. Only its own answer to our own request (`strong`), or that nobody is there
to answer, decides. So a stale peer cannot raise the dead, and a lying one cannot kill.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import cast

import msgpack

from swarm.gossip.config import GossipConfig
from swarm.gossip.effects import Event
from swarm.gossip.fanout import least_window
from swarm.gossip.rumours import Rumours
from swarm.gossip.state import (
    ALIVE,
    DEAD,
    LEFT,
    SUSPECT,
    Delta,
    Entry,
    NodeState,
    apply,
    array_header,
)
from swarm.gossip.table import Table
from swarm.gossip.wire import BoundedMessage, GossipMessage, RefusedGossip, Window, read_value

Validator = Callable[[str, object], bool]
_UNKNOWN = -1  # the base of a node that a peer has never heard of
HIGHEST_INCARNATION = 2**62 - 1  # at which a process may begin
_MOST_NESTED = 3  # lists and maps, one in the other


@dataclass(slots=True)
class HeardMessage:
    """The result of reading a message.

    give: the version that the peer has of each node of which we know more. need: the packed request
    for each node of which the peer knows more. claims: entries to check with the node itself.
    events: changes to report. repaired: whether it mended something that rumours had missed.
    """

    give: dict[str, int] = field(default_factory=dict)
    need: dict[str, bytes] = field(default_factory=dict)
    claims: list[Entry] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    repaired: bool = False


class GossipExchange:
    """Reads and writes messages against the table. Holds our own identity."""

    def __init__(
        self,
        config: GossipConfig,
        table: Table,
        rumours: Rumours,
        counters: Counter[str],
        instance: int,
        key: bytes | None,
        validator: Validator,
    ) -> None:
        self._config = config
        self._table = table
        self._rumours = rumours
        self._counters = counters
        self._instance: bytes = msgpack.packb(instance)
        self._key = key
        self._validator = validator
        self._window_size = config.window_min
        self._window_after = ""
        self._pass_repaired = False
        self._last_rebirth = float("-inf")
        self._outgrew = False  # has taken an incarnation above one that others knew of us
        self.leaving = False
        self.answered_bytes = 0  # in this round

    def mark_with(self, key: bytes | None) -> None:
        """The mesh's key of messages from now on."""
        self._key = key

    # -- writing ---------------------------------------------------------------------------------

    def frame(self, kind: str) -> BoundedMessage:
        """An empty message from us."""
        sender = b"\x96" + self._table.own.entry[1:] + self._instance  # the entry and one more
        return BoundedMessage(kind, sender, self._config.message_bytes, self._key)

    def syn(self, peer: str, about: bytes | None, news: bool, window: bool) -> bytes:
        """A request to `peer`. It always says what we think of the peer (or `about`, a claim that
        we check), so that the peer itself can refute it: Lifeguard's buddy system."""
        frame = self.frame("syn")
        table = self._table
        known = table.nodes.get(peer)
        entry = about or (known.entry if known else None)
        if entry:
            frame.add("d", entry)
        if window:
            self._add_window(frame)
        if news:
            self._rumours.tell(frame, table.nodes, (peer, table.me), frame.space // 2)
        return frame.encode()

    def _add_window(self, frame: BoundedMessage) -> None:
        size = max(self._window_size, least_window(self._config, self._table.alive))
        chosen, high = self._table.window(self._window_after, size)
        space = frame.space // 2
        entries: list[bytes] = []
        for node in chosen:
            entry = self._table.nodes[node].entry
            if len(entry) + 160 > space:  # 160: two ids and headers
                high = chosen[len(entries) - 1]
                break
            space -= len(entry)
            entries.append(entry)
        low, self._window_after = self._window_after, high
        if not high:  # a pass around all ids is complete
            if not self._pass_repaired:
                self._window_size = max(self._config.window_min, self._window_size // 2)
            self._pass_repaired = False
        head = b"\x93" + msgpack.packb(low) + msgpack.packb(high)
        frame.extra("w", b"".join((head, array_header(len(entries)), *entries)))

    def answer(self, kind: str, heard: HeardMessage, known: set[str], news: bool) -> bytes | None:
        """The next message of an exchange; None when it would be an ACK that says nothing."""
        if kind == "ack" and not heard.give and not heard.need:
            return None
        frame = self.frame(kind)
        if self.answered_bytes >= self._config.answer_bytes:
            self._counters["answers_cut"] += 1
            return frame.encode() if kind == "synack" else None
        self._add_deltas(frame, heard.give)
        for need in heard.need.values():
            if not frame.add("n", need):
                break
        if news:
            table = self._table
            self._rumours.tell(frame, table.nodes, known | {table.me}, frame.space // 2)
        payload = frame.encode()
        self.answered_bytes += len(payload)
        return payload

    def _add_deltas(self, frame: BoundedMessage, give: dict[str, int]) -> None:
        nodes = self._table.nodes

        def gap(item: tuple[str, int]) -> tuple[bool, int, str]:
            state = nodes[item[0]]
            return not state.final, item[1] - state.version, item[0]

        for node, base in sorted(give.items(), key=gap) if len(give) > 1 else give.items():
            news = node == self._table.me or node in self._rumours
            if not frame.add("x" if news else "f", nodes[node].delta(max(base, 0))):
                self._counters["deltas_deferred"] += 1
                if frame.space < 64:
                    break

    # -- reading ---------------------------------------------------------------------------------

    def absorb(self, message: GossipMessage, strong: str | None, now: float) -> HeardMessage:
        """Learn from a message. `strong`: the node that answers our own request with it."""
        heard = HeardMessage()
        # An ACK is not answered with needs: an exchange has at most four messages.
        self._hear(message.sender, heard, strong, now, reply=message.kind != "ack")
        for entry in message.digest:
            self._hear(entry, heard, strong, now, reply=True)
        for delta in message.deltas:
            self._take(delta, heard, strong, now, news=True)
        for delta in message.fills:
            self._take(delta, heard, strong, now, news=False)
        nodes = self._table.nodes
        for node, incarnation, version in message.needs:
            state = nodes.get(node)
            if state is not None and (not state.final or node == self._table.me):
                heard.give[node] = version if incarnation == state.incarnation else 0
        if message.window is not None:
            self._compare(message.window, heard, strong, now)
        return heard

    @property
    def repairing(self) -> bool:
        """Whether windows have lately found differences that rumours did not repair."""
        return self._window_size > self._config.window_min * 2

    def repaired(self) -> None:
        """A window found something to repair: widen it."""
        self._window_size = min(self._config.window_max, self._window_size * 2)
        self._pass_repaired = True

    def _compare(self, window: Window, heard: HeardMessage, strong: str | None, now: float) -> None:
        low, high, entries = window
        for entry in entries:
            self._hear(entry, heard, strong, now, reply=True)
        listed = {entry[0] for entry in entries}
        nodes = self._table.nodes
        for node in self._table.between(low, high, self._config.window_max * 4):
            if node not in listed and not nodes[node].final:
                heard.give.setdefault(node, _UNKNOWN)

    def _hear(
        self, entry: Entry, heard: HeardMessage, strong: str | None, now: float, reply: bool
    ) -> None:
        """Compare one entry with ours; `reply`: note what to give and what to ask for."""
        node, incarnation, heartbeat, version, status = entry
        table = self._table
        if node == table.me:
            self._about_me(entry, heard, now, reply)
            return
        state = table.nodes.get(node)
        if state is None:
            if status < DEAD and reply:
                heard.need[node] = msgpack.packb((node, incarnation, 0))
            return
        if incarnation != state.incarnation:
            if node == strong:
                state = self._new_incarnation(state, entry, heard)
            elif incarnation > state.incarnation:
                if status < DEAD or not state.final:
                    heard.claims.append(entry)
                return
            else:
                if reply:
                    heard.give[node] = 0
                return
        if state.final or status >= DEAD:
            if not state.final:
                if node == strong:  # its own farewell, whichever of the two statuses it names
                    self.bury(state, LEFT, heard.events, now)
                else:
                    heard.claims.append(entry)
            elif status < DEAD and reply:
                heard.give[node] = version
            return
        if (heartbeat, status) > (state.heartbeat, state.status):
            state = self.hear_liveness(state, heartbeat, status, heard.events)
        elif (heartbeat, status) < (state.heartbeat, state.status) and reply:
            heard.give[node] = version
        if not reply or version == state.version:
            return
        if version < state.version:
            heard.give[node] = version
        else:
            heard.need[node] = msgpack.packb((node, incarnation, state.version))

    def _about_me(self, entry: Entry, heard: HeardMessage, now: float, reply: bool) -> None:
        """What others hold against us: refute it, at most once per `rebirth` for the graver."""
        node, incarnation, heartbeat, version, status = entry
        own = self._table.own
        if incarnation > own.incarnation:
            if self._outgrew or self.leaving or incarnation >= HIGHEST_INCARNATION:
                self._counters["duplicate_self"] += 1
                heard.events.append(
                    Event("duplicate", node, "a newer incarnation of our id exists")
                )
                return
            # An earlier process of ours began by a clock that was ahead. Once only: who then takes
            # a higher one than ours is another process, with which we do not race.
            self._outgrew = True
            self.reborn(now, incarnation + 1)
            heard.events.append(Event("refuted", node, "an earlier process of ours"))
        if incarnation == own.incarnation:
            unknown = heartbeat > own.heartbeat or version > own.version
            if unknown:
                self._counters["duplicate_self"] += 1
                heard.events.append(Event("duplicate", node, "we did not write this of us"))
            if self.leaving:
                return
            if unknown or status >= DEAD:
                if now - self._last_rebirth >= self._config.rebirth:
                    self.reborn(now)
                    heard.events.append(Event("refuted", node, "our own death"))
            elif status == SUSPECT and heartbeat == own.heartbeat:
                self._table.put(own.with_liveness(heartbeat + 1, ALIVE))
                self._counters["suspicions_refuted"] += 1
                heard.events.append(Event("refuted", node, "a suspicion of us"))
        own = self._table.own
        if reply and (incarnation, heartbeat, version, status) != (
            own.incarnation,
            own.heartbeat,
            own.version,
            own.status,
        ):
            heard.give[node] = version if incarnation == own.incarnation else 0

    def reborn(self, now: float, incarnation: int = 0) -> None:
        """Take this incarnation, or the next one."""
        own = self._table.own
        self._table.put(own.with_incarnation(incarnation or own.incarnation + 1))
        self._last_rebirth = now
        self._counters["rebirths"] += 1

    def _new_incarnation(self, state: NodeState, entry: Entry, heard: HeardMessage) -> NodeState:
        """A node told us its incarnation itself. Its keys follow, from the first."""
        node, incarnation, heartbeat, _, status = entry
        new = NodeState(node, incarnation, heartbeat, status=min(status, SUSPECT))
        if incarnation < state.incarnation:
            self._counters["duplicate_node"] += 1
            heard.events.append(Event("duplicate", node, "it answers with an older incarnation"))
        if state.final:
            self._table.revive(new)
            heard.events.append(Event("returned", node))
        else:
            self._table.put(new)
        self._heat(node)
        return new

    def _take(
        self, delta: Delta, heard: HeardMessage, strong: str | None, now: float, news: bool
    ) -> None:
        node, incarnation, heartbeat, _, status = delta.entry
        table, config = self._table, self._config
        heard.need.pop(node, None)
        if len(delta.items) > config.max_keys:
            self._counters["too_many_keys"] += 1
            return
        state = table.nodes.get(node)
        if state is None:
            if status >= DEAD or delta.base > 0:
                return
            state = NodeState(node, incarnation, heartbeat, status=status)
            refused = table.learn(state, now)
            if refused:
                self._counters[refused] += 1
                return
            heard.events.append(Event("joined", node))
            if news:
                self._heat(node)
            else:
                heard.repaired = True
        else:
            self._hear(delta.entry, heard, strong, now, reply=False)
            state = table.nodes[node]
        if node == table.me or state.incarnation != incarnation or state.final:
            return
        new, changed = apply(state, delta, now, self._read)
        if new is state:
            return
        if len(new.items) > config.max_keys or new.weight() > config.state_bytes:
            self._counters["state_too_large"] += 1
            return
        table.put(new)
        if news:
            self._heat(node)
        else:
            heard.repaired = True
        if changed:
            heard.events.append(Event("updated", node, ",".join(changed)))

    def _read(self, key: str, packed: bytes | None) -> tuple[bool, object]:
        """Decode and judge a value; a deletion is always accepted."""
        if packed is None:
            return True, None
        if len(packed) > self._config.value_bytes:
            self._counters["value_too_large"] += 1
            return False, None
        try:
            value = read_value(packed)
        except RefusedGossip:
            self._counters["value_malformed"] += 1
            return False, None
        if not plain(value) or not self._valid(key, value):
            self._counters["value_invalid"] += 1
            return False, None
        return True, value

    def _valid(self, key: str, value: object) -> bool:
        try:
            return self._validator(key, value)
        except Exception:
            # A validator that raises on a peer's value has not accepted it.
            self._counters["validator_failed"] += 1
            return False

    # -- liveness, shared with the failure detector ------------------------------------------------

    def hear_liveness(
        self, state: NodeState, heartbeat: int, status: int, events: list[Event]
    ) -> NodeState:
        """Note a suspicion or its refutation, within the incarnation."""
        new = state.with_liveness(heartbeat, status)
        self._table.put(new)
        self._heat(state.node)
        if status != state.status:
            events.append(Event("suspected" if status == SUSPECT else "refuted", state.node))
        return new

    def bury(self, state: NodeState, status: int, events: list[Event], now: float) -> None:
        """A node is dead or has left, on our own evidence: say so."""
        self._table.bury(state.with_liveness(state.heartbeat, status), now)
        self._heat(state.node)
        events.append(Event("left" if status == LEFT else "died", state.node))

    def _heat(self, node: str) -> None:
        self._rumours.heat(node, self._table.alive)


def plain(value: object, depth: int = _MOST_NESTED) -> bool:
    """Whether a decoded value is a scalar, or lists and maps of them (text keys), 3 deep."""
    if type(value) in (tuple, list):  # a MessagePack extension is a tuple's subclass, and refused
        return depth > 0 and all(plain(each, depth - 1) for each in cast(Iterable[object], value))
    if isinstance(value, dict):
        return depth > 0 and all(
            type(key) is str and plain(each, depth - 1) for key, each in value.items()
        )
    return value is None or isinstance(value, bool | int | float | str | bytes)
