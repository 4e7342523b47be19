"""One node that learns with others: a pure state machine, messages in, effects out.

It owns no clock, socket or task. A driver tells it who takes part (`set_peers`), gives it local
updates (`step`) and what arrives, and carries out the effects. What is refused changes nothing,
is counted by reason and sender, and is told as an event; nothing from the network raises.

A message passes these gates, the cheap ones first: the sender's rate; its size; its form; its
signature; its key (the one that gossip attests for this node, allowed, not blocked); its scope
(mesh, model, version, base, epoch); whether its sender is a neighbour; its order; its tensors; its
length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np

from swarm.flow.bucket import TokenBucket
from swarm.learning.consensus.choco import ChocoNode
from swarm.learning.consensus.graph import graph_of, row_weights
from swarm.learning.consensus.layout import Layout, Vector
from swarm.learning.consensus.limits import NormBound
from swarm.learning.consensus.options import LearningOptions
from swarm.learning.consensus.refusals import HARMLESS, Reason, RefusedDelta, SenderRefusals
from swarm.learning.consensus.sparse import Sparse
from swarm.learning.consensus.step_size import StepSize, first_step
from swarm.learning.consensus.wire import (
    INLINE_BYTES,
    NONCE_BYTES,
    ConsensusMessage,
    Reference,
    Scope,
    check_reference,
    decode,
    encode,
    most_entries,
    read_stored,
    read_tensors,
    store_form,
    tensors_of,
    whole,
)
from swarm.security.identity import Identity
from swarm.security.trusted_keys import AllowList

ASK_EVERY = 0.5  # seconds between two questions for one neighbour's snapshot
ASK_EVERY_MOST = 30.0  # doubled after each that brought nothing, up to this
TELL_EVERY = 10.0  # seconds between two events about one sender and reason
LAG = 2.0  # seconds for which a gossiped sequence may be ahead of the copy
MOST_EARLY = 16  # deltas of one neighbour that wait for the snapshot before them
HONEST_SHARE = 0.5  # of the longest delta that neighbours take by this node's own reckoning


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish on this node's own deltas subject. stored: bytes that go to the object store first,
    under `name`."""

    payload: bytes
    name: str = ""
    stored: bytes = b""


@dataclass(frozen=True, slots=True)
class AskSnapshot:
    """Ask a neighbour for a snapshot; hand the answer to `on_snapshot`."""

    node: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Fetch:
    """Fetch an object of at most `size` bytes and hand it to `on_stored` with the message."""

    node: str
    name: str
    size: int
    message: ConsensusMessage


@dataclass(frozen=True, slots=True)
class ConsensusEvent:
    """Something worth telling people: `refused` (a sender and a reason), `diverging` (the step
    size was halved), `doubted` and `trusted` (a neighbour that is too far away, and near again)."""

    kind: str
    node: str
    detail: str


Effect = Publish | AskSnapshot | Fetch | ConsensusEvent


@dataclass(slots=True)
class _Peer:
    """What this node keeps of another one that takes part."""

    key: str
    bucket: TokenBucket
    snapshots: TokenBucket
    nonce: bytes = b""
    asked: float = 0.0
    pause: float = ASK_EVERY
    ahead_since: float | None = None
    early: list[ConsensusMessage] = field(default_factory=list)


class Participant:
    """See the module. Times are seconds of any monotonic clock.

    node: this node's id. start: float32 [layout.size]. run: grows with each start under the same
    key (milliseconds since the epoch will do).
    """

    def __init__(
        self,
        node: str,
        identity: Identity,
        scope: Scope,
        layout: Layout,
        start: Vector,
        run: int,
        rng: Random,
        options: LearningOptions | None = None,
        allowed: AllowList | None = None,
    ) -> None:
        self.node = node
        self.scope = scope
        self.layout = layout
        self.options = options or LearningOptions()
        self.refusals = SenderRefusals()
        self._identity = identity
        self._allowed = allowed or AllowList()
        self._rng = rng
        entries = most_entries(layout, self.options.bytes_per_delta, half=self.options.half)
        self._entries = max(1, min(entries, int(self.options.share * layout.size)))
        guard = StepSize(first_step(self._entries / layout.size))
        self._choco = ChocoNode(start, run, guard)
        self._bound = NormBound(self.options.longest)
        self._peers: dict[str, _Peer] = {}
        self._weights: dict[str, float] = {}
        self._blocked: set[str] = set()
        self._reported: dict[tuple[str, Reason], float] = {}
        self._doubted: frozenset[str] = frozenset()
        self._mixed = True
        self.sent_bytes = 0
        self.received_bytes = 0
        self.accepted = 0

    # -- what others may look at -----------------------------------------------------------------

    @property
    def x(self) -> Vector:
        """This node's parameters, float32 [layout.size]; not to be written to."""
        return self._choco.x

    @property
    def estimate(self) -> Vector:
        """What the neighbours know of this node's parameters; not to be written to."""
        return self._choco.estimate

    @property
    def position(self) -> tuple[int, int]:
        """Run, and deltas sent in it."""
        return self._choco.run, self._choco.sequence

    @property
    def neighbours(self) -> frozenset[str]:
        """The nodes whose deltas are taken."""
        return frozenset(self._weights)

    @property
    def followed(self) -> frozenset[str]:
        """The neighbours whose public estimate this node holds."""
        return frozenset(self._choco.copies)

    @property
    def doubted(self) -> frozenset[str]:
        """The neighbours that are too far away to be mixed with at present."""
        return self._doubted

    def copy_of(self, node: str) -> tuple[int, int, Vector] | None:
        """Run, sequence and estimate of a neighbour as this node holds them."""
        copy = self._choco.copies.get(node)
        return None if copy is None else (copy.run, copy.sequence, copy.estimate)

    def consensus(self) -> Vector:
        """The mean of this node's parameters and of what it knows of its neighbours'."""
        return self._choco.consensus()

    def consensus_distance(self) -> float:
        """Root of the mean squared distance to the neighbours."""
        return self._choco.consensus_distance()

    @property
    def step_size(self) -> float:
        """The present step size of the consensus."""
        return self._choco.guard.step

    # -- who takes part --------------------------------------------------------------------------

    def set_peers(self, peers: Mapping[str, str], now: float) -> list[Effect]:
        """The other nodes that learn this model version now, each with its attested public key.

        Those who are not allowed are left out. Links and weights are made anew from all names.
        """
        taking = {n: k for n, k in peers.items() if n != self.node and self._allowed.allows(k)}
        for node in [n for n, peer in self._peers.items() if taking.get(n) != peer.key]:
            self._forget(node)
        for node, key in taking.items():
            if node not in self._peers:
                rate = self.options.messages_per_s
                asks = self.options.snapshots_per_s
                self._peers[node] = _Peer(
                    key, TokenBucket(rate, 2 * rate), TokenBucket(asks, max(2.0, 2 * asks))
                )
        graph = graph_of(taking.keys() | {self.node}, self.options.graph, self.options.degree)
        own = graph[self.node]
        self._weights = row_weights(len(own), {node: len(graph[node]) for node in own})
        for node in self._choco.copies.keys() - own:
            self._choco.forget(node)
        return self.tend(now)

    def _forget(self, node: str) -> None:
        self._peers.pop(node, None)
        self._weights.pop(node, None)
        self._reported = {key: at for key, at in self._reported.items() if key[0] != node}
        self._choco.forget(node)

    def block(self, node: str) -> bool:
        """Take nothing more of the key of this node, under whatever name it comes back. Whether
        that is news."""
        peer = self._peers.get(node)
        if peer is None or peer.key in self._blocked:
            return False
        self._blocked.add(peer.key)
        self._choco.forget(node)
        return True

    @property
    def blocked(self) -> frozenset[str]:
        """Public keys that nothing is taken of."""
        return frozenset(self._blocked)

    def heard_of(self, node: str, run: int, sequence: int, now: float) -> list[Effect]:
        """Gossip says how far a neighbour is. A copy that stays behind lacks its last deltas: their
        loss shows only here, as nothing comes after them."""
        copy, peer = self._choco.copies.get(node), self._peers.get(node)
        if copy is None or peer is None or (run, sequence) <= (copy.run, copy.sequence):
            if peer is not None:
                peer.ahead_since = None
            return []
        if peer.ahead_since is None:
            peer.ahead_since = now
        return self._ask(node, now) if now - peer.ahead_since >= LAG else []

    # -- rounds ----------------------------------------------------------------------------------

    def mix(self, now: float) -> list[Effect]:
        """Move towards the neighbours, by what has come of them since the last time."""
        self._mixed = True
        halved = self._choco.guard.halved
        self._choco.mix(self._weights, hostile=self.options.hostile)
        effects: list[Effect] = []
        if self._choco.guard.halved > halved:
            detail = f"the distance grew; the step is {self.step_size:.4g} now"
            effects.append(ConsensusEvent("diverging", self.node, detail))
        doubted = frozenset(self._choco.doubts.doubted() & self._weights.keys())
        for node in sorted(doubted - self._doubted):
            effects.append(
                ConsensusEvent("doubted", node, "its parameters are far from its neighbours'")
            )
        for node in sorted((self._doubted - doubted) & self._weights.keys()):
            effects.append(
                ConsensusEvent("trusted", node, "its parameters are near its neighbours' again")
            )
        self._doubted = doubted
        return effects + self.tend(now)

    def step(self, update: Vector, now: float) -> list[Effect]:
        """One round: move by a local update, and tell the neighbours. Mixes first, unless that was
        done since the last step. Raises `ValueError` for an update that is not finite."""
        effects = [] if self._mixed else self.mix(now)
        self._choco.update(update)
        limit = HONEST_SHARE * self._bound.limit()
        delta = self._choco.next_delta(self._entries, longest=limit, half=self.options.half)
        self._bound.note(delta.norm())
        tensors = tensors_of(self.layout, delta, half=self.options.half)
        effects.append(self._message("delta", tensors))
        self._mixed = False
        return effects

    def catch_up(self) -> bool:
        """Begin from the middle of the neighbours' estimates, for a node that comes late. Whether
        there was a neighbour to begin from."""
        return self._choco.catch_up()

    def reset(self, start: Vector, epoch: int, now: float) -> list[Effect]:
        """Begin anew from these parameters in another epoch (a rollback): deltas of the epochs
        before are refused from here on. Raises `ValueError` for an epoch that is not later."""
        if epoch <= self.scope.epoch:
            raise ValueError(f"epoch {epoch} is not after {self.scope.epoch}")
        self.scope = self.scope._replace(epoch=epoch)
        self._choco.reset(start)
        self._bound = NormBound(self.options.longest)
        for peer in self._peers.values():
            peer.nonce, peer.asked, peer.pause = b"", 0.0, ASK_EVERY
        return self.tend(now)

    # -- messages --------------------------------------------------------------------------------

    def on_message(self, node: str, payload: bytes | memoryview, now: float) -> list[Effect]:
        """A message on the deltas subject of `node`."""
        try:
            message = self._open(node, payload, now)
            if message.kind != "delta":
                raise RefusedDelta(Reason.MALFORMED, f"a {message.kind} does not belong here")
            if node not in self._weights:
                raise RefusedDelta(Reason.NOT_A_NEIGHBOUR, "its deltas are not followed here")
            self._check_order(node, message)
            return self._take_or_fetch(node, message)
        except RefusedDelta as refusal:
            return self._refuse(node, refusal, now)

    def on_request(self, payload: bytes | memoryview, now: float) -> bytes | Publish | None:
        """A question for a snapshot: its answer; a `Publish` (for the asker alone) where it goes by
        the object store; None where it is refused."""
        try:
            message = self._verified(payload)
            if message.kind != "ask" or not message.nonce:
                raise RefusedDelta(Reason.MALFORMED, f"a {message.kind} is no question")
            peer = self._peers.get(message.node)
            if peer is None or peer.key != message.key:
                raise RefusedDelta(Reason.NOT_A_NEIGHBOUR, "it does not take part, as gossip tells")
            self._check_scope(message)
            if not peer.snapshots.take(now):
                raise RefusedDelta(Reason.TOO_FAST, "too many snapshots asked for")
        except RefusedDelta as refusal:
            self.refusals.count("(asker)", refusal.reason)
            return None
        answer = self._message("snapshot", whole(self.layout, self.estimate), message.nonce)
        return answer if answer.stored else answer.payload

    def on_snapshot(self, node: str, payload: bytes | memoryview, now: float) -> list[Effect]:
        """The answer to an `AskSnapshot`."""
        try:
            message = self._open(node, payload, now)
            peer = self._peers[node]
            if message.kind != "snapshot" or not peer.nonce or message.nonce != peer.nonce:
                raise RefusedDelta(Reason.REPLAYED, "it answers no question of ours")
            if node not in self._weights:
                raise RefusedDelta(Reason.NOT_A_NEIGHBOUR, "its deltas are not followed here")
            return self._take_or_fetch(node, message)
        except RefusedDelta as refusal:
            return self._refuse(node, refusal, now)

    def on_stored(self, fetch: Fetch, data: bytes | None, now: float) -> list[Effect]:
        """An object was fetched; None where it could not be."""
        node, message = fetch.node, fetch.message
        try:
            if data is None:
                raise RefusedDelta(Reason.UNAVAILABLE, "its object could not be fetched")
            assert isinstance(message.tensors, Reference)
            if message.scope != self.scope or node not in self._weights:
                raise RefusedDelta(Reason.OTHER_EPOCH, "it came too late")
            if self._peers[node].key != message.key or message.key in self._blocked:
                raise RefusedDelta(Reason.BLOCKED, "its sender has changed")
            tensors = read_stored(message.tensors, data, self.layout)
            self._take(node, replace(message, tensors=tensors))
            return []
        except RefusedDelta as refusal:
            return self._refuse(node, refusal, now)

    def _open(self, node: str, payload: bytes | memoryview, now: float) -> ConsensusMessage:
        """A message of `node` about what is learned here, by its own key."""
        peer = self._peers.get(node)
        if peer is None:
            raise RefusedDelta(Reason.NOT_A_NEIGHBOUR, "it does not take part, as gossip tells")
        if peer.key in self._blocked:
            raise RefusedDelta(Reason.BLOCKED, "nothing is taken of its key")
        # Before anything is read: a flood costs its receiver this line for each message.
        if not peer.bucket.take(now):
            raise RefusedDelta(
                Reason.TOO_FAST, f"more than {self.options.messages_per_s:g} a second"
            )
        message = self._verified(payload)
        if message.key != peer.key or message.node != node:
            raise RefusedDelta(Reason.WRONG_SENDER, "its key or its name is another node's")
        self._check_scope(message)
        self.received_bytes += len(payload)
        return message

    def _verified(self, payload: bytes | memoryview) -> ConsensusMessage:
        message = decode(payload, self.layout)
        if not self._allowed.allows(message.key):
            raise RefusedDelta(Reason.NOT_ALLOWED, f"{message.key} is not on the list")
        return message

    def _check_scope(self, message: ConsensusMessage) -> None:
        theirs, ours = message.scope, self.scope
        if theirs[:3] != ours[:3]:
            raise RefusedDelta(Reason.OTHER_MODEL, f"it is about {'/'.join(theirs[:3])}")
        if theirs.base != ours.base:
            raise RefusedDelta(Reason.OTHER_BASE, f"base {theirs.base.hex()[:12]}, here another")
        if theirs.epoch != ours.epoch:
            raise RefusedDelta(Reason.OTHER_EPOCH, f"epoch {theirs.epoch}, here {ours.epoch}")

    def _check_order(self, node: str, message: ConsensusMessage) -> None:
        """Before the tensors are looked at, or fetched."""
        copy = self._choco.copies.get(node)
        if copy is not None and (message.run, message.sequence) <= (copy.run, copy.sequence):
            raise RefusedDelta(Reason.REPLAYED, f"delta {message.sequence} is in the copy already")
        next_one = None if copy is None else (copy.run, copy.sequence + 1)
        if (message.run, message.sequence) != next_one:
            early = self._peers[node].early
            if len(early) < MOST_EARLY and not isinstance(message.tensors, Reference):
                early.append(message)
            raise RefusedDelta(Reason.GAP, f"delta {message.sequence} does not follow")

    def _take_or_fetch(self, node: str, message: ConsensusMessage) -> list[Effect]:
        if isinstance(message.tensors, Reference):
            check_reference(message.tensors, self.layout)
            name = object_name(message)
            return [Fetch(node, name, message.tensors.size, message)]
        self._take(node, message)
        return []

    def _take(self, node: str, message: ConsensusMessage) -> None:
        """Act on a message that passed all gates but those of its tensors."""
        if message.tensors is None or isinstance(message.tensors, Reference):
            raise RefusedDelta(Reason.MALFORMED, "a message without tensors")
        change = read_tensors(message.tensors, self.layout)
        if message.kind == "delta":
            self._take_delta(node, message, change)
        else:
            self._take_whole(node, message, change)
        self.accepted += 1

    def _take_delta(self, node: str, message: ConsensusMessage, change: Sparse) -> None:
        length, limit = change.norm(), self._bound.limit()
        if length > limit:
            raise RefusedDelta(
                Reason.NORM_TOO_LARGE, f"a delta of length {length:.4g} > {limit:.4g}"
            )
        self._choco.receive(node, message.run, message.sequence, change, message.step)
        self._bound.note(length)

    def _take_whole(self, node: str, message: ConsensusMessage, change: Sparse) -> None:
        vector = np.zeros(self.layout.size, np.float32)
        vector[change.indices] = change.values
        length = float(np.linalg.norm(vector - self.x))
        if length > self.options.longest:
            raise RefusedDelta(Reason.NORM_TOO_LARGE, f"it is {length:.4g} away from this node")
        self._choco.adopt(node, message.run, message.sequence, vector, message.step)
        peer = self._peers[node]
        early, peer.early = peer.early, []
        peer.nonce, peer.pause, peer.ahead_since = b"", ASK_EVERY, None
        for delta in early:
            # Those that came while the snapshot was on its way; the others are in it.
            if (delta.run, delta.sequence) == (message.run, self._choco.copies[node].sequence + 1):
                self._take(node, delta)

    # -- effects ---------------------------------------------------------------------------------

    def tend(self, now: float) -> list[Effect]:
        """Ask those neighbours for a snapshot whose copy is missing; a few times a second."""
        missing = self._weights.keys() - self._choco.copies.keys()
        return [effect for node in sorted(missing) for effect in self._ask(node, now)]

    def _ask(self, node: str, now: float) -> list[Effect]:
        peer = self._peers.get(node)
        if peer is None or peer.key in self._blocked:
            return []
        if peer.nonce and now - peer.asked < peer.pause:
            return []
        if peer.nonce:
            peer.pause = min(ASK_EVERY_MOST, 2 * peer.pause)
        peer.nonce = self._rng.randbytes(NONCE_BYTES)
        peer.asked = now
        return [AskSnapshot(node, self._message("ask", None, peer.nonce).payload)]

    def _message(self, kind: str, tensors: Mapping[str, Any] | None, nonce: bytes = b"") -> Publish:
        run, sequence = self.position
        message = ConsensusMessage(
            key=self._identity.public,
            kind=kind,
            scope=self.scope,
            node=self.node,
            run=run,
            sequence=sequence,
            step=self.step_size,
            nonce=nonce,
            tensors=tensors,
        )
        if tensors is not None:
            reference, data = store_form(tensors)
            if reference.size > INLINE_BYTES:
                message = replace(message, tensors=reference)
                payload = encode(self._identity, message)
                self.sent_bytes += len(payload) + len(data)
                return Publish(payload, object_name(message), data)
        payload = encode(self._identity, message)
        self.sent_bytes += len(payload)
        return Publish(payload)

    def _refuse(self, node: str, refusal: RefusedDelta, now: float) -> list[Effect]:
        self.refusals.count(node, refusal.reason)
        effects: list[Effect] = []
        if refusal.reason is Reason.GAP:
            effects += self._ask(node, now)
        if refusal.reason not in HARMLESS:
            reported = self._reported.get((node, refusal.reason))
            if reported is None or now - reported >= TELL_EVERY:
                self._reported[node, refusal.reason] = now
                effects.append(ConsensusEvent("refused", node, str(refusal)))
        return effects


MOST_WAITING = 16  # messages that wait behind one whose object is stored, or is fetched
# Objects that one node keeps in the store for its deltas: more than messages are under way. Whoever
# fetches an object finds otherwise a later one in its place, and takes its sender for a forger.
SLOTS = 2 * (1 + MOST_WAITING)


def object_name(message: ConsensusMessage) -> str:
    """Where the tensors of a large message lie: of each sender and kind the last few are kept."""
    slot = message.sequence % SLOTS
    return f"{message.scope.model}/{message.scope.version}/{message.key}/{message.kind}-{slot}"
