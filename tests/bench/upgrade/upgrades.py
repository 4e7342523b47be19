"""Devices that go to releases of the node software under load: good ones, bad ones, and with their
updaters killed at each step."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table
from support.commands import environment
from support.meshes import close, digits, mesh_of, split_digits
from support.upgrades import DIES, FIRST, SERVES, Publisher, adopted, node_arguments

import swarm
from bench.paced import paced
from bench.report.figure import percentile
from bench.report.frame import Benchmark
from nodes.console import out
from nodes.health.endpoint import asked
from nodes.up.mesh import LocalMesh, push
from nodes.upgrade.device import ActionKind, Phase
from nodes.upgrade.environments import Environments, RecordFile
from nodes.upgrade.units import MAIN, TRIAL, ProcessUnits
from nodes.upgrade.wave import Wave, WaveProgress, progress
from swarm.errors import Unavailable
from swarm.ids import ulid

STAGES = 3
BUDGET = 5.0  # seconds for a request
LOOK_EVERY = 0.1  # seconds between two looks at who serves on a device
HANGS = "[ $1 = --help ] || exec sleep 600"
READY, PROOF = "40s", "1s"  # of the updaters
START_TIMEOUT, WAVE_TIMEOUT, BACK_TIMEOUT = 120.0, 400.0, 120.0  # seconds
# The line that an updater logs before it does so, or as soon as its record says so.
STEPS = (
    *(f"{Phase.PREPARING}, ", f"{ActionKind.FETCH} ", f"{ActionKind.MAKE} "),
    *(
        f"{Phase.TRYING}, ",
        f"{ActionKind.START_TRIAL} ",
        f"{Phase.SWITCHING}, ",
        f"{ActionKind.SWITCH} ",
    ),
    *(f"{ActionKind.RESTART_MAIN} ", f"{Phase.IDLE}, ", f"{ActionKind.STOP_TRIAL} "),
)


@dataclass(frozen=True)
class UpgradePlan:
    """devices: each runs one shard of three. rate: requests a second. quiet: seconds of load before
    the first wave. kills: whether updaters are killed, and power is cut."""

    devices: int = 6
    rate: float = 30.0
    quiet: float = 5.0
    kills: bool = True


@dataclass
class Asked:
    """What became of the requests of one phase. Latencies in seconds. unserved: looks at a device
    that found no node ready; looks: all of them."""

    requests: int = 0
    lost: int = 0
    wrong: int = 0
    latencies: list[float] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    looks: int = 0
    unserved: int = 0
    seconds: float = 0.0
    more: dict[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        document = {
            "requests": self.requests,
            "lost": self.lost,
            "wrong": self.wrong,
            "p50_ms": round(percentile(self.latencies, 0.5) * 1e3, 2),
            "p99_ms": round(percentile(self.latencies, 0.99) * 1e3, 2),
            "looks": self.looks,
            "unserved": self.unserved,
            "seconds": round(self.seconds, 1),
            **self.more,
        }
        return document | ({"reasons": dict(self.reasons.most_common(3))} if self.reasons else {})


@dataclass
class Device:
    """One device: a home, and the process of its updater."""

    name: str
    home: Path
    arguments: list[str]
    updater: subprocess.Popen[bytes] | None = None
    kills: list[str] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return self.home / "updater.log"

    @property
    def good(self) -> str:
        record = RecordFile(self.home / "record.json").read()
        return record.good if record is not None else FIRST

    def start(self) -> None:
        with self.log.open("ab") as sink:
            self.updater = subprocess.Popen(
                [sys.executable, "-m", "nodes.cli.main", "fleet", "updater", *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=sink,
                env=environment({}),
            )

    def kill(self) -> None:
        assert self.updater is not None
        self.updater.kill()
        self.updater.wait()

    def serves(self) -> bool:
        """Whether a node of it says that it is ready."""
        return any(
            asked(self.home / "run" / f"{which}-0.health", "readyz").ok for which in (MAIN, TRIAL)
        )

    def pids(self) -> list[int]:
        """The processes of its nodes that run."""
        found = []
        for which in (MAIN, TRIAL):
            with contextlib.suppress(OSError, IndexError, ValueError):
                pid = int((self.home / "run" / f"{which}-0").read_text().split()[1])
                if str(self.home) in Path(f"/proc/{pid}/cmdline").read_text():
                    found.append(pid)
        return found


@dataclass
class Fleet:
    """The devices, and the phase whose requests are counted."""

    local: LocalMesh
    publisher: Publisher
    devices: list[Device]
    rate: float
    asked: Asked = field(default_factory=Asked)
    looked_at: set[str] = field(default_factory=set)
    going: bool = True

    async def load(self) -> None:
        """Ask at a steady pace, until `going` ends; each answer is compared."""
        images, logits = digits()
        async with asyncio.TaskGroup() as group:
            async for number, _ in paced(self.rate):
                if not self.going:
                    return
                at = number % len(images)
                group.create_task(self._ask(images[at : at + 1], logits[at : at + 1], self.asked))

    async def _ask(self, image: Any, expected: Any, phase: Asked) -> None:
        phase.requests += 1
        began = time.monotonic()
        result = await self.local.mesh.ask("digits", {"image": image}, BUDGET)
        phase.latencies.append(time.monotonic() - began)
        if result.status is not swarm.Status.OK:
            phase.lost += 1
            phase.reasons[f"{result.status}: {result.message[:100]}"] += 1
        elif not close(result.outputs["logits"], expected):
            phase.wrong += 1

    async def look(self, device: Device) -> None:
        """Count the looks that find nobody ready on a device whose power is on."""
        while self.going:
            if device.name in self.looked_at:
                phase, serves = self.asked, await asyncio.to_thread(device.serves)
                if device.name in self.looked_at:  # its power may have been cut meanwhile
                    phase.looks += 1
                    phase.unserved += not serves
            await asyncio.sleep(LOOK_EVERY)

    async def serve(self) -> None:
        """Returns when every device has a node that serves."""
        await until(
            lambda: all(each.serves() for each in self.devices), START_TIMEOUT, "they serve"
        )
        self.looked_at = {each.name for each in self.devices}

    async def goes(self, version: str, program: str, wave: Wave) -> WaveProgress:
        """Push a release, and bring the devices to it; returns how the wave ended."""
        await self.publisher.push(version, program)
        releases = self.publisher.releases()
        await releases.begin(wave)
        deadline = time.monotonic() + WAVE_TIMEOUT
        while True:
            found = await releases.wave()
            assert found is not None
            how = progress(*found, await releases.devices(), await releases.now())
            if how.stopped or (how.done and len(how.order) == len(self.devices)):
                return how
            if time.monotonic() > deadline:
                raise Unavailable(f"the wave to {version} does not end: {how}")
            await asyncio.sleep(0.2)


async def until(holds: Callable[[], bool], timeout: float, what: str) -> None:
    deadline = time.monotonic() + timeout
    while not await asyncio.to_thread(holds):
        if time.monotonic() > deadline:
            raise Unavailable(f"not within {timeout:g} s: {what}")
        await asyncio.sleep(0.05)


def wave(version: str, canary: int = 1) -> Wave:
    return Wave(ulid(), version, canary, step=34.0, every=1.0, guard="none", enrol=1.0)


@asynccontextmanager
async def a_fleet(plan: UpgradePlan) -> AsyncIterator[Fleet]:
    """Devices that serve; behind the block nothing of them is left."""
    root = Path(tempfile.mkdtemp(prefix="up-"))
    result = split_digits(stages=STAGES)
    async with mesh_of() as local:
        await push(local, result.manifest.to_json(), result.files)
        publisher = Publisher(local, root / "publisher")
        fleet = Fleet(local, publisher, [], plan.rate)
        try:
            for number in range(plan.devices):
                fleet.devices.append(_device(local, publisher, root, number))
            for device in fleet.devices:
                device.start()
            await fleet.serve()
            yield fleet
        finally:
            for device in fleet.devices:
                if device.updater is not None:
                    device.updater.send_signal(signal.SIGTERM)
            for device in fleet.devices:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    if device.updater is not None:
                        await asyncio.to_thread(device.updater.wait, 40.0)
                if device.updater is not None and device.updater.poll() is None:
                    device.kill()
                # Of an updater that was killed: its nodes are no children of it.
                await ProcessUnits(Environments(device.home), [[]]).stop()
            await asyncio.to_thread(shutil.rmtree, root, True)


def _device(local: LocalMesh, publisher: Publisher, root: Path, number: int) -> Device:
    name, home = f"device-{number + 1}", root / f"d{number + 1}"
    adopted(home)
    node = " ".join(node_arguments(local, f"shard-{number % STAGES + 1}"))
    arguments = ["--home", str(home), "--node", node, "--device", name]
    arguments += ["--nats", local.url, "--mesh", local.name, "--trust", str(publisher.trusted)]
    arguments += ["--ready", READY, "--proof", PROOF, "--ask", "0.5", "--look", "0.2"]
    return Device(name, home, arguments)


async def play(plan: UpgradePlan, progress_: Callable[[str], None]) -> dict[str, Any]:
    """One run; returns its document. Raises `Unavailable`."""
    phases: dict[str, Asked] = {}
    async with a_fleet(plan) as fleet:

        @asynccontextmanager
        async def phase(name: str) -> AsyncIterator[Asked]:
            progress_(f"{name} …")
            fleet.asked = phases[name] = Asked()
            began = time.monotonic()
            yield fleet.asked
            fleet.asked.seconds = time.monotonic() - began

        work = [asyncio.create_task(fleet.load())]
        work += [asyncio.create_task(fleet.look(each)) for each in fleet.devices]
        try:
            async with phase("quiet"):
                await asyncio.sleep(plan.quiet)
            async with phase("good release") as seen:
                await fleet.goes("1.1", SERVES, wave("1.1"))
                seen.more = at_version(fleet, "1.1")
            for name, version, program in (
                ("release that ends", "1.2", DIES),
                ("release that hangs", "1.3", HANGS),
            ):
                async with phase(name) as seen:
                    how = await fleet.goes(version, program, wave(version))
                    seen.more = at_version(fleet, "1.1") | {"stopped": how.stopped}
            if plan.kills:
                async with phase("updaters killed") as seen:
                    seen.more = await _killed(fleet)
                async with phase("power cut") as seen:
                    seen.more = await _cut(fleet)
        finally:
            fleet.going = False
            await asyncio.gather(*work)
    return {
        "devices": plan.devices,
        "rate": plan.rate,
        "phases": {name: each.document() for name, each in phases.items()},
    }


def at_version(fleet: Fleet, version: str) -> dict[str, Any]:
    """How many devices have proved this release."""
    return {"at": sum(each.good == version for each in fleet.devices), "of": len(fleet.devices)}


async def _killed(fleet: Fleet) -> dict[str, Any]:
    """Waves in which each updater is killed at one of the steps, until each step had its kill."""
    versions = []
    count = len(fleet.devices)
    for first in range(0, len(STEPS), count):
        version = f"2.{first // count}"
        versions.append(version)
        killers = [
            asyncio.create_task(_kill_at(device, STEPS[(first + at) % len(STEPS)]))
            for at, device in enumerate(fleet.devices)
        ]
        how = await fleet.goes(version, SERVES, wave(version, canary=count))
        await asyncio.gather(*killers)
        if how.stopped:
            raise Unavailable(f"the wave to {version} stopped: {how.stopped}")
    kills = Counter(step for device in fleet.devices for step in device.kills)
    return at_version(fleet, versions[-1]) | {"kills": sum(kills.values()), "steps": len(kills)}


async def _kill_at(device: Device, step: str) -> None:
    """SIGKILL to the updater as soon as it logs this step; then it is started again."""
    begin = device.log.stat().st_size
    deadline = time.monotonic() + WAVE_TIMEOUT
    while f": {step}".encode() not in await asyncio.to_thread(_tail, device.log, begin):
        if time.monotonic() > deadline:
            raise Unavailable(f"{device.name} does not come to {step!r}")
        await asyncio.sleep(0.001)
    device.kill()
    device.kills.append(step.strip(" ,"))
    device.start()


def _tail(path: Path, begin: int) -> bytes:
    with path.open("rb") as file:
        file.seek(begin)
        return file.read()


async def _cut(fleet: Fleet) -> dict[str, Any]:
    """The power of one device after the other goes in the midst of an upgrade, at another step each
    time, and comes back."""
    version, took = "3.0", []
    steps = [step for step in STEPS if step.strip(" ,") not in (Phase.IDLE,)]
    going = asyncio.create_task(fleet.goes(version, SERVES, wave(version, len(fleet.devices))))
    lock = asyncio.Lock()

    async def cut(device: Device, step: str) -> None:
        begin = device.log.stat().st_size
        while f": {step}".encode() not in await asyncio.to_thread(_tail, device.log, begin):
            if going.done():
                return
            await asyncio.sleep(0.001)
        async with lock:
            fleet.looked_at.discard(device.name)
            device.kill()
            for pid in device.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            began = time.monotonic()
            device.start()
            await until(device.serves, BACK_TIMEOUT, f"{device.name} serves again")
            took.append(time.monotonic() - began)
            fleet.looked_at.add(device.name)

    cuts = [cut(device, steps[at % len(steps)]) for at, device in enumerate(fleet.devices)]
    await asyncio.gather(*cuts)
    how = await going
    if how.stopped:
        raise Unavailable(f"the wave to {version} stopped: {how.stopped}")
    return at_version(fleet, version) | {"cuts": len(took), "back_s": round(max(took), 2)}


def misses(document: Mapping[str, Any]) -> list[str]:
    """Why a run has not passed, for people."""
    missed = []
    for name, phase in document["phases"].items():
        for what in ("lost", "wrong", "unserved"):
            if phase[what]:
                missed.append(f"{name}: {phase[what]} {what}")
        if phase.get("at", 0) != phase.get("of", 0):
            missed.append(f"{name}: {phase['of'] - phase['at']} devices run another release")
        if name.startswith("release that") and not phase["stopped"]:
            missed.append(f"{name}: the wave did not stop")
    return missed


def show(document: Mapping[str, Any]) -> None:
    """For people."""
    columns = ("phase", "s", "requests", "lost", "wrong", "p50 ms", "p99 ms", "looks", "unserved")
    table = Table(*columns, "devices at", title=f"{document['devices']} devices")
    for name, phase in document["phases"].items():
        figures = [phase["seconds"], phase["requests"], phase["lost"], phase["wrong"]]
        figures += [phase["p50_ms"], phase["p99_ms"], phase["looks"], phase["unserved"]]
        at = f"{phase['at']} of {phase['of']}" if "of" in phase else ""
        table.add_row(name, *map(str, figures), at)
    out.print(table)
    for name, phase in document["phases"].items():
        for key in ("stopped", "kills", "steps", "cuts", "back_s", "reasons"):
            if key in phase:
                out.print(f"{name}: {key} {phase[key]}", markup=False, highlight=False)


UPGRADES = Benchmark("upgrade", play, show, misses=misses)
