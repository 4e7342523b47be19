"""How a model that runs can be asked: lines to paste, with its real inputs.

Each line works as it stands, without a file of the user's: the values are zeros, or random.
"""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nodes.access import NOTHING, AccessOptions
from nodes.features import first
from shards.manifest import Manifest
from shards.specs import TensorSpec
from swarm.subjects import Subjects
from swarm.wire.tensors import DTYPES

PYTHON = """\
{python} - <<'END'
import asyncio, numpy, swarm
async def main():
    async with swarm.connect({url}, {mesh}) as mesh:
        result = await mesh.infer({model}, {{{inputs}}}, budget=5.0)
        print(result.outputs)
asyncio.run(main())
END"""
NATS = 'import json; print(json.dumps({{"inputs": [{inputs}]}}))'


@dataclass(frozen=True)
class HowToAsk:
    """Commands for a shell: `swarm infer`, a Python program, and `nats req` (any NATS client)."""

    shell: str
    python: str
    nats: str


def how_to_ask(
    manifest: Manifest,
    url: str,
    mesh: str,
    environment: Mapping[str, str] = os.environ,
    *,
    asks: AccessOptions = NOTHING,
    reads: AccessOptions = NOTHING,
) -> HowToAsk:
    """The lines for a model version that a mesh at `url` serves.

    environment: of the command that prints them; where `uv run` started it, the lines use it too.
    asks: of a client. reads: of a requester, who may read what the model takes.
    """
    uv = _with_uv(environment)
    shapes = {spec.name: _shape(manifest, spec) for spec in manifest.inputs}
    arrays = ", ".join(
        f'{json.dumps(spec.name)}: numpy.zeros({shapes[spec.name]}, "{DTYPES[spec.datatype]}")'
        for spec in manifest.inputs
    )
    documents = ", ".join(
        f'{{"name": {json.dumps(spec.name)}, "datatype": "{spec.datatype}", '
        f'"shape": {list(shapes[spec.name])}, "data": [0] * {math.prod(shapes[spec.name])}}}'
        for spec in manifest.inputs
    )
    body = f"{uv}python3 -c {shlex.quote(NATS.format(inputs=documents))}"
    subject = Subjects(mesh).infer(manifest.model)
    client = "".join(
        f", {name}={json.dumps(value)}" for name, value in asks.options().items() if value
    )
    given = ""
    if asks.credentials:
        # The inbox bears the user's name, which the file's name is: rights allow no other.
        given = (
            f" --creds {shlex.quote(asks.credentials)} --tlsca {shlex.quote(asks.tls_ca)}"
            f" --inbox-prefix _INBOX.{Path(asks.credentials).stem}"
        )
    shell, python = f"infer {manifest.model} --random", PYTHON
    # From standard input: a command's argument holds 128 KiB at the most.
    nats = f"{body} | nats -s {shlex.quote(url)}{given} req {subject} --force-stdin"
    if other := first(lambda feature: feature.asks(manifest, mesh)):
        shell, python = other.shell, other.python
        nats = f"nats -s {shlex.quote(url)}{given} {other.nats}"
    return HowToAsk(
        shell=swarm_line(shell, url, mesh, reads, environment),
        python=python.format(
            python=f"{uv}python3",
            url=json.dumps(url),
            mesh=json.dumps(mesh) + client,
            model=json.dumps(manifest.model),
            inputs=arrays,
        ),
        nats=nats,
    )


def swarm_line(
    words: str,
    url: str,
    mesh: str,
    access: AccessOptions = NOTHING,
    environment: Mapping[str, str] = os.environ,
) -> str:
    """A command of `swarm` for the mesh at `url`, for a shell. environment: as `how_to_ask`."""
    where = f"--nats {shlex.quote(url)}" + ("" if mesh == "default" else f" --mesh {mesh}")
    shown = "".join(f" {shlex.quote(word)}" for word in access.arguments())
    return f"{_with_uv(environment)}swarm {words} {where}{shown}"


def _with_uv(environment: Mapping[str, str]) -> str:
    return "uv run " if "UV_RUN_RECURSION_DEPTH" in environment else ""


def _shape(manifest: Manifest, spec: TensorSpec) -> tuple[int, ...]:
    """A shape that the model takes: free dimensions are as they were when the model was split."""
    example = manifest.extra.get("examples", {}).get(spec.name)
    if isinstance(example, list) and (spec.any_rank or len(example) == len(spec.shape)):
        return tuple(int(size) for size in example)
    return tuple(max(1, size) for size in spec.shape)
