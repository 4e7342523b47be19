"""A gate in front of a pipeline: while priorities or shares are in use, requests wait there.

A lane is first in, first out: what lies in it is passed by nobody. So as long as some requests are
not normal, few are let into the pipeline at a time, just enough to keep its slowest stage at work.
All others wait at their requester, and those in the pipeline wait in their nodes, where a request
of high priority passes them too. Turns go to urgencies by their weights, and within each to agents
by their shares (`swarm.flow.shares`).

How many are let in follows from the answers: each tells how long it waited in every stage (as TCP
Vegas measures queues by delay, Brakmo and Peterson 1995). So several requesters find their parts
without knowing of each other. A stage that has seen such a request tells it in its hops, and a
requester that reads so opens its gate too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from swarm.flow.shares import FairShares
from swarm.wire.hops import Hop
from swarm.wire.urgency import HIGH, IN_USE_FOR, WEIGHTS

Turn = TypeVar("Turn")

# Queueing in all stages that is let be: a part of a run of each, which has begun when a request
# comes; so many runs of the slowest one, which then finds the next request, or batch, at hand; and
# seconds for the ways and the event loops. Nodes have as much of it in hand (`PASSING_SECONDS` of
# `swarm.transport.lane.credit`), where high ones pass.
BEGUN, RUNS, BESIDE = 0.75, 1.0, 0.025
# Messages that wait for their processes come in bunches: so many times that wait is let be, or the
# slowest stage would idle between bunches.
BUNCHES = 4.0
GROWTH = 1 / 8  # of the requests that are let in, with each round of answers
LEAST_FACTOR = 0.5  # by which a round of answers lowers their number at most
MOST = 4096.0
KEEPS = 1 - 1 / 4096  # of the wait for processes, with each answer
EXTRA = 1.0  # of the requests that are let in: so many of high priority may be beside them


class Window:
    """How many requests are let into a pipeline of so many stages at a time.

    On a busy host a message waits for its process, whose node tells that as queueing. Letting in
    fewer does not shorten it: what is still told while the fewest are let in is such a wait. It is
    forgotten bit by bit, and so is measured again. An answer counts if its request was let in
    since the number fell last: an earlier one waited among more.
    """

    def __init__(self, stages: int, now: float = 0.0) -> None:
        self._least = stages + 1.0
        self.size = 2.0 * self._least
        self._fell = now
        self._answers = 0
        self._queueing = self._computing = self._slowest = 0.0  # sums of the present round, seconds
        self._late = 0.0  # seconds that messages wait for their processes, a request

    def answered(self, hops: Sequence[Hop], waiting: bool, now: float) -> None:
        """A request was answered. waiting: whether others wait to be let in. now: seconds."""
        compute = [hop.compute_us / 1e6 for hop in hops]
        queueing = sum([hop.queue_us for hop in hops]) / 1e6
        if not hops or now - queueing - sum(compute) < self._fell:
            return
        self._queueing += queueing
        self._computing += sum(compute)
        self._slowest += max(compute)
        self._answers += 1
        if self._answers < self.size:
            return
        runs = BEGUN * self._computing + RUNS * self._slowest + BESIDE * self._answers
        let_be = runs + BUNCHES * self._late * self._answers
        self._late *= KEEPS**self._answers
        if self._queueing > let_be and self.size == self._least:
            self._late = (self._queueing - runs) / self._answers
        elif self._queueing > let_be:
            # By Little's law as many as there would be with that much queueing.
            factor = (self._computing + let_be) / (self._computing + self._queueing)
            self.size = max(self._least, self.size * max(LEAST_FACTOR, factor))
            self._fell = now
        elif waiting:
            self.size = min(MOST, self.size + max(1.0, self.size * GROWTH))
        self._answers = 0
        self._queueing = self._computing = self._slowest = 0.0


class TurnGate(Generic[Turn]):
    """One model version's, at one requester. `inside`: requests that were let in by the admission,
    those that wait here among them. now: seconds."""

    def __init__(self, stages: int, now: float) -> None:
        self.window = Window(stages, now)
        self._stands_until = now + IN_USE_FOR
        self._urgencies: FairShares[int, int] = FairShares()
        self._agents: dict[int, FairShares[str, Turn]] = {
            urgency: FairShares() for urgency in WEIGHTS
        }

    def __len__(self) -> int:
        return len(self._urgencies)

    def keep(self, now: float) -> None:
        """There are priorities."""
        self._stands_until = now + IN_USE_FOR

    def is_over(self, now: float) -> bool:
        """Whether nobody has used priorities for a while, and nothing waits."""
        return now >= self._stands_until and not len(self)

    def wait(self, urgency: int, agent: str, turn: Turn, share: float = 1.0) -> None:
        """A request waits for its turn. share: of its agent, beside those of others."""
        self._urgencies.push(urgency, urgency, WEIGHTS[urgency])
        self._agents[urgency].push(agent, turn, share)

    def go(self, urgency: int, agent: str, turn: Turn) -> None:
        """A request waits no more, if it did."""
        if self._agents[urgency].remove(agent, turn):
            self._urgencies.remove(urgency, urgency)

    def let_in(self, inside: int) -> list[Turn]:
        """Those whose turn it is now."""
        under_way = inside - len(self)
        turns: list[Turn] = []
        while self._urgencies:
            size = self.window.size
            if self._urgencies.head() == HIGH:
                size += EXTRA * size
            if under_way + len(turns) >= size:
                break
            turns.append(self._agents[self._urgencies.pop()].pop())
        return turns
