"""`swarm deploy …`: files that run a model's nodes elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from nodes.cli.command import option, seldom
from nodes.cli.new_path import in_folder
from nodes.cli.options import Target, checked_servers
from nodes.cli.with_mesh import client_of
from nodes.console import out, print_json
from shards.manifest import FILE_NAME, Manifest, read_dir
from swarm.addresses import checked

# The values of the Helm chart in `deploy/kubernetes/swarm` for one model version: pure.


MIB = 1 << 20
# Measured: an idle node has 94 MB, and one at work four times the weights of its stages more. A pod
# that uses more than it requests is evicted first.
LIBRARIES = 96 * MIB
WEIGHTS_REQUESTED, WEIGHTS_LIMIT = 4, 8
LEAST_LIMIT = 768 * MIB
# The chart's server takes messages of 16 MB without being told; nats-server takes 64 MB at most.
USUAL_PAYLOAD, MOST_PAYLOAD = 16 * MIB, 64 * MIB


def values(manifest: Manifest, mesh: str, nats: str = "") -> dict[str, Any]:
    """One stage for each shard, with memory for its weights; the fallback has all of them. nats:
    URL of a server outside, "" for one of the chart's own. Raises `BadAddress`."""
    shards = [shard for shard in manifest.shards if shard.stage > 0]
    document: dict[str, Any] = {
        "mesh": mesh,
        "model": manifest.model,
        "stages": [{"replicas": 1, "resources": _resources([shard.bytes])} for shard in shards],
        "fallback": {"replicas": 1, "resources": _resources([shard.bytes for shard in shards])},
    }
    if manifest.kind is not None:
        document["language"] = True
    largest = max(sum(each.nbytes for each in shard.sends) for shard in manifest.shards)
    # Room for a batch axis that requests may fill, as `swarm up` gives it.
    payload = min(MOST_PAYLOAD, 2 * largest + MIB)
    if nats:
        urls = (url if "//" in url else f"nats://{url}" for url in checked(nats))
        document["nats"] = {"enabled": False, "url": ",".join(urls)}
    elif payload > USUAL_PAYLOAD:
        document["nats"] = {"maxPayload": f"{-(-payload // MIB)}MB"}
    return document


def _resources(weights: Sequence[int]) -> dict[str, Any]:
    total = sum(weights)
    requested = WEIGHTS_REQUESTED * total + LIBRARIES
    limit = max(LEAST_LIMIT, WEIGHTS_LIMIT * total + LIBRARIES)
    return {
        "requests": {"cpu": "500m", "memory": f"{-(-requested // MIB)}Mi"},
        "limits": {"memory": f"{-(-limit // MIB)}Mi"},
    }


def as_yaml(document: Any, indent: int = 0) -> str:
    """Maps, lists, texts and numbers as YAML that people read. Texts are JSON's, which YAML has
    too."""
    space = " " * indent
    lines = []
    for key, value in document.items():
        if isinstance(value, dict):
            lines.append(f"{space}{key}:\n{as_yaml(value, indent + 2)}")
        elif isinstance(value, list):
            items = [as_yaml(item, indent + 4) for item in value]
            marked = [f"{space}  - {item[indent + 4 :]}" for item in items]
            lines.append(f"{space}{key}:\n" + "\n".join(marked))
        else:
            lines.append(f"{space}{key}: {_scalar(value)}")
    return "\n".join(lines)


def _scalar(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else f'"{value}"'


ModelOrFolder = Annotated[
    str, typer.Argument(help="NAME or NAME@VERSION in the mesh, or a folder of `model split`.")
]


async def k8s(
    model: ModelOrFolder,
    target: Target,
    output: str = option("", "File for the values; empty: standard output."),
    server: str = seldom(
        "",
        "URL of a NATS server that pods reach; empty: one of the chart's.",
        callback=checked_servers,
    ),
) -> None:
    """Write values of the Helm chart deploy/kubernetes/swarm: stages, and memory for each."""
    if output:
        in_folder(output)
    if (Path(model) / FILE_NAME).exists():
        manifest, _ = read_dir(Path(model))
    else:
        async with client_of(target) as client:
            info = await client.model(model)
            data = await client.registry.manifest(info.model, info.version)
            manifest = Manifest.from_json(data)
    document = values(manifest, target.mesh, server)
    text = f"# Of {manifest.model}@{manifest.version}\n{as_yaml(document)}\n"
    if output:
        await asyncio.to_thread(Path(output).write_text, text, "utf-8")
    if target.json:
        print_json(document)
    elif not output:
        out.print(text, markup=False, soft_wrap=True, end="")
