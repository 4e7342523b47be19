"""`swarm up`: a local mesh for any ONNX file, in the foreground."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nodes.cli.model import model_name, read_model, show
from nodes.console import err, guarded, out, print_json
from nodes.life.process import set_up_logging, stop_on_signals
from nodes.local.mesh import LocalMesh, local_mesh
from nodes.local.splitting import split_into
from shards.manifest import Manifest, read_dir
from swarm.model import ModelInfo
from swarm.services.embedded import MAX_PAYLOAD
from swarm.wire.tensors import DTYPES


@dataclass(frozen=True)
class UpOptions:
    """See `swarm up --help`."""

    file: str
    stages: int = 3
    cuts: list[str] = field(default_factory=list)
    replicas: int = 1
    fallback: bool = True
    edge_layers: int = 0
    name: str = ""
    version: str = "1"
    threads: int = 1
    mesh: str = "default"
    nats: str = ""


def run_up(options: UpOptions, as_json: bool) -> int:
    """`swarm up`; returns its exit code."""
    set_up_logging(False)

    async def main() -> int:
        stop = stop_on_signals()
        if not as_json:
            err.print(f"splitting {options.file} …")
        with TemporaryDirectory(prefix="swarm-up-") as directory:
            folder = Path(directory) / "model"
            if not await _unless(stop, _split(options, folder)):
                return 130
            manifest, _ = read_dir(folder)
            return await _serve(options, folder, manifest, stop, as_json)

    return guarded(main, as_json)


async def _serve(
    options: UpOptions, folder: Path, manifest: Manifest, stop: asyncio.Event, as_json: bool
) -> int:
    largest = max(sum(s.nbytes for s in shard.sends) for shard in manifest.shards)
    # Room for a batch axis that requests may fill, up to the server's hard limit.
    payload = min(64 << 20, max(MAX_PAYLOAD, 2 * largest + (1 << 20)))
    async with local_mesh(url=options.nats, name=options.mesh, max_payload=payload) as local:
        # The files stay on the disk: the model is put back from there if the server loses it.
        await local.keep(folder)
        name = manifest.model
        for stage in range(1, manifest.stages + 1):
            for _ in range(options.replicas):
                local.start(f"shard-{stage}", name, "--threads", str(options.threads))
        if options.fallback:
            local.start("fallback", name, "--threads", str(options.threads))
        if not await _unless(stop, local.ready()):
            return 130
        _announce(local, manifest, as_json)
        await stop.wait()
        if not as_json:
            err.print("stopping: nodes drain …")
    return 0


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do some work, and return True; end it, and return False, as soon as `stop` is set."""
    working = asyncio.create_task(work)
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return False
        working.result()
        return True
    finally:
        for task in (working, stopped):
            task.cancel()
        await asyncio.wait({working, stopped})


async def _split(options: UpOptions, folder: Path) -> None:
    """Split the model into a new folder. Raises `SwarmError`."""
    arguments = ["--name", options.name or model_name(options.file), "--version", options.version]
    arguments += ["--stages", str(options.stages), "--edge-layers", str(options.edge_layers)]
    if options.cuts:
        arguments += ["--cuts", ",".join(options.cuts)]
    await split_into(folder, str(read_model(options.file)), arguments)


def _announce(local: LocalMesh, manifest: Manifest, as_json: bool) -> None:
    nodes = []
    for process in local.supervisor.nodes:
        status = local.status_of(process)
        nodes.append(
            {
                "node": status["node"] if status else "",
                "role": process.role,
                "pid": process.pid,
            }
        )
    if as_json:
        print_json(
            {
                "event": "ready",
                "nats": local.url,
                "mesh": local.name,
                "model": manifest.model,
                "version": manifest.version,
                "stages": manifest.stages,
                "nodes": nodes,
            }
        )
        return
    show(manifest, False)
    info = ModelInfo.from_manifest(manifest.to_json())
    flag = "" if local.name == "default" else f" --mesh {local.name}"
    out.print(f"[bold green]ready[/] at {local.url}, mesh {local.name!r}. Ask it:")
    out.print(
        f"  swarm infer {manifest.model} --input x.npz --nats {local.url}{flag}", markup=False
    )
    out.print(
        f"  nats -s {local.url} req {local.mesh.subjects.infer(manifest.model)} "
        f"'{example_request(info)}'",
        markup=False,
        soft_wrap=True,
    )
    out.print(f"  swarm top --nats {local.url}{flag}        (Ctrl-C here ends all)", markup=False)


def example_request(info: ModelInfo) -> str:
    """An Open Inference Protocol request to fill in."""
    inputs = [
        {
            "name": spec.name,
            "shape": [max(1, d) for d in spec.shape],
            "datatype": spec.datatype,
            "data": "…",
        }
        for spec in info.inputs
        if spec.datatype in DTYPES
    ]
    return json.dumps({"inputs": inputs}, ensure_ascii=False).replace('"…"', "[…]")
