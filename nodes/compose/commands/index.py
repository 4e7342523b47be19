"""`swarm compose index`: vectors become an index, which a composition's `nearest` searches."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from nodes.cli.command import option, seldom
from nodes.cli.new_path import new_path
from nodes.cli.options import Json
from nodes.console import conclude
from nodes.extras import missing_extra
from shards.compose.nearest import OWN, IndexAbout, made_index
from shards.manifest import check_token
from swarm.errors import InvalidArgument

Archive = Annotated[
    str,
    typer.Argument(help="An .npz: vectors [n, d], perhaps ids [n], and arrays of n rows beside."),
]


@dataclass(frozen=True, kw_only=True)
class IndexOptions:
    """Of `swarm compose index`."""

    output: str = option(
        ...,
        "The folder to write, beside the composition's file; it must not exist yet. Its name is "
        "the index's.",
        "-o",
        "--output",
    )
    metric: str = seldom("cos", "How far vectors are apart: cos, l2sq or ip.")


async def index(file: Archive, options: IndexOptions, json: Json = False) -> None:
    """Make an index of vectors for `nearest` parts of compositions."""
    about = await asyncio.to_thread(_write, file, options)
    beside = ", ".join([*OWN, *about.payload])
    text = f"{about.count} vectors of {about.dimensions} numbers, {about.metric}; it gives {beside}"
    name = Path(options.output).name
    doc = {"index": options.output, **about.to_doc()}
    conclude(json, doc, text, f'next: nearest = {{ of = "PART.TENSOR", index = "{name}" }}')


def _write(file: str, options: IndexOptions) -> IndexAbout:
    """The folder appears whole or not at all."""
    if not Path(file).is_file():
        raise InvalidArgument(f"{file}: no such file; give an .npz of vectors")
    output = new_path(options.output, "folder")
    check_token("index", output.name)
    begun = Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))
    try:
        about = made_index(Path(file), options.metric, begun)
        begun.chmod(0o755)
        begun.rename(output)
    except ModuleNotFoundError as error:
        raise missing_extra(error, "swarm compose index") or error from None
    finally:
        shutil.rmtree(begun, ignore_errors=True)
    return about
