"""The updater of one device: it looks, decides by `device.step`, and acts, again and again.

It goes on without a server, and from wherever it was killed. Its nodes are no children that end
with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodes.connection.checkpoint import Checkpoint
from nodes.upgrade.device import (
    WAIT,
    ActionKind,
    DeviceFacts,
    DeviceStep,
    Order,
    Phase,
    PhaseWatch,
    Record,
    UpgradeAction,
    UpgradeLimits,
    WaveTurn,
    failed,
    step,
)
from nodes.upgrade.environments import Environments, RecordFile
from nodes.upgrade.releases import AWAY, BAD, Releases
from nodes.upgrade.units import MAIN, TRIAL, Units
from nodes.upgrade.wave import Wave, order_for, progress, word
from swarm.errors import InvalidArgument, LinkEnded, SwarmError, Unavailable
from swarm.link import Link, LinkMessage, LinkOptions
from swarm.security.signed_entries import Highest, Verifier
from swarm.security.trusted_keys import TrustedKeys
from swarm.subjects import Subjects, speaker

log = logging.getLogger("swarm.upgrade")

BURNS_FOR = 10.0  # seconds for which a status that tells of a burning objective counts
MOST_BURNING = 256  # nodes of whose objectives is known
FLEET_OF = 20  # devices whose words are read in one interval; of more, less often
LONGEST_PAUSE = 30.0  # seconds between two starts of a main that ends again and again
TOLD_EVERY = 20.0  # seconds between two words of a device while a wave goes


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds: look, between two looks at the nodes; ask, between two looks at the wave."""

    look: float = 0.5
    ask: float = 5.0


class Updater:
    """`run` goes on until cancelled. device: its name in waves. trusted: keys whose releases and
    waves it takes. Raises `Unavailable` where another updater has the same home."""

    def __init__(
        self,
        device: str,
        mesh: str,
        options: LinkOptions,
        trusted: TrustedKeys | None,
        environments: Environments,
        units: Units,
        limits: UpgradeLimits | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._device = device
        self._environments = environments
        self._units = units
        self._limits = limits or UpgradeLimits()
        self._pace = pace or Pace()
        self._file = RecordFile(environments.home / "record.json")
        self._link = Link(options)
        self._subjects = Subjects(mesh, by_user=bool(options.connects_as))
        seen = Checkpoint(str(environments.home), mesh, "updater-seen")
        highest = Highest(seen.load(), lambda known: seen.save(dict(known)))
        verifier = None if trusted is None else Verifier(trusted, highest)
        self._releases = Releases(self._link, self._subjects, verifier=verifier)
        self._fleet = _Fleet()
        self._fetched: set[str] = set()
        self._burning: dict[str, tuple[float, str]] = {}
        self._record = Record(environments.current() or "none")
        self._watch = PhaseWatch(time.monotonic())
        self._phase_since = time.monotonic()
        self._starts = 0  # of main, since it was ready
        self._hears = 0  # the subscription to statuses, 0 for none

    @property
    def record(self) -> Record:
        """As it is on the disk."""
        return self._record

    async def run(self) -> None:
        """Serve, and follow waves, until cancelled."""
        with alone(self._environments.home):
            self._begin()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._link.run(), name="link")
                group.create_task(self._follow(), name="wave")
                group.create_task(self._go_on(), name="device")

    def _begin(self) -> None:
        current = self._environments.current()
        if not current:
            raise InvalidArgument(
                f"{self._environments.home} names no release: `--adopt FOLDER` takes the "
                "environment that serves now"
            )
        self._take(self._file.read() or Record(current))

    def _take(self, record: Record) -> None:
        """Keep a record; on the disk before anything follows from it."""
        if record == self._record:
            return
        self._file.write(record)
        if record.phase is not self._record.phase:
            self._phase_since = time.monotonic()
            reason = f": {record.refused}" if record.refused else ""
            log.info("%s, release %s%s", record.phase, record.target or record.good, reason)
        self._record = record
        self._fleet.news.set()

    # --- the device -------------------------------------------------------------------------

    async def _go_on(self) -> None:
        while True:
            try:
                action = await self.turn()
            except (OSError, *AWAY) as error:
                log.warning("%s: it is tried again", error)
                action = WAIT
            await asyncio.sleep(self._pause(action))

    def _pause(self, action: UpgradeAction) -> float:
        """Seconds to the next look. Main that ends again and again is started less and less
        often."""
        if action.kind is ActionKind.START_MAIN:
            self._starts += 1
            return min(LONGEST_PAUSE, self._pace.look * 2.0 ** (self._starts - 1))
        return self._pace.look if action.kind is ActionKind.WAIT else 0.05

    async def turn(self) -> UpgradeAction:
        """Look, decide, keep the decision, act. Raises `OSError`, and what stands for a store that
        is away."""
        facts = await self._facts()
        if facts.main.ready:
            self._starts = 0
        made = step(
            self._record, self._watch, facts, self._fleet.order, time.monotonic(), self._limits
        )
        self._keep(made)
        try:
            await self._act(made.action)
        except BAD as error:
            self._keep(failed(self._record, self._watch, str(error)))
        return made.action

    def _keep(self, made: DeviceStep) -> None:
        self._watch = made.watch
        self._take(made.record)

    async def _facts(self) -> DeviceFacts:
        main, trial = await asyncio.gather(self._units.seen(MAIN), self._units.seen(TRIAL))
        target = self._record.target
        return DeviceFacts(
            self._environments.current(),
            main,
            trial,
            fetched=target in self._fetched,
            made=bool(target) and self._environments.is_made(target),
            reached=self._link.connected,
            burning=self._burns() if self._fleet.guards else "",
        )

    async def _act(self, action: UpgradeAction) -> None:
        if action.kind is not ActionKind.WAIT:
            log.info("%s %s", action.kind, action.version)
        match action.kind:
            case ActionKind.FETCH:
                await self._fetch(action.version)
            case ActionKind.MAKE:
                self._environments.tidy(self._kept())
                await self._environments.make(await self._releases.release(action.version))
            case ActionKind.SWITCH:
                self._environments.switch(action.version)
            case ActionKind.START_MAIN:
                await self._units.start_main()
            case ActionKind.RESTART_MAIN:
                await self._units.restart_main()
            case ActionKind.START_TRIAL:
                await self._units.start_trial(action.version)
            case ActionKind.STOP_TRIAL:
                await self._units.stop_trial()

    async def _fetch(self, version: str) -> None:
        if not self._link.connected:
            raise Unavailable("no server is reached")
        release = await self._releases.release(version)
        environments = self._environments
        await self._releases.fetch(release, environments.files(version), environments.all_files())
        self._fetched.add(version)

    def _kept(self) -> set[str]:
        record = self._record
        return {record.good, record.before, record.target, self._environments.current()}

    def _burns(self) -> str:
        since = time.monotonic() - BURNS_FOR
        return next((text for at, text in self._burning.values() if at > since), "")

    # --- the wave ---------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            try:
                await self._link.ready()
                await self._ask()
            except LinkEnded:
                raise  # no wave is heard of any more
            except SwarmError as error:
                log.warning("the wave: %s", error)
            except TimeoutError:
                log.warning("the wave: no answer from the server")
            self._fleet.news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._fleet.interval(self._pace.ask)):
                    await self._fleet.news.wait()

    async def _ask(self) -> None:
        """Look at the wave, tell of this device, and look at the others while it matters."""
        fleet = self._fleet
        found = await self._releases.wave()
        if found is None:
            return
        wave, began = found
        fleet.sees(wave, time.monotonic())
        self._listen(fleet.guards and not wave.stopped)
        record = self._record
        mine = word(
            record,
            wave.id,
            time.monotonic() - self._phase_since,
            time.monotonic() - fleet.known_since,
            self._burns() if fleet.guards and record.phase is Phase.IDLE else "",
        )
        if fleet.has_news(mine, time.monotonic()):
            await self._releases.tell(self._device, mine)
            fleet.told(mine, time.monotonic())
        fleet.devices = 0  # nobody's word matters, unless this device waits for its turn
        if wave.stopped:
            fleet.order = Order(wave.id, wave.version, WaveTurn.WITHDRAWN)
        elif record.wave == wave.id and record.phase is Phase.IDLE:
            fleet.order = None  # it has been its turn
        else:
            devices = await self._releases.devices()
            how = progress(wave, began, devices, await self._releases.now())
            fleet.devices = len(devices)
            burning = self._burns() if wave.guard == "slo" else ""
            fleet.order = order_for(self._device, wave, how, burning)

    def _listen(self, wanted: bool) -> None:
        """Hear statuses only while a wave asks for it."""
        if wanted and not self._hears:
            self._hears = self._link.subscribe(f"{self._subjects.root}.status.>", self._heard)
        elif self._hears and not wanted:
            self._link.unsubscribe(self._hears)
            self._hears = 0

    def _heard(self, message: LinkMessage) -> None:
        """A node's status: which objectives burn where it answers."""
        try:
            document = json.loads(bytes(message.data))
            node = speaker(message.subject, message.headers)
            burning = [
                f"the objective of {each['model']} burns: {each['burning']}"
                for each in document.get("slo", ())
                if each.get("burning")
            ]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return  # a malformed status says nothing of an objective
        self._burning.pop(node, None)
        if burning and len(self._burning) < MOST_BURNING:
            self._burning[node] = time.monotonic(), burning[0]


@dataclass
class _Fleet:
    """What an updater knows of the wave. news: set where the others have to hear something."""

    wave: Wave | None = None
    known_since: float = 0.0
    order: Order | None = None
    devices: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)
    _last: dict[str, Any] = field(default_factory=dict)
    _last_at: float = 0.0

    @property
    def guards(self) -> bool:
        return self.wave is not None and self.wave.guard == "slo"

    def sees(self, wave: Wave, now: float) -> None:
        if self.wave is None or self.wave.id != wave.id:
            self.known_since, self.order = now, None
        self.wave = wave

    def has_news(self, mine: dict[str, Any], now: float) -> bool:
        """Whether the others have to hear this word: a change, or a sign of life."""
        changed = _lasting(mine) != _lasting(self._last)
        goes_on = self.wave is not None and not self.wave.stopped
        return changed or (goes_on and now - self._last_at > TOLD_EVERY)

    def told(self, mine: dict[str, Any], now: float) -> None:
        self._last, self._last_at = mine, now

    def interval(self, ask: float) -> float:
        """Seconds to the next look: of n devices each looks at n words, so a large fleet looks less
        often."""
        return ask * max(1.0, self.devices / FLEET_OF)


def _lasting(mine: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in mine.items() if not name.endswith("_s")}


@contextlib.contextmanager
def alone(home: Path) -> Iterator[None]:
    """Be the only updater of a home. Raises `Unavailable`."""
    home.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(home / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unavailable(f"another updater has {home}") from None
        yield
    finally:
        os.close(descriptor)
