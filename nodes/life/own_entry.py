"""A node's own entry in the gossip: its role, its place, its stages, and how busy they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Set

from nodes.config import NodeConfig
from nodes.stage.server import StageServer
from nodes.versions.serving import Serving, link_rate
from shards.runtimes.memory import free_bytes
from swarm.fleet.advertised import (
    AUDITS,
    MAX_LINK_WAIT_MS,
    Where,
    load_entries,
    serves_entries,
    takes_entries,
)
from swarm.fleet.membership import Membership
from swarm.fleet.priorities import RESERVE
from swarm.flow.ack_wait import FLOOR_S
from swarm.mesh import Mesh
from swarm.periodic import BEAT, beat
from swarm.security.attestation import GOSSIP_KEY, attest
from swarm.security.identity import Identity
from swarm.wire.tensors import known_codecs

LOAD_EVERY = 3 * BEAT  # seconds between looks at the load
# A load is told again when one of its numbers moves by a quarter, and by more than this noise.
NOISE_REQUESTS, NOISE_US = 2, 200
REQUEST_COUNTS = 2  # the first numbers of a load count requests, the others are microseconds


class OwnEntry:
    """`announce()` writes who this node is; `run()` keeps its load current."""

    def __init__(
        self,
        mesh: Mesh,
        config: NodeConfig,
        membership: Membership,
        servings: Callable[[], list[Serving]],
        identity: Identity | None = None,
        audits: str = "",
        takes: Callable[[], Where | None] = lambda: None,
    ) -> None:
        """audits: the inbox of a node that records what it asks, else "". takes(): the stage that
        a standby has taken."""
        self._mesh = mesh
        self._config = config
        self._members = membership
        self._servings = servings
        self._identity = identity
        self._audits = audits
        self._takes = takes
        self._announced: Set[Where] = set()  # without the versions that still load
        self._told_load: dict[Where, list[int]] = {}
        self._keys: Set[str] = set()  # in the gossip now: stages and loads
        self._told_link_rate = 0.0
        self._told_link_wait = 0  # milliseconds, 0 for one that need not be told
        self._load_fits = False  # whether the gossip had room for all loads

    async def run(self) -> None:
        """Announce this node, then keep its load current, until cancelled."""
        self.announce()
        while True:
            await beat(LOAD_EVERY)
            self.write_load()

    def announce(self, draining: bool = False) -> None:
        """Write who this node is and which stages it serves at this moment."""
        self._members.set("role", self._config.role)
        self._members.set("priority", self._config.priority if self._takes() is None else RESERVE)
        self._members.set("host", self._mesh.lender.host)
        self._members.set("inbox", self._mesh.inbox)
        devices = sorted({server.model.device for server in self._served().values()})
        # One that computes on several devices is asked as its best one is: "cpu" sorts by itself.
        self._members.set("device", next((d for d in devices if d != "cpu"), "cpu"))
        self._members.set("codecs", list(known_codecs()))
        if self._config.weight != 1.0:
            self._members.set("weight", self._config.weight)
        self._members.set("draining", draining)
        if self._identity is not None:
            word = attest(self._identity, self._config.mesh, self._members.node)
            self._members.set(GOSSIP_KEY, word)
        if self._audits:
            self._members.set(AUDITS, self._audits)
        self._announced = set(self._served())
        self._write()

    def write_load(self) -> None:
        """Write how busy the announced stages are, if that has changed enough to matter."""
        now = time.monotonic()
        loads: dict[Where, list[int]] = {}
        for where, server in self._served().items():
            numbers, told = load_of(server, now), self._told_load.get(where)
            loads[where] = numbers if told is None or moved(told, numbers) else told
        self._write_link_wait()
        self._write_link_rate()
        if loads != self._told_load:
            self._told_load = loads
            if (free := free_bytes()) is not None:
                self._members.set("memory", free)
        elif self._load_fits:
            return
        self._write()

    def _write_link_wait(self) -> None:
        """Tell how long an `ack_wait` this node's link needs, where it is longer than the least."""
        servers = self._served().values()
        wait = max([server.source.link_wait for server in servers], default=0.0)
        needed = min(int(wait * 1e3), MAX_LINK_WAIT_MS) if wait > FLOOR_S else 0
        told = self._told_link_wait
        if needed == told or (needed and abs(needed - told) <= told // 4):
            return
        self._told_link_wait = needed
        if needed:
            self._members.set("link_wait", needed)
        else:
            self._members.delete("link_wait")

    def _write_link_rate(self) -> None:
        """Tell what this node's link brings, where it is slow."""
        rate, told = link_rate(self._served().values()), self._told_link_rate
        if rate == told or (rate and abs(rate - told) <= told / 4):
            return
        self._told_link_rate = rate
        if rate:
            self._members.set("link_rate", int(rate))
        else:
            self._members.delete("link_rate")

    def _served(self) -> dict[Where, StageServer]:
        return {
            (server.info.model, server.info.version, server.stage): server
            for serving in self._servings()
            for server in serving.servers
        }

    def _write(self) -> None:
        """Gossip the announced stages and their loads; delete the keys of all others."""
        told = {where: load for where, load in self._told_load.items() if where in self._announced}
        serves, loads = serves_entries(self._announced), load_entries(told)
        if (taken := self._takes()) is not None:
            serves |= takes_entries([taken])
        for key in self._keys - serves.keys() - loads.keys():
            self._members.delete(key)
        self._keys = serves.keys() | loads.keys()
        if self._set(serves):
            self._load_fits = self._set(loads)
            return
        # The stages matter more than their loads: perhaps there is room without the loads.
        self._load_fits = False
        for key in loads:
            self._members.delete(key)
        self._set(serves)

    def _set(self, entries: Mapping[str, object]) -> bool:
        """Whether all of them had room."""
        written = [self._members.set(key, value) for key, value in entries.items()]
        return all(written)


def load_of(server: StageServer, now: float) -> list[int]:
    """A stage's load as it is gossiped (see `swarm.fleet.advertised`)."""
    stats = server.stats
    numbers = [server.waiting, server.queued]
    for window in (stats.compute, stats.queue):
        numbers += [
            int(window.ewma * 1e6),
            int(window.percentile(0.5, now) * 1e6),
            int(window.percentile(0.99, now) * 1e6),
        ]
    return numbers


def moved(told: list[int], now: list[int]) -> bool:
    """Whether a load changed enough to be told again."""
    return any(
        abs(after - before) > max(NOISE_REQUESTS if at < REQUEST_COUNTS else NOISE_US, before // 4)
        for at, (before, after) in enumerate(zip(told, now, strict=True))
    )
