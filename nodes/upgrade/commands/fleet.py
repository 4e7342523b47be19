"""`swarm fleet upgrade` and `swarm fleet updater`."""

from __future__ import annotations

import logging
import shlex
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rich.table import Table

import swarm
from nodes.acts import person
from nodes.cli.acts import on_record
from nodes.cli.command import Named, option, seldom
from nodes.cli.options import SignedTarget, Target
from nodes.cli.with_mesh import client_of, operator
from nodes.console import conclude, duration, err, out, print_json, unless
from nodes.event_loop import stop_on_signals
from nodes.logs import LogForm, set_up_logging
from nodes.upgrade.device import UpgradeLimits
from nodes.upgrade.environments import Environments
from nodes.upgrade.releases import Releases
from nodes.upgrade.units import ProcessUnits
from nodes.upgrade.updater import Pace, Updater
from nodes.upgrade.wave import DeviceStatement, Wave, WaveProgress, parse_wave, progress, steps
from swarm.errors import InvalidArgument
from swarm.ids import ulid
from swarm.link import LinkOptions
from swarm.security.trusted_keys import TrustedKeys
from swarm.subjects import TOKEN, token

log = logging.getLogger("swarm.upgrade")


@dataclass(frozen=True)
class WaveOptions:
    """Which release, and how it goes through the fleet."""

    to: str = option("", "Version of a release that was pushed; without it, how the wave stands.")
    canary: int = option(1, "Devices that go first.", min=1)
    step: str = option("10%/5m", "Share of the fleet that follows, and time between two groups.")
    guard: str = option("slo", "slo: a model's objective that burns ends it. none: nothing does.")
    enrol: float = seldom(15.0, "Seconds in which devices see the wave.", min=0)
    stop: bool = seldom(False, "Stop the wave: who is on the way goes back, who is there stays.")


@dataclass(frozen=True)
class UpdaterOptions:
    """What a device runs, and where its releases are."""

    home: str = seldom("/var/lib/swarm-updater", "Folder of the releases.")
    node: str = option(
        "", "Arguments of `swarm-node` for each node of this device, separated by ';'."
    )
    adopt: str = seldom("", "Environment that serves now; this program's own by default.")
    device: Annotated[str, Named("device")] = seldom(
        "", "Its name in waves; by default its user's, or the host's."
    )
    trust: str = option("", "File with the keys whose releases it takes; else yours are.")
    ready: str = option("3m", "Time in which nodes of a release have to become ready.")
    proof: str = seldom("10s", "Time for which they then have to stay so.")
    look: float = seldom(0.5, "Seconds between two looks at the nodes.", min=0.01)
    ask: float = seldom(5.0, "Seconds between two looks at the wave.", min=0.05)


async def upgrade(options: WaveOptions, target: SignedTarget) -> int:
    """Bring devices to a release, a few at a time, or show how that stands.

    Those go whose updater runs; there is no master. A device that refuses the release stops it.
    Exits with 1 where the wave has stopped."""
    changes = bool(options.to or options.stop)
    async with client_of(target, signs=changes) as client:
        more = operator(target) if changes else {}
        releases = Releases(client.link, client.subjects, **more)
        if options.to and options.stop:
            raise InvalidArgument("--to begins a wave, --stop ends one: give one of them")
        if options.stop:
            wave = await releases.stop(f"by {person() or 'an operator'}")
            await on_record(client, "upgrade-stop", wave=wave.id)
            conclude(target.json, wave.document(), f"the wave to {wave.version} is stopped")
            return 0
        if options.to:
            return await _begin(client, releases, options, target)
        return await _show(releases, target.json)


async def _begin(
    client: swarm.Mesh, releases: Releases, options: WaveOptions, target: SignedTarget
) -> int:
    share, every = steps(options.step)
    asked = {"canary": options.canary, "step": share, "every": every, "guard": options.guard}
    asked |= {"enrol": options.enrol}
    wave = parse_wave({"id": ulid(), "version": options.to} | asked)
    found = await releases.wave()
    if found is not None:
        how = await _progress(releases, *found)
        if how.order and not (how.done or how.stopped):
            raise InvalidArgument(
                f"a wave to {found[0].version} goes on: wait for its end, or `swarm fleet upgrade "
                "--stop`"
            )
    await releases.begin(wave)
    await on_record(client, "upgrade", wave=wave.id, release=wave.version.replace(".", "_"))
    conclude(
        target.json,
        wave.document(),
        f"devices go to {wave.version}: {wave.canary} first, then {wave.step:g} % each "
        f"{wave.every:g} s",
        "next: swarm fleet upgrade",
    )
    return 0


async def _progress(releases: Releases, wave: Wave, began: float) -> WaveProgress:
    return progress(wave, began, await releases.devices(), await releases.now())


async def _show(releases: Releases, as_json: bool) -> int:
    found = await releases.wave()
    devices = await releases.devices()
    if found is None:
        conclude(as_json, {"wave": None}, "there is no wave: --to VERSION begins one")
        return 0
    wave, began = found
    now = await releases.now()
    how = progress(wave, began, devices, now)
    state = "stopped" if how.stopped else "done" if how.done else "running"
    if as_json:
        print_json(
            {"wave": wave.document(), "state": state, "reason": how.stopped, "open": how.open}
            | {"devices": {name: _device(each, wave, now) for name, each in devices.items()}}
        )
    else:
        out.print(_table(wave, devices, how, now))
        reason = f": {how.stopped}" if how.stopped else ""
        out.print(f"the wave to {wave.version} is {state}{reason}", markup=False, soft_wrap=True)
        if not how.order and now - began > wave.enrol:
            err.print("no device has seen it: those go that run `swarm fleet updater`")
    return 1 if how.stopped else 0


def _device(each: DeviceStatement, wave: Wave, now: float) -> dict[str, Any]:
    return {
        "version": each.version,
        "standing": str(each.standing(wave)),
        "phase": str(each.phase),
        "refused": each.refused,
        "holds": each.holds,
        "heard_s": round(now - each.at, 1),
    }


def _table(
    wave: Wave, devices: Mapping[str, DeviceStatement], how: WaveProgress, now: float
) -> Table:
    table = Table("device", "release", "in the wave", "phase", "heard", "why not")
    places = {name: place for place, name in enumerate(how.order)}
    for name in sorted(devices, key=lambda each: (places.get(each, len(places)), each)):
        each = devices[name]
        heard = f"{now - each.at:.0f} s ago"
        row = (
            each.version,
            str(each.standing(wave)),
            str(each.phase),
            heard,
            each.refused or each.holds,
        )
        table.add_row(name, *row)
    return table


def _environments(options: UpdaterOptions) -> Environments:
    """Of this device; the first time with the one that serves now. Raises `InvalidArgument`."""
    environments = Environments(Path(options.home).absolute())
    if not environments.current():
        environments.adopt(swarm.__version__, Path(options.adopt or sys.prefix))
        environments.switch(swarm.__version__)
    return environments


async def updater(options: UpdaterOptions, target: Target) -> None:
    """Run the nodes of this device, and take releases as waves say, until SIGTERM.

    SIGTERM and Ctrl-C end the nodes too; they outlive an updater that is killed."""
    nodes = [shlex.split(part) for part in options.node.split(";") if part.strip()]
    if not nodes:
        raise InvalidArgument('--node is missing: --node "--role shard-1 --model NAME"')
    host = "".join(c if TOKEN.fullmatch(c) else "-" for c in socket.gethostname())
    environments = _environments(options)
    units = ProcessUnits(environments, nodes)
    link = LinkOptions(servers=target.nats, **target.access.options())
    # Under rights a device's word has its user's name.
    device = token(options.device or link.connects_as or host, "--device")
    work = Updater(
        device,
        target.mesh,
        link,
        TrustedKeys.of(options.trust),
        environments,
        units,
        UpgradeLimits(ready=duration(options.ready), proof=duration(options.proof)),
        Pace(options.look, options.ask),
    )
    set_up_logging(LogForm(False, target.json), role="updater", mesh=target.mesh)
    log.info("%s runs release %s", device, environments.current())
    await unless(stop_on_signals(), work.run())
    await units.stop()
