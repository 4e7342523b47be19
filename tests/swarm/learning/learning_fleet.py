"""Participants without a network: what they send is put where a test can lose, repeat and reorder
it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np

from swarm.learning.consensus.layout import Layout, digest_of
from swarm.learning.consensus.options import LearningOptions
from swarm.learning.consensus.participant import (
    AskSnapshot,
    ConsensusEvent,
    Effect,
    Fetch,
    Participant,
    Publish,
)
from swarm.learning.consensus.wire import ConsensusMessage, Scope, encode
from swarm.security.identity import Identity
from swarm.security.trusted_keys import AllowList

BASE = b"\7" * 32
SCOPE = Scope("default", "digits", "1", BASE, 0)
LAYOUT = Layout({"weight": (6, 4), "bias": (4,)})
EAGER = LearningOptions(share=0.25, messages_per_s=1e6, snapshots_per_s=1e6, graph="complete")


@dataclass
class Envelope:
    """A message on its way: a delta from `sender` to `receiver`; or a question, or its answer."""

    kind: str
    sender: str
    receiver: str
    payload: bytes


@dataclass
class Fleet:
    """Participants by name; `now` is the time of all; `wire` has what is on its way."""

    size: int
    options: LearningOptions = EAGER
    layout: Layout = LAYOUT
    allowed: AllowList | None = None
    now: float = 0.0
    nodes: dict[str, Participant] = field(default_factory=dict)
    identities: dict[str, Identity] = field(default_factory=dict)
    wire: list[Envelope] = field(default_factory=list)
    events: list[tuple[str, ConsensusEvent]] = field(default_factory=list)
    fetches: list[tuple[str, Fetch]] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)
    published: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    runs: int = 0

    def __post_init__(self) -> None:
        for number in range(self.size):
            self.start(f"node-{number}")
        self.meet()

    def start(self, name: str) -> Participant:
        """Start a node, or start it again, with nothing but its key."""
        self.runs += 1
        identity = self.identities.setdefault(name, Identity(len(self.identities).to_bytes(32)))
        participant = Participant(
            name,
            identity,
            SCOPE,
            self.layout,
            np.zeros(self.layout.size, np.float32),
            self.runs,
            Random(self.runs),
            self.options,
            self.allowed,
        )
        self.nodes[name] = participant
        self.record(name)
        return participant

    def meet(self) -> None:
        """All hear of all, by gossip."""
        keys = {name: self.identities[name].public for name in self.nodes}
        for name, node in self.nodes.items():
            self.do(name, node.set_peers(keys, self.now))

    def settle(self) -> None:
        """Deliver everything, in order, until nothing is on its way."""
        while self.wire:
            self.deliver(0)

    def record(self, name: str) -> None:
        node = self.nodes[name]
        self.published[(name, *node.position)] = digest_of(node.estimate)

    def step(self, name: str, update: np.ndarray) -> None:
        node = self.nodes[name]
        self.do(name, node.step(update, self.now))
        self.record(name)

    def do(self, name: str, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Publish):
                if effect.stored:
                    self.objects[effect.name] = effect.stored
                for other in self.nodes:
                    if other != name:
                        self.wire.append(Envelope("delta", name, other, effect.payload))
            elif isinstance(effect, AskSnapshot):
                self.wire.append(Envelope("ask", name, effect.node, effect.payload))
            elif isinstance(effect, Fetch):
                self.fetches.append((name, effect))
                data = self.objects.get(effect.name)
                self.do(name, self.nodes[name].on_stored(effect, data, self.now))
            else:
                self.events.append((name, effect))

    def deliver(self, at: int, *, keep: bool = False) -> None:
        """Deliver one of the messages on their way; keep: it comes again later."""
        envelope = self.wire[at] if keep else self.wire.pop(at)
        receiver = self.nodes.get(envelope.receiver)
        if receiver is None:
            return
        if envelope.kind == "delta":
            self.do(
                envelope.receiver, receiver.on_message(envelope.sender, envelope.payload, self.now)
            )
        elif envelope.kind == "ask":
            answer = receiver.on_request(envelope.payload, self.now)
            if isinstance(answer, Publish):
                self.objects[answer.name] = answer.stored
                answer = answer.payload
            if answer is not None:
                back = Envelope("snapshot", envelope.receiver, envelope.sender, answer)
                self.wire.append(back)
        else:
            self.do(
                envelope.receiver, receiver.on_snapshot(envelope.sender, envelope.payload, self.now)
            )

    def forge(self, sender: str, **changes: Any) -> bytes:
        """A message that `sender` signs with its own key, but for what is changed in it; by default
        the delta that comes next, without an entry."""
        node = self.nodes[sender]
        run, sequence = node.position
        identity = changes.pop("identity", self.identities[sender])
        message = ConsensusMessage("", "delta", node.scope, sender, run, sequence + 1, 0.5, b"", {})
        return encode(identity, replace(message, **changes))


def fingerprint(node: Participant) -> tuple[Any, ...]:
    """All that a message may change, as hashes."""
    copies = []
    for peer in sorted(node.followed):
        copy = node.copy_of(peer)
        assert copy is not None
        copies.append((peer, *copy[:2], digest_of(copy[2])))
    return (digest_of(node.x), digest_of(node.estimate), node.position, node.scope, tuple(copies))
