"""The memory of a mesh that runs as a user starts it: `swarm up`, some requests, one look."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

import swarm
from bench.cost.memory_parts import KINDS, Reference, Size, mappings_of, parts, private_bytes
from bench.report.frame import Benchmark, Progress
from bench.rivals.processes import Processes, descendants
from bench.rivals.systems.swarm_up import start_up
from nodes.console import out
from shards.manifest import Manifest
from shards.runtimes.synthetic import random_feeds

STOP_TIMEOUT = 20.0  # seconds for the mesh to end
SETTLE = 2.0  # seconds after the last request before the look

# Modules that a process of each kind has imported when it serves.
IMPORTS = {
    "up": ("uvloop", "nodes.cli.main", "nodes.cli.up"),
    "node": ("uvloop", "onnxruntime", "nodes.cli.node", "nodes.life.node", "nodes.process"),
}


@dataclass(frozen=True)
class MemoryPlan:
    """model: an ONNX file, or `digits` or `resnet50` of this project. requests: to send before
    the look. start_timeout: seconds for the mesh to be ready."""

    model: str = "digits"
    stages: int = 3
    requests: int = 20
    start_timeout: float = 300.0


def measure_memory(plan: MemoryPlan, progress: Progress) -> dict[str, Any]:
    """The document of `swarm bench memory`. Raises `RuntimeError` where the mesh does not
    start, and `OSError` where the system is no Linux."""
    progress("reference processes import …")
    references = {kind: _reference(modules) for kind, modules in IMPORTS.items()}
    with tempfile.TemporaryDirectory(prefix="swarm-bench-memory-") as folder:
        file = _model_file(plan.model, Path(folder))
        progress(f"swarm up --model {plan.model} splits …")
        processes = Processes(Path(folder))
        try:
            words = ["--model", str(file), "--stages", str(plan.stages)]
            pid, ready = start_up(processes, *words, timeout=plan.start_timeout)
            progress("asking …")
            manifest = asyncio.run(_ask(ready, plan.requests))
            time.sleep(SETTLE)
            rows = [
                _row(role, process, references, _weights(manifest, role))
                for role, process in _processes(pid, ready)
            ]
        finally:
            processes.stop(STOP_TIMEOUT)
    return {
        "model": plan.model,
        "stages": plan.stages,
        "requests": plan.requests,
        "weights": sum(shard.bytes for shard in manifest.shards),
        "processes": rows,
        "total": {
            "resident": sum(row["resident"] for row in rows),
            "proportional": sum(row["proportional"] for row in rows),
        },
    }


def _model_file(model: str, folder: Path) -> Path:
    """The ONNX file to start with; models of this project are written into `folder`."""
    path = folder / f"{model}.onnx"
    if model == "digits":
        from shards.zoo import digits_model

        path.write_bytes(digits_model())
    elif model == "resnet50":
        from zoo.builders import resnet50

        path.write_bytes(resnet50(224))
    else:
        return Path(model).resolve()
    return path


async def _ask(ready: dict[str, Any], requests: int) -> Manifest:
    """Send some requests, so that each stage has its workspace; returns the model's manifest."""
    async with swarm.connect(ready["nats"], ready["mesh"]) as mesh:
        manifest = Manifest.from_json(
            await mesh.registry.manifest(ready["model"], ready["version"])
        )
        feeds = random_feeds(manifest.inputs, manifest.extra.get("examples"))
        for _ in range(requests):
            await mesh.infer(ready["model"], feeds, budget=30.0)
    return manifest


def _processes(up: int, ready: dict[str, Any]) -> list[tuple[str, int]]:
    """Name and id of `up` and of each process below it."""
    roles = {node["pid"]: node["role"] for node in ready["nodes"]}
    found = [("up", up)]
    for process in descendants(up):
        name = "server" if process.name().startswith("nats-server") else process.name()
        found.append((roles.get(process.pid, name), process.pid))
    return found


def _weights(manifest: Manifest, role: str) -> int:
    """Bytes of the artifacts that a role loads."""
    return sum(
        shard.bytes
        for shard in manifest.shards
        if shard.stage > 0 and role in ("fallback", f"shard-{shard.stage}")
    )


def _row(role: str, pid: int, references: dict[str, Reference], weights: int) -> dict[str, Any]:
    reference = Reference(0, 0)
    if role != "server":
        reference = references["up" if role == "up" else "node"]
    found = parts(mappings_of(pid), reference, weights)
    total = sum(found.values(), Size())
    return {
        "role": role,
        "resident": total.resident,
        "proportional": total.proportional,
        "parts": {
            kind: {
                "resident": found[kind].resident,
                "proportional": found[kind].proportional,
            }
            for kind in KINDS
        },
    }


def _reference(modules: Sequence[str]) -> Reference:
    return Reference(_private_of_process(()), _private_of_process(modules))


def _private_of_process(modules: Sequence[str]) -> int:
    """Private bytes of a Python process that has imported these modules, and nothing else."""
    imports = "".join(f"import {module};" for module in modules)
    code = f"import sys;{imports}print('ready', flush=True);sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            return private_bytes(mappings_of(process.pid))
        finally:
            process.kill()


MB = 1e6


def show(document: dict[str, Any]) -> None:
    """Print the document of `measure_memory`."""
    out.print(table(document))
    out.print(
        "MB: resident (RSS); proportional (PSS), where a page that n processes share counts 1/n in "
        "each of them; PSS by what it is for. The client is not counted."
    )


def table(document: dict[str, Any]) -> Table:
    """Resident and proportional MB of each process, and the latter by what it is for."""
    title = f"{Path(document['model']).stem}: {document['weights'] / MB:.1f} MB of weights"
    shown = Table(title=f"{title}, {document['stages']} stages")
    shown.add_column("process", no_wrap=True)
    for heading in ("RSS", "PSS", *KINDS):
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in document["processes"]:
        kinds = [row["parts"][kind]["proportional"] for kind in KINDS]
        figures = (row["resident"], row["proportional"], *kinds)
        shown.add_row(row["role"], *(f"{size / MB:.0f}" for size in figures))
    total = document["total"]
    kinds = [
        sum(row["parts"][kind]["proportional"] for row in document["processes"]) for kind in KINDS
    ]
    figures = (total["resident"], total["proportional"], *kinds)
    shown.add_row("all", *(f"{size / MB:.0f}" for size in figures), style="bold")
    return shown


MEMORY = Benchmark("memory", measure_memory, show)
