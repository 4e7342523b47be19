"""CHOCO-SGD at one node: compressed consensus with neighbours' copies in lock-step.

Koloskova, Stich, Jaggi, "Decentralized Stochastic Optimization and Gossip Algorithms with
Compressed Communication", arXiv 1902.00340, algorithm 2. A node i has its parameters x and a public
estimate x̂ of them. Each round it sends q = top-k(x - x̂) and adds q to x̂; its neighbours add the
same q to their copies of x̂. So all copies are the same bits wherever the sequence numbers are the
same, and what top-k left out is sent later: it stays in x - x̂. Then

    x  +=  step * sum over neighbours j of  w_ij (x̂_j - x̂_i)

What this module adds to the paper is what a network needs: a copy counts its deltas, a gap ends it,
and a snapshot of x̂ begins it anew. A neighbour that sent nothing since the last mixing takes no
part in the next one, so that slow nodes neither block nor weigh more than fast ones. While all
deltas arrive, the mean over all nodes is kept by each mixing; a delta that one node has and another
lacks shifts it by no more than what the delta changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from swarm.learning.consensus.layout import Vector, mean_of
from swarm.learning.consensus.limits import Doubts, clip_radius
from swarm.learning.consensus.refusals import Reason, RefusedDelta
from swarm.learning.consensus.sparse import Sparse, add_to, top_k
from swarm.learning.consensus.step_size import StepSize


@dataclass(slots=True)
class EstimateCopy:
    """A neighbour's public estimate as this node has it. run: which start of the neighbour's
    process counts; sequence: deltas of that run that it holds. step: the neighbour's step size.
    fresh: a delta came since the last mixing."""

    run: int
    sequence: int
    estimate: Vector
    step: float = 1.0
    fresh: bool = True


class ChocoNode:
    """One node's part. Vectors are float32 and of one size; `run` grows with each start.

    x: the parameters. estimate: x̂, what the neighbours know of them. sequence: deltas sent.
    """

    def __init__(self, start: Vector, run: int, guard: StepSize) -> None:
        self.x = start.astype(np.float32, copy=True)
        self.run = run
        self.sequence = 0
        self.estimate = self.x.copy()
        self.copies: dict[str, EstimateCopy] = {}
        self.guard = guard
        self.doubts = Doubts()
        self._moved = 0.0

    # -- our own parameters ----------------------------------------------------------------------

    def update(self, change: Vector) -> None:
        """Move by a local update. Raises `ValueError`, and does nothing, for one that is not
        finite."""
        length = float(np.linalg.norm(change))
        if not math.isfinite(length):
            raise ValueError("a local update that is not finite")
        self.x += change
        self._moved += length

    def next_delta(self, k: int, *, longest: float = math.inf, half: bool = False) -> Sparse:
        """The next delta to send, with at most `k` entries; its number is `sequence` from here on.

        longest: its length at most; the rest goes with later ones. half: values as float16 can hold
        them.
        """
        behind = self.x - self.estimate
        delta = top_k(behind, k, half=half)
        length = delta.norm()
        if length > longest:
            # A little less than the bound: the receiver adds the squares up in another order.
            delta = top_k(behind * np.float32(0.99 * longest / length), k, half=half)
        add_to(self.estimate, delta)
        self.sequence += 1
        return delta

    # -- neighbours ------------------------------------------------------------------------------

    def receive(self, peer: str, run: int, sequence: int, delta: Sparse, step: float = 1.0) -> None:
        """Add a neighbour's delta to the copy of its estimate. step: its step size.

        Raises `RefusedDelta`, and changes nothing: `REPLAYED` for one that the copy holds already
        or of an earlier start; `GAP` where the copy lacks deltas before it, or there is no copy:
        ask for a snapshot.
        """
        copy = self.copies.get(peer)
        if copy is None:
            raise RefusedDelta(Reason.GAP, "there is no copy to add to")
        if (run, sequence) <= (copy.run, copy.sequence):
            raise RefusedDelta(Reason.REPLAYED, f"delta {sequence} is in the copy already")
        if run != copy.run or sequence != copy.sequence + 1:
            raise RefusedDelta(Reason.GAP, f"delta {sequence} comes after {copy.sequence}")
        add_to(copy.estimate, delta)
        copy.sequence = sequence
        copy.step = step
        copy.fresh = True

    def adopt(
        self, peer: str, run: int, sequence: int, estimate: Vector, step: float = 1.0
    ) -> None:
        """Begin a neighbour's copy, or begin it anew, with a snapshot of its estimate.

        Raises `RefusedDelta` with `REPLAYED` for a snapshot that is older than the copy.
        """
        copy = self.copies.get(peer)
        if copy is not None and (run, sequence) < (copy.run, copy.sequence):
            raise RefusedDelta(Reason.REPLAYED, f"a snapshot of {sequence}, before {copy.sequence}")
        self.copies[peer] = EstimateCopy(
            run, sequence, estimate.astype(np.float32, copy=True), step
        )
        self.guard.forget()

    def forget(self, peer: str) -> None:
        """The neighbour is one no more, or its copy is wrong."""
        if self.copies.pop(peer, None) is not None:
            self.guard.forget()

    # -- consensus -------------------------------------------------------------------------------

    def mix(self, weights: Mapping[str, float], *, hostile: float = 0.0) -> int:
        """Move towards the neighbours that sent something since the last mixing; returns how many.

        weights: of each neighbour (`graph.row_weights`). hostile: the share of the neighbours'
        weight (0..1) that may lie; above 0 each difference is clipped (`limits.clip_radius`), and
        neighbours that stay far away are left out (`limits.Doubts`).
        """
        pulls = {p: self.copies[p].estimate - self.estimate for p in weights if p in self.copies}
        lengths = {peer: float(np.linalg.norm(pull)) for peer, pull in pulls.items()}
        fresh = {peer for peer in pulls if self.copies[peer].fresh}
        for peer in fresh:
            self.copies[peer].fresh = False
        radius = math.inf
        if hostile > 0 and fresh:
            self.doubts.observe(lengths, hostile)
            fresh -= self.doubts.doubted()
            radius = clip_radius({p: (weights[p], lengths[p]) for p in fresh}, hostile)
        for peer in sorted(fresh):
            shrink = min(1.0, radius / lengths[peer]) if lengths[peer] > 0 else 1.0
            step = min(self.guard.step, self.copies[peer].step)
            self.x += np.float32(step * weights[peer] * shrink) * pulls[peer]
        if fresh:
            self.guard.observe(self.distance(), self._moved)
            self._moved = 0.0
        return len(fresh)

    def consensus_distance(self) -> float:
        """Root of the mean squared distance between this node's parameters and the neighbours'
        estimates, without the neighbours that are doubted; 0 where there are none."""
        squares = [float(np.sum((self.x - e) ** 2)) for e in self._believed()]
        return math.sqrt(sum(squares) / len(squares)) if squares else 0.0

    def distance(self) -> float:
        """What the guard watches: the consensus distance, and what is not sent yet."""
        return math.hypot(self.consensus_distance(), float(np.linalg.norm(self.x - self.estimate)))

    def consensus(self) -> Vector:
        """The mean of the neighbourhood's parameters as this node knows them: its own, and the
        copies of neighbours that are not doubted."""
        return mean_of([self.x, *self._believed()])

    def _believed(self) -> list[Vector]:
        doubted = self.doubts.doubted()
        return [copy.estimate for peer, copy in self.copies.items() if peer not in doubted]

    def catch_up(self) -> bool:
        """Begin anew from the neighbours: the middle of their estimates, entry by entry, which one
        liar among three does not move. Whether there was a neighbour to begin from."""
        if not self.copies:
            return False
        copies = dict(self.copies)
        middle = np.median([copy.estimate for copy in copies.values()], axis=0)
        self.reset(middle.astype(np.float32))
        self.copies = copies
        return True

    def reset(self, start: Vector) -> None:
        """Begin anew from these parameters, as a new run with the same neighbours: their copies
        are void, and so are ours of them."""
        self.x = start.astype(np.float32, copy=True)
        self.estimate = self.x.copy()
        self.run += 1
        self.sequence = 0
        self.copies.clear()
        self._moved = 0.0
        self.guard.forget()
