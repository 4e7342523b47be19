"""How many peers a round contacts: as many as the configuration says in a small fleet and while
there is news, about one a second in a large and quiet one. Pure.

Each contact costs the server two messages, whoever makes it, so a fleet of n nodes with a fixed
fanout costs n times one node's share. A crash is seen no later by that: the nodes that matter to a
node are watched (`WatchedPeers`), and the news of a death travels at once, not by rounds.
"""

from __future__ import annotations

from math import ceil, log2

from swarm.gossip.config import GossipConfig

LEAST_PER_SECOND = 1.0  # contacts, however large the fleet is
MOST_WATCHED = 16  # nodes that one round checks; with more of them each has its turn
WATCH_ROUNDS = 2  # rounds between two checks of a watched node, as between two of a pair


class Fanout:
    """`contacts` is asked once a round."""

    def __init__(self, config: GossipConfig, start: float) -> None:
        """start: from 0 to 1, by which nodes that start together contact others in turn."""
        self._config = config
        self._credit = start
        self._urgent = 0  # rounds with the full fanout that are left

    def hurry(self, alive: int) -> None:
        """There is news: as many rounds with the full fanout as it takes to reach everybody."""
        self._urgent = ceil(log2(alive + 1) / 2) + 1

    def contacts(self, alive: int, repairing: bool) -> int:
        """How many peers this round contacts. alive: nodes that live, this one included. repairing:
        tables differ much at the moment."""
        config = self._config
        if self._urgent > 0:
            self._urgent -= 1
            return config.fanout
        if alive <= config.calm_above or repairing:
            return config.fanout
        self._credit += calm_contacts(config, alive)
        whole = int(self._credit)
        self._credit -= whole
        return min(config.fanout, whole)


def calm_contacts(config: GossipConfig, alive: int) -> float:
    """How many peers a quiet round contacts, on average. alive: nodes that live."""
    if alive <= config.calm_above:
        return config.fanout
    least = LEAST_PER_SECOND * config.interval
    return min(config.fanout, max(config.fanout * config.calm_above / alive, least))


def least_window(config: GossipConfig, alive: int) -> int:
    """Nodes that a repair window lists at least: more, where a round contacts less than one peer,
    so that a calm fleet compares `window_min` nodes a round all the same, up to `window_max`."""
    rounds = ceil(1 / min(1.0, calm_contacts(config, alive)))
    return min(config.window_max, config.window_min * rounds)


class WatchedPeers:
    """The nodes whose crash this node has to see soon, whatever the fanout is."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._checked: dict[str, float] = {}  # when each was checked last, the oldest first

    def set(self, nodes: frozenset[str]) -> None:
        """Watch these nodes from now on."""
        kept = {node: at for node, at in self._checked.items() if node in nodes}
        fresh = {node: float("-inf") for node in sorted(nodes) if node not in kept}
        self._checked = {**fresh, **kept}

    def due(self, now: float) -> list[str]:
        """The nodes to check in this round; each counts as checked then."""
        least = now - (WATCH_ROUNDS - 0.25) * self._interval
        due = [node for node, at in self._checked.items() if at <= least][:MOST_WATCHED]
        for node in due:
            del self._checked[node]
            self._checked[node] = now
        return due
