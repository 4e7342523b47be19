"""A fleet that learns, in virtual rounds: the mesh's own state machine, simulated links and nodes.

Seeded: two runs with one seed are the same run. In each round every node mixes, makes a local step
and sends a delta; what is sent arrives before the next round, or is lost. A node that lacks a delta
asks for a snapshot, which counts as bytes and can be lost too. Signatures are counted and not made:
they are most of the time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import numpy as np

from sim.learning.task import SIZE, Samples, Trainer, accuracy
from swarm.learning.consensus.choco import ChocoNode
from swarm.learning.consensus.graph import graph_of, row_weights
from swarm.learning.consensus.layout import Layout
from swarm.learning.consensus.refusals import Reason, RefusedDelta
from swarm.learning.consensus.sparse import Sparse
from swarm.learning.consensus.step_size import StepSize, first_step
from swarm.learning.consensus.wire import ConsensusMessage, Scope, encode, tensors_of, whole
from swarm.security.identity import Identity
from swarm.wire.maps import pack

RATE = 1.0  # of local steps
NOISE = 0.3  # standard deviation of each entry that a noisy node sends
LAYOUT = Layout({"weight": (SIZE // 65 * 64,), "bias": (SIZE // 65,)})
ENVELOPE = len(
    encode(
        Identity(bytes(32)),
        ConsensusMessage(
            "", "delta", Scope("default", "digits", "1", bytes(32), 0), "n" * 24, 1 << 40, 999
        ),
    )
)
"""Bytes of a signed message beside its tensors."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """One situation. loss: chance that a delta misses one neighbour, or a snapshot its asker.
    churn: rounds between two moments at which a node leaves without a word, and one joins; 0: none.
    slow: share of the nodes that step each third round only. attack: "", "noise" or "flip", of
    `attackers` more nodes. hostile: the defence, see `LearningOptions`."""

    nodes: int
    graph: str = "random"
    degree: int = 4
    share: float = 0.1
    half: bool = True
    rounds: int = 1000
    loss: float = 0.0
    churn: int = 0
    slow: float = 0.0
    attack: str = ""
    attackers: int = 0
    hostile: float = 0.0
    seed: int = 1


@dataclass(slots=True)
class Member:
    """One node. sent, received: bytes; a delta that goes to several neighbours is sent once."""

    choco: ChocoNode
    trainer: Trainer
    honest: bool
    slow: bool = False
    sent: int = 0
    received: int = 0
    asking: set[str] = field(default_factory=set)


class LearningWorld:
    """`run()` plays a situation; its figures can be read afterwards."""

    def __init__(self, fleet: Fleet, parts: list[Samples], everything: Samples) -> None:
        self.fleet = fleet
        self.members: dict[str, Member] = {}
        self.joined = 0
        self.gone: list[Member] = []
        self._parts = parts
        self._everything = everything
        self._rng = Random(fleet.seed)
        self._noise = np.random.default_rng(fleet.seed)
        for number in range(fleet.nodes + fleet.attackers):
            self._join(number, fleet.rounds)
        self._weights: dict[str, dict[str, float]] = {}
        self._link()

    # -- who takes part --------------------------------------------------------------------------

    def _join(self, number: int, rounds: int) -> str:
        """A node that begins with nothing; `number` says which samples it has."""
        fleet, honest = self.fleet, number < self.fleet.nodes
        name = f"node-{self.joined:04d}"
        self.joined += 1
        samples = self._parts[number] if honest else self._everything
        self.members[name] = Member(
            ChocoNode(np.zeros(SIZE, np.float32), self.joined, StepSize(first_step(fleet.share))),
            Trainer(samples, RATE, rounds, fleet.seed * 1000 + self.joined),
            honest,
            honest and self._rng.random() < fleet.slow,
        )
        return name

    def _link(self) -> None:
        """Everybody has the same view of the fleet, as after a second of gossip."""
        graph = graph_of(self.members.keys(), self.fleet.graph, self.fleet.degree)
        degrees = {name: len(others) for name, others in graph.items()}
        for name, others in graph.items():
            # Sorted, here and below: the order of a set differs from process to process.
            self._weights[name] = row_weights(len(others), {o: degrees[o] for o in sorted(others)})
            choco = self.members[name].choco
            for gone in choco.copies.keys() - others:
                choco.forget(gone)
            for missing in sorted(others - choco.copies.keys()):
                self._snapshot(missing, name)

    def _replace_one(self, rounds_left: int) -> None:
        """An honest node goes; one with its samples comes, and begins at its neighbours' middle."""
        gone = self._rng.choice([n for n, m in self.members.items() if m.honest])
        self.gone.append(self.members.pop(gone))
        trainer = self.gone[-1].trainer
        newcomer = self._join(0, rounds_left)
        self.members[newcomer].trainer = trainer
        self._link()
        self.members[newcomer].choco.catch_up()
        for other in self._weights[newcomer]:
            self._snapshot(newcomer, other)

    # -- rounds ----------------------------------------------------------------------------------

    def run(self) -> None:
        for number in range(self.fleet.rounds):
            if self.fleet.churn and number % self.fleet.churn == self.fleet.churn - 1:
                self._replace_one(self.fleet.rounds - number)
            self._round(number)

    def _round(self, number: int) -> None:
        deltas: list[tuple[str, Sparse]] = []
        for name, member in self.members.items():
            for other in sorted(member.asking & self._weights[name].keys()):
                self._snapshot(other, name)
            if member.slow and number % 3:
                continue
            hostile = self.fleet.hostile if member.honest else 0.0
            member.choco.mix(self._weights[name], hostile=hostile)
            deltas.append((name, self._step(member)))
        for name, delta in deltas:
            self._broadcast(name, delta)

    def _step(self, member: Member) -> Sparse:
        choco, fleet = member.choco, self.fleet
        if not member.honest and fleet.attack == "noise":
            choco.sequence += 1
            values = self._noise.normal(0, NOISE, SIZE).astype(np.float32)
            return Sparse(np.arange(SIZE, dtype=np.uint32), values, SIZE)
        choco.update(member.trainer.update(choco.x))
        delta = choco.next_delta(max(1, int(fleet.share * SIZE)), half=fleet.half)
        if not member.honest:
            return Sparse(delta.indices, -delta.values, SIZE)
        return delta

    def _broadcast(self, name: str, delta: Sparse) -> None:
        sender = self.members[name]
        size = ENVELOPE + len(pack(tensors_of(LAYOUT, delta, half=self.fleet.half)))
        sender.sent += size
        choco = sender.choco
        for other in self._weights[name]:
            receiver = self.members[other]
            if self._rng.random() < self.fleet.loss:
                continue
            receiver.received += size
            try:
                receiver.choco.receive(name, choco.run, choco.sequence, delta, choco.guard.step)
            except RefusedDelta as refusal:
                # A snapshot that was taken in this round has the delta in it.
                if refusal.reason is Reason.GAP:
                    receiver.asking.add(name)

    def _snapshot(self, of: str, asker: str) -> None:
        """`asker` asks for the estimate of `of`, and gets it unless it is lost."""
        answerer, receiver = self.members[of], self.members[asker]
        size = ENVELOPE + len(pack(whole(LAYOUT, answerer.choco.estimate)))
        receiver.sent += ENVELOPE
        answerer.sent += size
        receiver.asking.add(of)
        if self._rng.random() < self.fleet.loss:
            return
        receiver.received += size
        receiver.asking.discard(of)
        choco = answerer.choco
        receiver.choco.adopt(of, choco.run, choco.sequence, choco.estimate, choco.guard.step)

    # -- figures ---------------------------------------------------------------------------------

    def honest(self) -> list[Member]:
        return [member for member in self.members.values() if member.honest]

    def accuracies(self, held_out: Samples) -> list[float]:
        """Of each honest node's own parameters."""
        return [accuracy(member.choco.x, held_out) for member in self.honest()]

    def bytes_a_seat(self) -> tuple[float, float]:
        """Bytes sent and received by an honest node, its predecessors among them, on average."""
        members = [*self.gone, *self.honest()]
        seats = self.fleet.nodes
        return sum(m.sent for m in members) / seats, sum(m.received for m in members) / seats

    def consensus_distance(self) -> float:
        """Root of the mean squared distance of the honest nodes' parameters to their mean."""
        all_x = np.array([member.choco.x for member in self.honest()], np.float64)
        return float(np.sqrt(np.mean(np.sum((all_x - all_x.mean(axis=0)) ** 2, axis=1))))
