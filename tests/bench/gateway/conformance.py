"""Programs of others run against a gateway, as they are: Triton's client examples `simple_*.py`.

They are not part of this project. `--examples` names a folder with them, from
github.com/triton-inference-server/client, src/python/examples (BSD-3-Clause).
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx import TensorProto
from support.commands import environment
from support.meshes import READY, add_model, mesh_of
from support.waiting import eventually
from zoo.graph_writer import GraphWriter

from bench.report.frame import Benchmark, Progress
from bench.report.tables import new_table
from nodes.console import out
from nodes.up.mesh import LocalMesh
from nodes.up.supervisor import NodeProcess
from shards.split.split import split
from swarm.errors import NotFound

# Words in the names of examples, and what such an example needs that the gateway does not offer.
NOT_OFFERED = {
    "sequence": "sequences",
    "string": "BYTES tensors",
    "cudashm": "CUDA memory",
    "model_control": "loading and unloading",
    "custom_repeat": "a model with several answers to a request",
}
VALUES = 16
FLAGS = ("--http", "0", "--grpc", "0", "--allow-client-shm", "--gateway-server-name", "triton")


@dataclass(frozen=True)
class ConformancePlan:
    """examples: a folder. timeout: seconds for one of them."""

    examples: Path
    timeout: float = 60.0


def simple() -> bytes:
    """The model that the examples ask: the sums and the differences of its two inputs, INT32 of
    [any, 16]."""
    writer = GraphWriter("simple")
    inputs = [writer.input(name, [VALUES], TensorProto.INT32) for name in ("INPUT0", "INPUT1")]
    for operator, name in (("Add", "OUTPUT0"), ("Sub", "OUTPUT1")):
        writer.output(writer.add(operator, inputs, name), [VALUES], TensorProto.INT32)
    return writer.to_bytes()


def needs(name: str) -> str:
    """What an example needs that the gateway does not offer; "" for nothing."""
    return next((what for word, what in NOT_OFFERED.items() if word in name), "")


async def run_examples(plan: ConformancePlan, progress: Progress) -> dict[str, Any]:
    """The document of `swarm bench oip`. Raises `NotFound` for a folder without examples."""
    programs = sorted(plan.examples.absolute().glob("simple_*.py"))
    if not programs:
        raise NotFound(
            f"{plan.examples} has no simple_*.py: copy src/python/examples of "
            "github.com/triton-inference-server/client there"
        )
    async with mesh_of() as local:
        progress("starting")
        gateway = local.start("gateway", "", *FLAGS)
        result = await asyncio.to_thread(split, simple(), name="simple", stages=1, profile=False)
        await add_model(local, result, "shard-1")
        await local.ready(READY)
        doors = await eventually(lambda: _doors(local, gateway), "the doors are open", READY)
        found = {}
        for program in programs:
            progress(program.name)
            url = doors["grpc" if "grpc" in program.name else "http"]
            code, said = await _run(program, url, plan.timeout)
            found[program.stem] = {"code": code, "said": said, "needs": needs(program.stem)}
    return {"examples": found}


def _doors(local: LocalMesh, gateway: NodeProcess) -> dict[str, str]:
    """Addresses of both doors; {} until both are open."""
    doors = (local.status_of(gateway) or {}).get("gateway", {}).get("doors", {})
    addresses = {name: door["address"].removeprefix("http://") for name, door in doors.items()}
    return addresses if len(addresses) == 2 else {}


async def _run(program: Path, url: str, timeout: float) -> tuple[int, str]:
    """An example's exit code, -9 where it did not end, and the last line that it wrote."""
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(program), "-u", url),
            env=environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(timeout):
                code = await process.wait()
        except TimeoutError:
            process.kill()
            code = await process.wait()
        log.seek(0)
        lines = log.read().decode(errors="replace").split("\n")
    said = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return code, re.sub(r"\s+", " ", said)[:160]


def show(document: dict[str, Any]) -> None:
    """One row for each example."""
    table = new_table("Triton's client examples", "example", "exit code", "needs")
    for name, found in document["examples"].items():
        table.add_row(name, str(found["code"]), found["needs"])
    out.print(table)
    passed = sum(found["code"] == 0 for found in document["examples"].values())
    out.print(f"{passed} of {len(document['examples'])} exit 0.")


def misses(document: dict[str, Any]) -> list[str]:
    """The examples that need nothing more than is offered, and fail."""
    return [
        f"{name} exits {found['code']}: {found['said']}"
        for name, found in document["examples"].items()
        if found["code"] != 0 and not found["needs"]
    ]


CONFORMANCE = Benchmark("oip", run_examples, show, misses=misses)
