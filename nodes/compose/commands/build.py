"""`swarm compose build`: a composition becomes a folder that `swarm model push` takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from nodes.cli.command import Named, option
from nodes.cli.model_split import model_name
from nodes.cli.options import VERSION, Target
from nodes.cli.with_mesh import client_of
from nodes.compose.commands.check import (
    CheckedComposition,
    CompositionFile,
    checked_composition,
    show,
)
from nodes.console import err
from shards.compose.build import index_file, version_of
from shards.compose.nearest import IndexAbout
from shards.manifest import write_dir
from swarm.mesh import Mesh


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """Of `swarm compose build`."""

    output: str = option(..., "The folder to write; it must not exist yet.", "-o", "--output")
    name: Annotated[str, Named("model")] = option(
        "", "Name of the composition in the mesh; the file's name when empty."
    )
    version: Annotated[str, VERSION] = option(
        "1", "Version of the composition; in the mesh it never changes."
    )


async def build(file: CompositionFile, options: BuildOptions, target: Target) -> None:
    """Check a composition, pin the versions of its models, and write a folder to push."""
    async with client_of(target, signs=False) as client:
        name = options.name or model_name(file)
        found = await built(client, file, options.output, name, options.version)
    show(found, target.json)
    if not target.json:
        err.print(f"written to {options.output}; next: swarm model push {options.output}")


async def built(
    client: Mesh, file: str, folder: str | Path, name: str, version: str
) -> CheckedComposition:
    """Check the composition of a file against the models of a mesh, and write the version into a
    new folder. Raises as `checked_composition`."""
    found = await checked_composition(client, file)
    manifest, files = version_of(
        found.composition,
        found.parts,
        {part: f"{info.model}@{info.version}" for part, info in found.models.items()},
        name=name,
        version=version,
        indexes={
            index_file(index, each): (Path(file).parent / index / each).read_bytes()
            for index, about in found.composition.indexes.items()
            if isinstance(about, IndexAbout)
            for each in about.files()
        },
        compute_ms=sum(stage.compute_ms for info in found.models.values() for stage in info.stages),
    )
    write_dir(folder, manifest, files)
    return found
