"""Which servers a link may connect to, and which of them is the better one to be at. Pure.

A server of a cluster tells its clients the addresses of all servers that it sees, again at each
change, unless its configuration forbids it (`no_advertise`). So a client learns of servers that
nobody gave it, and hears at once when its server is left alone by a cut network.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from swarm.addresses import address, checked, split_url
from swarm.errors import BadAddress

log = logging.getLogger("swarm.link")

MOST_LEARNED = 64  # addresses that servers told of; a cluster has a few


@dataclass(frozen=True, slots=True)
class Greeting:
    """What a server's INFO says of its cluster.

    server: its id. cluster: the name of its cluster, "" for a server alone. peers: addresses of the
    servers that it sees, its own among them; none where it does not tell. leaves: whether it is in
    lame-duck mode: it ends soon, and its JetStream has ended already. stores: whether it has a
    JetStream; domain: of that, "" for none. version: of the server. name: which its operator gave
    it, or it made up.
    """

    server: str = ""
    cluster: str = ""
    peers: frozenset[str] = frozenset()
    leaves: bool = False
    stores: bool = False
    domain: str = ""
    version: str = ""
    name: str = ""

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Greeting:
        """From the document of an INFO line."""
        peers = info.get("connect_urls")
        return cls(
            str(info.get("server_id", "")),
            str(info.get("cluster", "")),
            frozenset(map(str, peers)) if isinstance(peers, list) else frozenset(),
            bool(info.get("ldm", False)),
            bool(info.get("jetstream", False)),
            str(info.get("domain", "")),
            str(info.get("version", "")),
            str(info.get("server_name", "")),
        )


class ServerList:
    """The servers that were given, and behind them those that servers told of.

    A learned address is reached as the first given one is, with its scheme and credentials.
    shuffle: puts a list in another order, in place.
    """

    def __init__(
        self, given: Sequence[str], shuffle: Callable[[list[str]], None] = random.shuffle
    ) -> None:
        self.given = tuple(given)
        self._shuffle = shuffle
        self._given = set(map(address, self.given))
        self._learned: dict[str, str] = {}  # by address; the newest behind
        self._present: str | None = None

    def learn(self, peers: Set[str]) -> None:
        """Note the addresses that a server told of, except texts that cannot be addresses. Of very
        many, the newest are kept."""
        first = split_url(self.given[0])
        user, at, _ = first.netloc.rpartition("@")
        for peer in sorted(peers - self._given - self._learned.keys()):
            server = f"{first.scheme or 'nats'}://{user}{at}{peer}"
            try:
                checked([server])
            except BadAddress as error:
                log.debug("a server tells of another one: %s", error)
                continue
            self._learned[peer] = server
            if len(self._learned) > MOST_LEARNED:
                del self._learned[next(iter(self._learned))]

    def all(self) -> list[str]:
        return [*self.given, *self._learned.values()]

    def others(self) -> list[str]:
        """All but the present one."""
        return [server for server in self.all() if server != self._present]

    def connected(self, server: str) -> None:
        """This one is the present one."""
        self._present = server

    def in_turn(self, first: str = "") -> list[str]:
        """In the order in which they are tried after the present one was lost, which is the last.
        first: a server that is to be tried before all others, if any.

        At first as they were given, by whose order one may be preferred. Behind a loss the given
        ones come in any order, and then the learned ones: processes that lose a server together
        would all go to the same one, and stay there.
        """
        if self._present is None:
            turn = self.all()
        else:
            given = [server for server in self.given if server != self._present]
            learned = [server for server in self._learned.values() if server != self._present]
            self._shuffle(given)
            self._shuffle(learned)
            turn = [*given, *learned, self._present]
        return sorted(turn, key=lambda server: server != first) if first else turn


def better_server(home: Greeting, found: Mapping[str, Greeting]) -> str | None:
    """The server to move to, or None to stay. home: of the present server. found: greetings of
    others, by their URLs.

    A server in lame-duck mode is left for any other one. A server that sees less of the cluster
    than another one is left for that one: the larger side of a cut network goes on.
    """
    there = [
        server
        for server, greeting in found.items()
        if greeting.cluster == home.cluster
        and greeting.server != home.server
        and not greeting.leaves
    ]
    if not there:
        return None
    best = max(there, key=lambda server: len(found[server].peers))
    return best if home.leaves or len(found[best].peers) > len(home.peers) else None


def mixed(found: Mapping[str, Greeting], domain: str = "") -> str:
    """Why these servers may not stand in one list, or "". found: greetings by their URLs. domain:
    the JetStream domain that the list's user names, if any: leaf nodes of one hub, each with a
    JetStream of its own, all lead there. A server alone that stores nothing may be such a leaf."""
    clusters: dict[str, str] = {}
    alone: dict[str, str] = {}
    for server, greeting in found.items():
        if greeting.cluster:
            clusters.setdefault(greeting.cluster, f"{address(server)} is of {greeting.cluster!r}")
        elif greeting.stores and not domain:
            alone.setdefault(greeting.server, f"{address(server)} is alone")
    if len(clusters) + len(alone) < 2:
        return ""
    told = ", ".join((*clusters.values(), *alone.values()))
    advice = "leave out all but one's"
    if alone:
        advice += ", or name the domain that all of them lead to (--domain)"
    return f"the servers of one list must be of one cluster: {told}; {advice}"
