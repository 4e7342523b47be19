"""The known nodes: a bounded table, the order in which peers are contacted, and tombstones."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from random import Random

from swarm.gossip.state import NodeState
from swarm.subjects import parts_of


class Table:
    """Node states by id, with every operation on the path of a message O(log n) or better.

    Peers are contacted in SWIM's order: a random permutation, walked to its end and then drawn
    anew, so that each is contacted once in n / fanout rounds, and in between at random.
    """

    def __init__(self, own: NodeState, max_nodes: int, learn_rate: float, rng: Random) -> None:
        self.me = own.node
        self.nodes: dict[str, NodeState] = {own.node: own}
        self.ids = [own.node]
        self.grave: dict[str, float] = {}  # final nodes and when, oldest first
        self._ring: list[str] = []
        self._next = 0
        self._max_nodes = max_nodes
        self._learn_rate = learn_rate
        self._allowance = learn_rate
        self._refilled = 0.0
        self._rng = rng
        self.user_nodes = 0  # the most of one user's nodes; 0: names are not bound to users
        self.met: set[str] = set()  # known nodes that have answered a request of ours
        self._of_user = Counter([_user(own.node)])
        self._graves: dict[str, dict[str, None]] = {}  # the final nodes of each user, oldest first

    def is_crowd(self, node: str) -> bool:
        """Whether `node` is one of many of its user and has never answered us: its name is probably
        made up."""
        if not self.user_nodes or node in self.met:
            return False
        return self._of_user[_user(node)] * 2 >= self.user_nodes

    @property
    def own(self) -> NodeState:
        """Our own state."""
        return self.nodes[self.me]

    @property
    def alive(self) -> int:
        """Nodes that are not dead or departed, ourselves included."""
        return len(self._ring) + 1

    def put(self, state: NodeState) -> None:
        """Replace the state of a known, living node."""
        self.nodes[state.node] = state

    def learn(self, state: NodeState, now: float) -> str | None:
        """Add a living node. Returns why not: "too_fast", "table_full", "user_full",
        or None when added."""
        elapsed = max(0.0, now - self._refilled)
        self._refilled = now
        self._allowance = min(self._learn_rate, self._allowance + elapsed * self._learn_rate)
        if self._allowance < 1:
            return "too_fast"
        user = _user(state.node)
        if self.user_nodes and self._of_user[user] >= self.user_nodes:
            if not (buried := self._graves.get(user)):
                return "user_full"
            self.forget(next(iter(buried)))
        if len(self.nodes) >= self._max_nodes:
            if not self.grave:
                return "table_full"
            self.forget(next(iter(self.grave)))
        self._allowance -= 1
        self.nodes[state.node] = state
        self._of_user[user] += 1
        insort(self.ids, state.node)
        self._ring.append(state.node)
        return None

    def preload(self, states: Iterable[NodeState]) -> None:
        """Learn many living nodes at once, without the rate limit; known ones stay as they are."""
        for state in states:
            if state.node not in self.nodes and len(self.nodes) < self._max_nodes:
                self.nodes[state.node] = state
                self._of_user[_user(state.node)] += 1
                self._ring.append(state.node)
        self.ids = sorted(self.nodes)

    def bury(self, state: NodeState, now: float) -> None:
        """Make a living node final: `state` is its tombstone."""
        self.nodes[state.node] = state
        if state.node in self.grave:
            return
        self.grave[state.node] = now
        self._graves.setdefault(_user(state.node), {})[state.node] = None
        index = self._ring.index(state.node)
        if index < self._next:
            # The last of the visited takes its place: visited ones stay in front of the rest.
            self._next -= 1
            self._ring[index] = self._ring[self._next]
            index = self._next
        self._ring[index] = self._ring[-1]
        self._ring.pop()

    def revive(self, state: NodeState) -> None:
        """A final node lives after all."""
        self.nodes[state.node] = state
        if self.grave.pop(state.node, None) is not None:
            self._leave_grave(state.node)
            self._ring.append(state.node)

    def forget(self, node: str) -> None:
        """Drop a tombstone."""
        del self.grave[node], self.nodes[node]
        self._leave_grave(node)
        self.met.discard(node)
        user = _user(node)
        self._of_user[user] -= 1
        if not self._of_user[user]:
            del self._of_user[user]
        index = bisect_right(self.ids, node) - 1
        del self.ids[index]

    def _leave_grave(self, node: str) -> None:
        user = _user(node)
        del self._graves[user][node]
        if not self._graves[user]:
            del self._graves[user]

    def expired(self, before: float) -> list[str]:
        """Final nodes buried at or before local time `before`."""
        found = []
        for node, since in self.grave.items():
            if since > before:
                break
            found.append(node)
        return found

    def next_peers(self, count: int) -> list[str]:
        """The next `count` different living peers in contact order (fewer in a small mesh)."""
        ring, size = self._ring, len(self._ring)
        found = []
        for _ in range(min(count, size)):
            if self._next >= size:
                self._next = 0
            # One step of a Fisher-Yates shuffle: a full permutation, paid for as it is used.
            chosen = self._next + int(self._rng.random() * (size - self._next))
            ring[self._next], ring[chosen] = ring[chosen], ring[self._next]
            found.append(ring[self._next])
            self._next += 1
        return list(dict.fromkeys(found))

    def random_peers(self, count: int, without: str) -> list[str]:
        """Up to `count` different living peers other than `without`."""
        size = len(self._ring)
        indices = self._rng.sample(range(size), min(count + 1, size))
        return [self._ring[i] for i in indices if self._ring[i] != without][:count]

    def random_final(self) -> NodeState | None:
        """A tombstone at random."""
        if not self.grave:
            return None
        index = self._rng.randrange(len(self.grave))
        return self.nodes[next(islice(self.grave, index, None))]

    def window(self, after: str, size: int) -> tuple[list[str], str]:
        """The `size` ids that follow `after`, and the id that ends the range ("": the end)."""
        start = bisect_right(self.ids, after)
        chosen = self.ids[start : start + size]
        return chosen, chosen[-1] if start + size < len(self.ids) else ""

    def between(self, low: str, high: str, most: int) -> list[str]:
        """At most `most` known ids with low < id <= high ("": no upper end); a random sample when
        there are more, so that many such samples soon cover the range."""
        start = bisect_right(self.ids, low)
        end = bisect_right(self.ids, high) if high else len(self.ids)
        if end - start <= most:
            return self.ids[start:end]
        return [self.ids[i] for i in self._rng.sample(range(start, end), most)]

    def clear(self) -> Mapping[str, NodeState]:
        """Forget everybody else; returns what was known."""
        before = self.nodes
        self.nodes = {self.me: before[self.me]}
        self.ids, self.grave, self._ring, self._next = [self.me], {}, [], 0
        self._of_user, self._graves, self.met = Counter([_user(self.me)]), {}, set()
        return before


def _user(node: str) -> str:
    return parts_of(node)[0]
