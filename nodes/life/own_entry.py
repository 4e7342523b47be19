"""A node's own entry in the gossip: its role, its place, its stages, and how busy they are."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Set
from typing import Any

from nodes.connection.connection import Connection
from nodes.stage.pictures import codecs_read
from nodes.stage.server import StageServer
from nodes.versions.serving import Serving, by_stage, link_rate, places
from shards.runtimes.memory import free_bytes
from swarm.fleet.advertised import (
    ANSWERS,
    EVERY_MODEL,
    MAX_LINK_WAIT_MS,
    Where,
    busy_entries,
    load_entries,
    serves_entries,
    takes_entries,
)
from swarm.fleet.priorities import RESERVE
from swarm.flow.ack_wait import FLOOR_S
from swarm.periodic import BEAT, beat
from swarm.security.attestation import GOSSIP_KEY, attest

LOAD_EVERY = 3 * BEAT  # seconds
# A load is gossiped again when one of its numbers moves by a quarter, and by more than this noise.
NOISE_REQUESTS, NOISE_US = 2, 200
NOISE_BUSY = 0.05  # of a utilisation
BUSY_OVER = 2.0  # seconds
TOLD_EVERY = 1.0  # seconds between looks at what else servings tell of their stages
REQUEST_COUNTS = 2  # the first numbers of a load count requests, the others are microseconds


class OwnEntry:
    """`announce()` writes who this node is; `run()` keeps its load current."""

    def __init__(
        self,
        connection: Connection,
        servings: Callable[[], list[Serving]],
        refers: bool,
    ) -> None:
        """refers: whether its inputs may be referred to."""
        self._mesh = connection.mesh
        self._config = connection.config
        self._members = connection.membership
        self._identity = connection.identity
        self._servings = servings
        self._refers = refers
        self._takes: Where | None = None  # of a standby
        self._announced: Set[Where] = set()  # without the versions that still load
        self._gossiped_load: dict[Where, list[int]] = {}
        self._busy = Utilisation()
        self._gossiped_busy: dict[Where, float] = {}
        self._told: dict[Where, tuple[str, Any]] = {}  # see `Serving.told`
        self._told_due = 0.0
        self._keys: Set[str] = set()  # in the gossip now: stages and loads
        self._gossiped_link: dict[str, int] = {}  # by key, 0 for what need not be gossiped
        self._load_fits = False  # whether the gossip had room for all loads

    async def run(self) -> None:
        """Announce this node, then keep its load current, until cancelled."""
        self.announce()
        while True:
            await beat(LOAD_EVERY)
            self.write_load()

    def take(self, stage: Where | None) -> None:
        """This node, a standby, has taken a stage; None: it has given it back."""
        self._takes = stage
        self.announce()

    def announce(self, draining: bool = False) -> None:
        """Write who this node is and which stages it serves at this moment."""
        self._members.set("role", self._config.role)
        self._members.set("priority", self._config.priority if self._takes is None else RESERVE)
        self._members.set("host", self._mesh.lender.host)
        self._members.set("inbox", self._mesh.inbox)
        devices = sorted({device for serving in self._servings() for device in serving.devices})
        # A node that computes on several devices is asked as its best one: the first that is not
        # "cpu".
        self._members.set("device", next((d for d in devices if d != "cpu"), "cpu"))
        self._members.set("codecs", codecs_read(self._refers))
        if self._config.weight != 1.0:
            self._members.set("weight", self._config.weight)
        self._members.set("draining", draining)
        if self._identity is not None:
            attestation = attest(self._identity, self._config.mesh, self._members.node)
            self._members.set(GOSSIP_KEY, attestation)
        self._say_what_it_answers()
        self._announced = places(self._servings())
        self._write()

    def _say_what_it_answers(self) -> None:
        """As far as its user may send notices: rights of an older version name none."""
        mesh, config = self._mesh, self._config
        every = config.role == "gateway"
        notices = f"{mesh.subjects.root}.notices.{EVERY_MODEL if every else config.model_name}"
        if config.answers_requests and mesh.link.grants.may_publish(notices):
            # An edge's link may be too thin for the requests of all others.
            able = config.may_witness and mesh.link.grants.may_subscribe(notices)
            self._members.set(ANSWERS, [EVERY_MODEL if every else config.model_name, able])

    def write_load(self) -> None:
        """Write how busy the announced stages are, if that has changed enough to matter."""
        now = time.monotonic()
        loads: dict[Where, list[int]] = {}
        for where, server in self._served().items():
            numbers, gossiped = load_of(server, now), self._gossiped_load.get(where)
            loads[where] = numbers if gossiped is None or moved(gossiped, numbers) else gossiped
        self._write_link()
        busy = self._busy.observe(
            {w: spent(server, now) for w, server in self._served().items()}, now
        )
        known = self._gossiped_busy
        busy = {
            where: _steady(known.get(where, 0.0), share)
            for where, share in busy.items()
            if share >= NOISE_BUSY
        }
        if busy != known:
            self._gossiped_busy = busy
            self._load_fits = False
        if now >= self._told_due:
            self._told_due = now + TOLD_EVERY
            told = {where: each for s in self._servings() for where, each in s.told().items()}
            if told != self._told:
                self._told, self._load_fits = told, False
        if loads != self._gossiped_load:
            self._gossiped_load = loads
            if (free := free_bytes()) is not None:
                self._members.set("memory", free)
        elif self._load_fits:
            return
        self._write()

    def _write_link(self) -> None:
        """Tell how long an `ack_wait` this node's link needs, where that is longer than the least,
        and what the link brings, where it is slow."""
        servers = self._served().values()
        wait = max([server.source.link_wait for server in servers], default=0.0)
        needed = min(int(wait * 1e3), MAX_LINK_WAIT_MS) if wait > FLOOR_S else 0
        for key, value in (("link_wait", needed), ("link_rate", int(link_rate(servers)))):
            before = self._gossiped_link.get(key, 0)
            if value == before or (value and abs(value - before) <= before / 4):
                continue
            self._gossiped_link[key] = value
            if value:
                self._members.set(key, value)
            else:
                self._members.delete(key)

    def _served(self) -> dict[Where, StageServer]:
        return by_stage(self._servings())

    def _write(self) -> None:
        """Gossip the announced stages and their loads; delete the keys of all others."""
        gossiped = {
            where: load for where, load in self._gossiped_load.items() if where in self._announced
        }
        serves, loads = serves_entries(self._announced), load_entries(gossiped)
        loads |= busy_entries({w: b for w, b in self._gossiped_busy.items() if w in gossiped})
        loads |= dict(told for where, told in self._told.items() if where in self._announced)
        if self._takes is not None:
            serves |= takes_entries([self._takes])
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


def _steady(told: float, share: float) -> float:
    """A utilisation as it is told: as before where it has hardly moved."""
    return told if abs(told - share) < NOISE_BUSY else share


class Utilisation:
    """The share of the last seconds in which each stage was computed."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Mapping[Where, float]]] = deque()

    def observe(self, seconds: Mapping[Where, float], now: float) -> dict[Where, float]:
        """Take the present counts, and tell the shares, 0..1; a stage that has just come counts as
        idle. seconds: of all runs of each stage since its start."""
        while len(self._seen) > 1 and self._seen[1][0] <= now - BUSY_OVER:
            self._seen.popleft()
        self._seen.append((now, dict(seconds)))
        then, before = self._seen[0]
        passed = now - then
        if passed <= 0:
            return dict.fromkeys(seconds, 0.0)
        return {
            where: min(1.0, max(0.0, spent - before[where]) / passed) if where in before else 0.0
            for where, spent in seconds.items()
        }


def spent(server: StageServer, now: float) -> float:
    """Seconds of all runs of a stage since its start, with the one under way: a run may be longer
    than what a utilisation looks back at."""
    since = server.running_since
    return server.stats.busy + (max(0.0, now - since) if since else 0.0)


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


def moved(gossiped: list[int], now: list[int]) -> bool:
    """Whether a load changed enough to be gossiped again."""
    return any(
        abs(after - before) > max(NOISE_REQUESTS if at < REQUEST_COUNTS else NOISE_US, before // 4)
        for at, (before, after) in enumerate(zip(gossiped, now, strict=True))
    )
