"""The gossip of one node: a pure state machine, driven by messages and rounds.

It owns no clock, socket or task. A driver calls `tick` every `config.interval` seconds, hands over
what arrives, and carries out the effects that come back. `now` is any monotonic clock in seconds,
local to the node: clocks are never compared between nodes.

Bytes from the network never raise: what is refused is counted in `counters`, by reason:

    too_large, forged, malformed, version   whole messages refused, see wire.py
    wrong_kind, wrong_sender, own_message   messages that do not belong where they arrived
    value_too_large, value_malformed, value_invalid, validator_failed   values not applied
    too_many_keys, state_too_large          nodes whose difference was not applied
    too_fast, table_full, user_full         newcomers refused
    answers_cut                             answers that only said that we live
    claims_deferred, probes_deferred        checks put off to a later round
    claims_rejected                         deaths and departures that their subject refuted to us
    duplicate_node, duplicate_self          one node id used by two processes
    late                                    outcomes of requests that nobody waits for
    paused                                  rounds that found this process had been stopped
    seeds_lost                              first peers that never answered
    suspicions_refuted, rebirths            what was held against us, and refuted
    deltas_deferred, outcomes_missing       messages that were full; requests never settled

A mesh key proves membership, not authorship: a member can forge what others wrote. It cannot kill,
retire or resurrect them (see exchange.py), and what it forges is overwritten by a new incarnation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from random import Random

import msgpack

from swarm.gossip.config import LAN, GossipConfig
from swarm.gossip.detector import FailureDetector, Pending
from swarm.gossip.effects import Effect, Event, PeerView, Send, State
from swarm.gossip.exchange import GossipExchange, Validator, plain
from swarm.gossip.rumours import Rumours
from swarm.gossip.state import ALIVE, DEAD, LEFT, SUSPECT, NodeState
from swarm.gossip.table import Table
from swarm.gossip.wire import (
    GossipMessage,
    MeshKey,
    RefusedGossip,
    decode,
    keys_of,
    read_value,
    valid_id,
)

_STATES: tuple[State, ...] = ("alive", "suspect", "dead", "left")
_MOST_SEEDS = 64  # peers told of from outside that are remembered until they answer
_SEED_ATTEMPTS = 10  # questions to such a peer, once others are known
_NODES_AGED = 8  # nodes whose deleted keys are looked at each round


def _accept(_key: str, _value: object) -> bool:
    return True


class Gossip:
    """One node's gossip.

    `incarnation` must grow with each start of a process under the same id (milliseconds since the
    epoch will do). `validator(key, value)` judges every value that a peer sends; it must accept
    keys that it does not know, or they end here. With a `mesh_key` (16 to 64 bytes) every message
    carries a keyed BLAKE2b MAC, and messages without it are refused. Of several keys the first one
    marks what is sent, and each is taken.

    Raises `ValueError` for an id that is no subject token, a negative incarnation or a bad key.
    """

    def __init__(
        self,
        node: str,
        incarnation: int,
        rng: Random,
        config: GossipConfig = LAN,
        mesh_key: MeshKey = None,
        validator: Validator = _accept,
    ) -> None:
        if not valid_id(node):
            raise ValueError(f"a node id is 1 to 64 of A-Z a-z 0-9 _ -, not {node!r}")
        if not 0 <= incarnation < 2**62:
            raise ValueError(f"a incarnation is from 0 to 2^62 - 1, not {incarnation}")
        self.node = node
        self.config = config
        self.counters: Counter[str] = Counter()
        self._keys = keys_of(mesh_key)
        self._instance = rng.getrandbits(32)
        self._rng = rng
        self._table = Table(NodeState(node, incarnation), config.max_nodes, config.learn_rate, rng)
        self._rumours = Rumours(config.retransmit)
        self._exchange = GossipExchange(
            config,
            self._table,
            self._rumours,
            self.counters,
            self._instance,
            self._keys[0] if self._keys else None,
            validator,
        )
        self.detector = FailureDetector(config, self._table, self._exchange, self.counters, rng)
        self._seeds: dict[str, int] = {}
        self._instances: dict[str, int] = {}
        self._reported: dict[str, float] = {}
        self._last_tick: float | None = None
        self._aged = ""

    def use_keys(self, mesh_key: MeshKey) -> None:
        """The mesh changes its key: mark and take messages with these from now on. Raises
        `ValueError` as the class."""
        self._keys = keys_of(mesh_key)
        self._exchange.mark_with(self._keys[0] if self._keys else None)

    def bind_users(self, bound: bool) -> None:
        """Whether the server lets each node speak in its own user's name alone: then of one user at
        most `user_nodes` are known."""
        self._table.user_nodes = self.config.user_nodes if bound else 0

    @property
    def alive(self) -> int:
        """How many nodes live, ourselves and suspected ones included: O(1)."""
        return self._table.alive

    # -- our own state -------------------------------------------------------------------------

    def set(self, key: str, value: object, now: float) -> bool:
        """Write one of our keys. False, and nothing is done, when it has this value already.

        Raises `ValueError` when the value is no scalar, list or map of them (3 deep), is larger
        than `value_bytes`, or when it would be one key, or one byte, too many.
        """
        if not isinstance(key, str) or not 1 <= len(key) <= 64:
            raise ValueError("a key is a string of 1 to 64 characters")
        if not plain(value):
            raise ValueError(f"{key}: only scalars, and lists and maps of them, can be gossiped")
        try:
            packed: bytes = msgpack.packb(value)
        except (OverflowError, ValueError) as error:
            raise ValueError(f"{key}: {error}") from None
        own, config = self._table.own, self.config
        known = own.items.get(key)
        if known is not None and known.packed == packed:
            return False
        if len(packed) > config.value_bytes:
            raise ValueError(f"{key}: {len(packed)} bytes, at most {config.value_bytes}")
        if known is None and len(own.items) >= config.max_keys:
            deleted = [k for k, item in own.items.items() if item.packed is None]
            if not deleted:
                raise ValueError(f"{key}: a node has at most {config.max_keys} keys")
            own = own.without_deleted(deleted[:1])
        try:
            value = read_value(packed)  # so that a reader sees the same value here as at any peer
        except RefusedGossip as refusal:
            raise ValueError(f"{key}: {refusal.detail}") from None
        new = own.with_item(key, packed, value, now)
        if new.weight() > config.state_bytes:
            raise ValueError(f"{key}: a node's keys have at most {config.state_bytes} bytes")
        self._table.put(new)
        return True

    def delete(self, key: str, now: float) -> None:
        """Delete one of our keys; nothing happens when it does not exist."""
        known = self._table.own.items.get(key)
        if known is not None and known.packed is not None:
            self._table.put(self._table.own.with_item(key, None, None, now))

    def leave(self, now: float) -> list[Effect]:
        """Announce our departure. From here on `tick` does nothing; answer requests until the
        sends are flushed, then stop. The peers that hear of it check, and tell the others."""
        self._exchange.leaving = True
        own = self._table.own
        self._table.put(own.with_liveness(own.heartbeat, LEFT))
        farewell = self._exchange.frame("ack").encode()
        peers = self._table.random_peers(2 * self.config.fanout, without=self.node)
        return [Send(peer, farewell) for peer in peers]

    # -- peers ---------------------------------------------------------------------------------

    def add_peer(self, node: str) -> None:
        """Learn of a peer from outside: it is contacted from the next round on, until it
        answers; ten times at most once we know others.

        Raises `ValueError` when it is no valid node id.
        """
        if not valid_id(node):
            raise ValueError(f"not a node id: {node!r}")
        if node not in self._table.nodes and (
            len(self._seeds) < _MOST_SEEDS or node in self._seeds
        ):
            self._seeds[node] = _SEED_ATTEMPTS

    def watch(self, nodes: frozenset[str]) -> None:
        """Check these nodes every other round, however large the fleet is: their crash matters to
        this node."""
        self.detector.watch.set(nodes)

    def preload(self, states: Iterable[NodeState]) -> None:
        """Start from a snapshot of living nodes, as `states` of a peer gives it."""
        self._table.preload(states)

    def states(self) -> list[NodeState]:
        """The living nodes, ourselves included."""
        return [state for state in self._table.nodes.values() if not state.final]

    def view(self, now: float) -> Mapping[str, PeerView]:
        """Every known node, ourselves included: O(nodes), so call it once and keep it."""
        return {node: self._peer(state, now) for node, state in self._table.nodes.items()}

    def peer(self, node: str, now: float) -> PeerView | None:
        """One node as in `view`, None when unknown: O(keys)."""
        state = self._table.nodes.get(node)
        return None if state is None else self._peer(state, now)

    def _peer(self, state: NodeState, now: float) -> PeerView:
        node = state.node
        suspected = state.status == ALIVE and self.detector.suspects(node)
        return PeerView(
            node,
            _STATES[SUSPECT if suspected else state.status],
            state.incarnation,
            state.version,
            state.values(),
            self.detector.phi(node, now),
        )

    # -- rounds --------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Effect]:
        """One round; call it every `config.interval` seconds, each node at its own moment."""
        if self._exchange.leaving:
            return []
        if self._was_paused(now):
            self.counters["paused"] += 1
            self.detector.paused()
            if self._last_tick is not None and now - self._last_tick > self.config.tombstone / 2:
                self._start_over(now)
        self._last_tick = now
        self._exchange.answered_bytes = 0
        self._expire(now)
        effects: list[Effect] = list(self.detector.tick(now))
        window = True  # with one peer; with all of them while there is much to repair
        alive = self._table.alive
        effects += self.detector.watched(now)
        contacts = self.detector.fanout.contacts(alive, self._exchange.repairing)
        for peer in self._table.next_peers(contacts):
            if self.detector.due(peer, now):
                effects.append(self.detector.request(peer, now, news=True, window=window))
                window = self._exchange.repairing
        for seed in list(self._seeds)[:1]:
            effects.append(self.detector.request(seed, now, news=True, window=window))
        lost = self._table.random_final()
        # The fleet as a whole tries each dead node about once a round: splits heal by it.
        if lost is not None and lost.status == DEAD:
            share = len(self._table.grave) / self._table.alive
            if share >= 1 or self._rng.random() < share:
                effects.append(self.detector.request(lost.node, now))
        return effects

    def _was_paused(self, now: float) -> bool:
        limit = self.config.pause_rounds * self.config.interval
        return self._last_tick is not None and now - self._last_tick > limit

    def _start_over(self, now: float) -> None:
        """After a sleep in which tombstones may have expired, what we know may be of the dead."""
        before = self._table.clear()
        for node, state in before.items():
            if node != self.node and not state.final:
                self.add_peer(node)
            self._rumours.drop(node)
        self._instances.clear()
        self.detector.doubts.clear()
        self._exchange.reborn(now)

    def _expire(self, now: float) -> None:
        before = now - self.config.tombstone
        for node in self._table.expired(before):
            self._table.forget(node)
            self._rumours.drop(node)
            self._instances.pop(node, None)
        chosen, self._aged = self._table.window(self._aged, _NODES_AGED)
        for node in chosen:
            state = self._table.nodes[node]
            old = [k for k, i in state.items.items() if i.packed is None and i.at <= before]
            if old:
                self._table.put(state.without_deleted(old))

    # -- messages ------------------------------------------------------------------------------

    def on_request(self, payload: bytes, now: float) -> tuple[bytes | None, list[Effect]]:
        """A message on our gossip subject. Returns the answer, if any, and effects."""
        message = self._decode(payload)
        if message is None:
            return None, []
        sender = message.sender[0]
        if sender == self.node:
            return None, self._own_id(message, now)
        if message.kind == "synack":
            self.counters["wrong_kind"] += 1
            return None, []
        effects = self._identify(message, now)
        if message.kind == "syn":
            self.detector.met(sender, now)
        if message.kind == "probe":
            return None, effects + self.detector.probe(message.target, sender, now)
        if message.kind == "probed":
            return None, effects + self.detector.contact(message.target or "")
        answer, more = self._absorb(message, None, now)
        if message.kind == "ack" and answer is not None:
            return None, [*effects, *more, Send(sender, answer)]
        return answer, effects + more

    def on_reply(self, token: int, payload: bytes, now: float) -> list[Effect]:
        """A request was answered."""
        pending = self.detector.pending(token)
        if pending is None:
            self.counters["late"] += 1
            return []
        message = self._decode(payload)
        if message is not None and (message.kind, message.sender[0]) != ("synack", pending.node):
            self.counters["wrong_sender"] += 1
            message = None
        if message is None:
            return self.on_timeout(token, now)  # an answer that cannot be read counts as none
        self.detector.settle(token)
        self._seeds.pop(pending.node, None)
        effects = self._identify(message, now)
        answer, more = self._absorb(message, pending, now)
        effects += more + self.detector.answered(pending, now)
        if answer is not None:
            effects.append(Send(pending.node, answer))
        return effects

    def on_timeout(self, token: int, now: float) -> list[Effect]:
        """A request was not answered in time."""
        pending = self._settle(token)
        # A process that was stopped may have missed the answer itself.
        if pending is None or self._was_paused(now):
            return []
        return self.detector.timed_out(pending, now)

    def on_no_responders(self, token: int, now: float) -> list[Effect]:
        """A request found nobody subscribed to the peer's subject: its process is gone.

        For some seconds after its own reconnection a driver should report `on_timeout` instead:
        when the broker restarts, peers that live have not subscribed again yet.
        """
        pending = self._settle(token)
        return [] if pending is None else self.detector.no_responders(pending, now)

    def _settle(self, token: int) -> Pending | None:
        pending = self.detector.settle(token)
        if pending is None:
            self.counters["late"] += 1
            return None
        if pending.node in self._seeds:
            self._seeds[pending.node] -= 1
            attempts = self._seeds.pop(pending.node)
            if attempts > 0 or self._table.alive == 1:  # alone: never give up
                self._seeds[pending.node] = attempts  # at the end: the next one has its turn
            else:
                self.counters["seeds_lost"] += 1
        return pending

    def _decode(self, payload: bytes) -> GossipMessage | None:
        try:
            return decode(payload, self._keys, self.config.refuse_bytes)
        except RefusedGossip as refusal:
            self.counters[refusal.reason] += 1
            return None

    def _absorb(
        self, message: GossipMessage, pending: Pending | None, now: float
    ) -> tuple[bytes | None, list[Effect]]:
        sender = message.sender[0]
        strong = None
        if pending is not None:
            state = self._table.nodes.get(sender)
            # An answer that was on its way while the node changed its incarnation proves nothing.
            if (
                state is None
                or message.sender[1] > state.incarnation
                or pending.incarnation == state.incarnation
            ):
                strong = sender
        heard = self._exchange.absorb(message, strong, now)
        if pending is not None and pending.window and heard.repaired:
            self._exchange.repaired()
        self.detector.note(heard.events, sender)
        effects: list[Effect] = self._rare(heard.events, now)
        if not self._exchange.leaving:
            effects += self.detector.check(heard.claims, sender, now)
        if message.kind == "syn":
            known = {sender, *(entry[0] for entry in message.digest)}
            return self._exchange.answer("synack", heard, known, news=True), effects
        return self._exchange.answer("ack", heard, set(), news=False), effects

    # -- identity ------------------------------------------------------------------------------

    def _identify(self, message: GossipMessage, now: float) -> list[Effect]:
        """A sign of life of the sender; notices when two processes use its id."""
        sender = message.sender[0]
        effects = self.detector.contact(sender)
        if sender in self._table.nodes:
            known = self._instances.setdefault(sender, message.instance)
            if len(self._instances) > self.config.max_nodes:
                del self._instances[next(iter(self._instances))]
            if known != message.instance:
                self._instances[sender] = message.instance
                self.counters["duplicate_node"] += 1
                effects += self._rare([Event("duplicate", sender, "two processes use it")], now)
        return effects

    def _own_id(self, message: GossipMessage, now: float) -> list[Effect]:
        if message.instance == self._instance:
            self.counters["own_message"] += 1
            return []
        self.counters["duplicate_self"] += 1
        return self._rare([Event("duplicate", self.node, "another process uses our id")], now)

    def _rare(self, events: list[Event], now: float) -> list[Effect]:
        """The events, but reports of one duplicate at most once per `rebirth` seconds."""
        kept: list[Effect] = []
        for event in events:
            if event.kind == "duplicate":
                last = self._reported.pop(event.node, None)
                recent = last is not None and now - last < self.config.rebirth
                self._reported[event.node] = last if recent and last is not None else now
                if len(self._reported) > _MOST_SEEDS:
                    del self._reported[next(iter(self._reported))]
                if recent:
                    continue
            kept.append(event)
            self.noticed(event)
        return kept

    def noticed(self, event: Event) -> None:
        """There is news for all: the next rounds contact more peers. They do not for an update, nor
        for a node whose name may be made up."""
        if event.kind != "updated" and not self._table.is_crowd(event.node):
            self.detector.hurry()
