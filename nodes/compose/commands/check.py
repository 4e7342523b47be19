"""`swarm compose check`: whether a composition can run with the models of a mesh."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

import swarm
from nodes.cli.options import Target
from nodes.cli.with_mesh import client_of
from nodes.compose.model import models_of, signature_of
from nodes.console import out, print_json
from shards.compose.check import Checked, check
from shards.compose.composition import (
    MOST_BYTES,
    AskPart,
    ChoosePart,
    Composition,
    FirstPart,
    NearestPart,
    from_toml,
    needed,
)
from shards.compose.nearest import read_about
from shards.errors import ModelError
from swarm.errors import InvalidArgument, NotFound
from swarm.model import ModelInfo

CompositionFile = Annotated[str, typer.Argument(help="A TOML file that declares a composition.")]


@dataclass(frozen=True)
class CheckedComposition:
    """A composition with pinned versions, what its parts make, and its models by part."""

    composition: Composition
    parts: Checked
    models: dict[str, ModelInfo]


def read_composition(file: str) -> Composition:
    """Raises `InvalidArgument` for what is no file, CompositionError for another one."""
    path = Path(file)
    if not path.is_file() or path.stat().st_size > MOST_BYTES:
        raise InvalidArgument(f"{file} is no file of {MOST_BYTES >> 10} KB at most")
    try:
        composition = from_toml(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{file} is not UTF-8: {error}") from None
    # An index is a folder beside the file.
    names = sorted(composition.searches())
    return replace(
        composition, indexes={name: read_about(path.parent / name, name) for name in names}
    )


async def checked_composition(client: swarm.Mesh, file: str) -> CheckedComposition:
    """Of a file, with the versions that serve now where it names none. Raises `InvalidArgument`,
    CompositionError, `NotFound`."""
    with _with_line(file):
        composition = read_composition(file)
        models = await models_of(client, composition)
        pinned = composition.pinned({name: info.version for name, info in models.items()})
        parts = check(pinned, {name: signature_of(info) for name, info in models.items()})
    return CheckedComposition(pinned, parts, models)


@contextmanager
def _with_line(file: str) -> Iterator[None]:
    """What is wrong with a part is told with the line where that has its name."""
    try:
        yield
    except (ModelError, NotFound) as error:
        if (part := re.match(r"part '([^']+)'", str(error))) is None:
            raise
        text = Path(file).read_text(encoding="utf-8-sig")
        named = re.search(rf"^\s*name\s*=\s*[\"']{re.escape(part[1])}[\"']", text, re.M)
        if named is None:
            raise
        line = text.count("\n", 0, named.end()) + 1
        kind = NotFound if isinstance(error, NotFound) else InvalidArgument
        raise kind(f"{file}:{line}: {error}") from None


async def check_composition(file: CompositionFile, target: Target) -> None:
    """Check a composition against the models of the mesh: types, shapes, bounds, circles."""
    async with client_of(target, signs=False) as client:
        found = await checked_composition(client, file)
    show(found, target.json)


def show(found: CheckedComposition, as_json: bool) -> None:
    """Each part, with what it reads and makes."""
    composition, parts = found.composition, found.parts
    reads = {name: list(dict.fromkeys(needed(composition.parts[name]))) for name in parts.order}
    of_inputs = {
        name for name in parts.order if any(not r.part for r in composition.parts[name].tensors())
    }
    makes = {
        name: {spec.name: str(spec) for spec in parts.tensors[name].values()}
        for name in parts.order
    }
    if as_json:
        document = {
            name: {
                "is": _kind(found, name),
                "reads": reads[name],
                "makes": makes[name],
                "rows": parts.rows.get(name),
                "may_be_left_out": name in parts.may_lack,
            }
            for name in parts.order
        }
        outputs = {spec.name: str(spec) for spec in parts.outputs}
        print_json({"parts": document, "outputs": outputs})
        return
    table = Table("part", "is", "reads", "makes", "rows at most")
    for name in parts.order:
        table.add_row(
            name + (" (optional)" if name in parts.may_lack else ""),
            _kind(found, name),
            ", ".join(reads[name] + ["the inputs"] * (name in of_inputs)),
            ", ".join(f"{tensor} {spec}" for tensor, spec in makes[name].items()),
            str(parts.rows.get(name, "")),
        )
    out.print(table)
    for spec in found.parts.outputs:
        out.print(f"output {spec.name}: {spec}", markup=False)


def _kind(found: CheckedComposition, name: str) -> str:
    part = found.composition.parts[name]
    match part:
        case AskPart():
            asked = f"{found.models[name].model}@{found.models[name].version}"
            return f"{asked} for each row" if part.each_row else asked
        case ChoosePart():
            bound = f"{'below' if part.condition.below else 'above'} {part.condition.bound:g}"
            return f"{part.then} where {part.condition.measure} of {part.by} is {bound}"
        case FirstPart():
            return f"the first of {', '.join(part.of)}"
        case NearestPart():
            return f"the {part.k} nearest of {part.index}"
    return part.operator
