"""`swarm compose share`: models with the same first layers become one backbone and their heads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from nodes.cli.command import option
from nodes.cli.model_split import model_name
from nodes.cli.new_path import new_path
from nodes.console import err, out, print_json
from shards.compose.share import share, toml_of
from shards.json_fields import check_token
from swarm.errors import InvalidArgument

ModelFiles = Annotated[list[str], typer.Argument(help="ONNX files, two or more.")]
FILE = "shared.toml"


@dataclass(frozen=True, kw_only=True)
class ShareOptions:
    """Of `swarm compose share`."""

    output: str = option(..., "The folder to write; it must not exist yet.", "-o", "--output")
    backbone: str = option("backbone", "Name of the model of the layers in common.")
    json: bool = option(False, "Print JSON on standard output, for programs.")


def share_layers(files: ModelFiles, options: ShareOptions) -> int:
    """Take the first layers that models have in common apart: computed once for all of them.

    Writes the backbone, a head for each model, and the composition that asks the backbone once."""
    folder = new_path(options.output, "folder")
    check_token("model name", options.backbone)
    models = {model_name(file): Path(file) for file in files}
    if len(models) < len(files):
        raise InvalidArgument("two files have the same name: parts are named by them")
    for name in models:
        check_token("model name", name)
    shared = share(models, options.backbone)
    folder.mkdir()
    written = {options.backbone: shared.backbone}
    written |= {f"{name}-head": head for name, head in shared.heads.items()}
    for name, data in written.items():
        (folder / f"{name}.onnx").write_bytes(data)
    (folder / FILE).write_text(toml_of(shared.composition), encoding="utf-8")
    document = {
        "models": sorted(written),
        "composition": str(folder / FILE),
        "layers": shared.layers,
        "layers_of": dict(shared.of),
        "weight_bytes": shared.weight_bytes,
        "crossing_bytes": shared.crossing,
    }
    if options.json:
        print_json(document)
        return 0
    table = Table("model", "layers", "in common")
    for name, layers in shared.of.items():
        table.add_row(name, str(layers), str(shared.layers))
    out.print(table)
    out.print(
        f"weights in common: {shared.weight_bytes / 1e3:.0f} KB; a request's tensors from the "
        f"backbone: {shared.crossing / 1e3:.1f} KB; all outputs are the same, bit by bit",
        markup=False,
    )
    split = f"swarm model split {folder}/MODEL.onnx -o MODEL and swarm model push MODEL"
    then = f"then swarm compose build {folder / FILE} -o BUILT"
    told = f"next: for {', '.join(written)}: {split}; {then}"
    err.print(told, markup=False, highlight=False, soft_wrap=True)
    return 0
