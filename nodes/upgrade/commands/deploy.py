"""`swarm deploy …`: files that run a model's nodes elsewhere."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from nodes.cli.command import option, seldom
from nodes.cli.new_path import in_folder
from nodes.cli.options import Target, checked_servers
from nodes.cli.with_mesh import client_of
from nodes.console import out, print_json
from nodes.upgrade.install.kubernetes import as_yaml, values
from shards.manifest import FILE_NAME, Manifest, read_dir

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
