"""A mesh in virtual time: the real state machines and encodings, simulated links and failures.

Seeded and repeatable: two runs with the same seed are the same run. Each node reads its own clock,
hours apart from the others'. Links lose messages and take time; nodes crash (their peers find no
responders), hang (messages wait), leave, join; the mesh splits and heals.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Literal

from swarm.gossip.config import LAN, GossipConfig
from swarm.gossip.core import Gossip
from swarm.gossip.effects import Effect, Event, GossipRequest, PeerView, Send

Cut = Literal["silent", "no_responders"]
_HOURS = 3600.0
_NOTED = frozenset(("left", "suspected", "refuted", "died", "returned", "duplicate"))


class SimulatedNode:
    """One node: its state machine, its clock, and what it has sent."""

    __slots__ = ("bytes", "clock", "gossip", "inbox", "messages", "name", "open", "side", "up")

    def __init__(self, name: str, gossip: Gossip, clock: float) -> None:
        self.name = name
        self.gossip = gossip
        self.clock = clock
        self.side = 0
        self.up = True
        self.open: set[int] = set()
        self.inbox: list[tuple[Callable[..., None], tuple[Any, ...]]] | None = None
        self.bytes = 0
        self.messages = 0


class World:
    """A mesh of simulated nodes; time is in seconds from 0.

    `loss` is the chance that a message is lost, `latency` the range of one way's seconds. With
    `warm`, all nodes know each other at the start; otherwise each knows the first one only.
    """

    def __init__(
        self,
        size: int,
        *,
        seed: int,
        config: GossipConfig = LAN,
        loss: float = 0.0,
        latency: tuple[float, float] = (0.0002, 0.002),
        warm: bool = True,
        mesh_key: bytes | None = None,
    ) -> None:
        self.rng = Random(seed)
        self.config = config
        self.loss = loss
        self.now = 0.0
        self.nodes: dict[str, SimulatedNode] = {}
        self.events: list[tuple[float, str, Event]] = []
        self.largest = 0
        self._latency = latency
        self._mesh_key = mesh_key
        self._cut: Cut = "silent"
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        for _ in range(size):
            self.join(None)
        members = list(self.nodes.values())
        if warm:
            states = [node.gossip.states()[0] for node in members]
            for node in members:
                node.gossip.preload(states)
        else:
            for node in members[1:]:
                node.gossip.add_peer(members[0].name)

    # -- what happens to nodes -----------------------------------------------------------------

    def join(self, seed_peer: str | None, name: str | None = None, incarnation: int = 1) -> str:
        """Start a node that learns of `seed_peer` from outside. Returns its id."""
        name = name or f"node-{len(self.nodes):04d}-{self.rng.getrandbits(32):08x}"
        gossip = Gossip(
            name,
            incarnation,
            Random(self.rng.getrandbits(64)),
            self.config,
            self._mesh_key,
        )
        node = SimulatedNode(name, gossip, self.rng.uniform(-12, 12) * _HOURS)
        self.nodes[name] = node
        if seed_peer is not None:
            gossip.add_peer(seed_peer)
        self._at(self.now + self.rng.random() * self.config.interval, self._tick, node)
        return name

    def crash(self, name: str) -> None:
        """The process is gone: nobody subscribes to its subject."""
        self.nodes[name].up = False

    def leave(self, name: str) -> None:
        """The process says goodbye, answers for another round, and stops."""
        node = self.nodes[name]
        self._do(node, node.gossip.leave(self.now + node.clock))
        self._at(self.now + self.config.interval, self.crash, name)

    def pause(self, name: str, seconds: float) -> None:
        """The process is stopped; what arrives waits until it goes on."""
        node = self.nodes[name]
        node.inbox = []
        self._at(self.now + seconds, self._resume, node)

    def split(self, names: Iterable[str], cut: Cut) -> None:
        """Cut these nodes off from the rest: requests find no responders, or silence."""
        self._cut = cut
        for name in names:
            self.nodes[name].side = 1

    def heal(self) -> None:
        """End the split."""
        for node in self.nodes.values():
            node.side = 0

    def set(self, name: str, key: str, value: object) -> None:
        """A node writes one of its keys."""
        node = self.nodes[name]
        node.gossip.set(key, value, self.now + node.clock)

    # -- what is seen --------------------------------------------------------------------------

    def alive(self) -> list[SimulatedNode]:
        """The nodes whose processes exist and run."""
        return [node for node in self.nodes.values() if node.up and node.inbox is None]

    def knowing(self, name: str, key: str, value: object) -> int:
        """How many running nodes see this value of this key."""
        count = 0
        for node in self.alive():
            seen = node.gossip.peer(name, self.now + node.clock)
            count += seen is not None and seen.values.get(key) == value
        return count

    def seeing(self, name: str, state: str) -> int:
        """How many running nodes, other than itself, see a node in this state."""
        count = 0
        for node in self.alive():
            if node.name != name:
                seen = node.gossip.peer(name, self.now + node.clock)
                count += seen is not None and seen.state == state
        return count

    def agree(self) -> bool:
        """Whether all running nodes see each other alive, with the same values, and nobody else."""

        def essence(peer: PeerView) -> tuple[object, ...]:
            return peer.incarnation, peer.version, peer.values

        nodes = self.alive()
        views = {n.name: n.gossip.view(self.now + n.clock) for n in nodes}
        truth = {name: essence(view[name]) for name, view in views.items()}
        return all(
            {name: essence(peer) for name, peer in view.items() if peer.state == "alive"} == truth
            for view in views.values()
        )

    def noted(self, kind: str, since: float = 0.0) -> list[tuple[float, str, str]]:
        """Events of a kind (not joins and updates): (time, who saw it, about whom)."""
        return [(t, who, e.node) for t, who, e in self.events if e.kind == kind and t >= since]

    def counters(self) -> Counter[str]:
        """The sum of all nodes' counters."""
        return sum((node.gossip.counters for node in self.nodes.values()), Counter[str]())

    def sent(self) -> int:
        """Bytes sent by all nodes so far."""
        return sum(node.bytes for node in self.nodes.values())

    # -- time ----------------------------------------------------------------------------------

    def run(self, rounds: float) -> None:
        """Let virtual time pass."""
        end = self.now + rounds * self.config.interval
        heap = self._heap
        while heap and heap[0][0] <= end:
            self.now, _, action, arguments = heapq.heappop(heap)
            action(*arguments)
        self.now = end

    def rounds_until(self, done: Callable[[], bool], most: int) -> int | None:
        """Rounds until `done`, looked at after each; None when it took more than `most`."""
        for passed in range(most + 1):
            if done():
                return passed
            if passed < most:
                self.run(1)
        return None

    def _at(self, time: float, action: Callable[..., None], *arguments: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (time, self._sequence, action, arguments))

    def _tick(self, node: SimulatedNode) -> None:
        if not node.up:
            return
        if node.inbox is not None:
            node.inbox.append((self._tick, (node,)))
            return
        self._at(self.now + self.config.interval, self._tick, node)
        self._do(node, node.gossip.tick(self.now + node.clock))

    def _resume(self, node: SimulatedNode) -> None:
        waiting, node.inbox = node.inbox, None
        for action, arguments in waiting or ():
            action(*arguments)

    # -- links ---------------------------------------------------------------------------------

    def _delay(self) -> float:
        low, high = self._latency
        return low + (high - low) * self.rng.random()

    def _lost(self) -> bool:
        return self.loss > 0 and self.rng.random() < self.loss

    def _do(self, node: SimulatedNode, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, GossipRequest):
                self._count(node, effect.payload)
                node.open.add(effect.token)
                self._at(self.now + effect.timeout, self._timeout, node, effect.token)
                if not self._lost():
                    self._at(self.now + self._delay(), self._request, node, effect)
            elif isinstance(effect, Send):
                self._count(node, effect.payload)
                if not self._lost():
                    self._at(self.now + self._delay(), self._send, node, effect)
            elif effect.kind in _NOTED:
                self.events.append((self.now, node.name, effect))

    def _count(self, node: SimulatedNode, payload: bytes) -> None:
        node.bytes += len(payload)
        node.messages += 1
        self.largest = max(self.largest, len(payload))

    def _request(self, source: SimulatedNode, request: GossipRequest) -> None:
        target = self.nodes.get(request.peer)
        cut = target is not None and target.side != source.side
        if cut and self._cut == "silent":
            return
        if target is None or not target.up or cut:
            if not self._lost():
                self._at(self.now + self._delay(), self._nobody, source, request.token)
            return
        if target.inbox is not None:
            target.inbox.append((self._request, (source, request)))
            return
        answer, effects = target.gossip.on_request(request.payload, self.now + target.clock)
        if answer is not None:
            self._count(target, answer)
            if not self._lost():
                self._at(self.now + self._delay(), self._reply, source, request.token, answer)
        self._do(target, effects)

    def _send(self, source: SimulatedNode, send: Send) -> None:
        target = self.nodes.get(send.peer)
        if target is None or not target.up or target.side != source.side:
            return
        if target.inbox is not None:
            target.inbox.append((self._send, (source, send)))
            return
        _, effects = target.gossip.on_request(send.payload, self.now + target.clock)
        self._do(target, effects)

    def _settled(self, node: SimulatedNode, token: int) -> bool:
        if token not in node.open:
            return True
        node.open.discard(token)
        return not node.up

    def _reply(self, node: SimulatedNode, token: int, payload: bytes) -> None:
        if node.inbox is not None:
            node.inbox.append((self._reply, (node, token, payload)))
        elif not self._settled(node, token):
            self._do(node, node.gossip.on_reply(token, payload, self.now + node.clock))

    def _timeout(self, node: SimulatedNode, token: int) -> None:
        if node.inbox is not None:
            node.inbox.append((self._timeout, (node, token)))
        elif not self._settled(node, token):
            self._do(node, node.gossip.on_timeout(token, self.now + node.clock))

    def _nobody(self, node: SimulatedNode, token: int) -> None:
        if node.inbox is not None:
            node.inbox.append((self._nobody, (node, token)))
        elif not self._settled(node, token):
            self._do(node, node.gossip.on_no_responders(token, self.now + node.clock))
