"""`swarm fleet upgrade` and `swarm fleet updater`."""

from __future__ import annotations

import logging
import shlex
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

import swarm
from nodes.cli.acts import on_record
from nodes.cli.options import SignedTarget, Target
from nodes.cli.with_mesh import client_of, operator
from nodes.console import conclude, duration, err, out, print_json, unless
from nodes.event_loop import stop_on_signals
from nodes.logs import LogForm, set_up_logging
from nodes.upgrade.commands.fleet_options import UpdaterOptions, WaveOptions
from nodes.upgrade.device import Limits
from nodes.upgrade.environments import Environments
from nodes.upgrade.releases import Releases
from nodes.upgrade.units import ProcessUnits
from nodes.upgrade.updater import Pace, Updater
from nodes.upgrade.wave import Progress, Told, Wave, parse_wave, progress, steps
from swarm.errors import InvalidArgument
from swarm.ids import ulid
from swarm.link import LinkOptions
from swarm.records.acts import person
from swarm.security.trusted_keys import TrustedKeys
from swarm.subjects import TOKEN, token

log = logging.getLogger("swarm.upgrade")


async def run_upgrade(options: WaveOptions, target: SignedTarget) -> int:
    """`swarm fleet upgrade`; returns its exit code, 1 where the wave has stopped."""
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


async def _progress(releases: Releases, wave: Wave, began: float) -> Progress:
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


def _device(each: Told, wave: Wave, now: float) -> dict[str, Any]:
    return {
        "version": each.version,
        "standing": str(each.standing(wave)),
        "phase": str(each.phase),
        "refused": each.refused,
        "holds": each.holds,
        "heard_s": round(now - each.at, 1),
    }


def _table(wave: Wave, devices: Mapping[str, Told], how: Progress, now: float) -> Table:
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


async def run_updater(options: UpdaterOptions, target: Target) -> None:
    """`swarm fleet updater`."""
    nodes = [shlex.split(part) for part in options.node.split(";") if part.strip()]
    if not nodes:
        raise InvalidArgument('--node is missing: --node "--role shard-1 --model NAME"')
    host = "".join(c if TOKEN.fullmatch(c) else "-" for c in socket.gethostname())
    environments = _environments(options)
    units = ProcessUnits(environments, nodes)
    link = LinkOptions(servers=target.nats, **target.access.options())
    # Under rights a device's word has its user's name.
    device = token(options.device or link.connects_as or host, "--device")
    updater = Updater(
        device,
        target.mesh,
        link,
        TrustedKeys.of(options.trust),
        environments,
        units,
        Limits(ready=duration(options.ready), proof=duration(options.proof)),
        Pace(options.look, options.ask),
    )
    set_up_logging(LogForm(False, target.json), role="updater", mesh=target.mesh)
    log.info("%s runs release %s", device, environments.current())
    await unless(stop_on_signals(), updater.run())
    await units.stop()
