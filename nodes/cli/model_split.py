"""`swarm model split` and `swarm model inspect`: a file becomes shards, and what shards are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from nodes.cli.arrays import read_inputs
from nodes.cli.codec_error import codecs_lines
from nodes.cli.command import Named, option, seldom
from nodes.cli.options import VERSION, Exemplified, Json, OwnServers
from nodes.console import err, out, print_json
from nodes.event_loop import end_with_supervisor
from nodes.feature import Given
from nodes.features import features, first
from nodes.limits import lane_bytes
from nodes.progress import progress
from shards.manifest import Manifest, read_dir, write_dir
from shards.parts import ModelHints
from swarm.errors import InvalidArgument
from swarm.model import ModelInfo

ModelSource = Annotated[
    str,
    typer.Argument(
        help="An ONNX file; or a language model's folder: model.onnx, tokenizer.json, settings."
    ),
]
Folder = Annotated[str, typer.Argument(help="A folder made by `swarm model split`.")]


@dataclass(frozen=True, kw_only=True)
class Splitting(Exemplified):
    """How an ONNX file is cut, and what it is called in the mesh."""

    stages: int = option(
        3, "Shards to cut the model into, balanced by measured time.", min=1, max=64
    )
    cuts: str = option(
        "", "Names of the tensors to cut after, separated by commas; instead of --stages."
    )
    edge_layers: int = option(
        0,
        "Layers that run on the edge node (stage 0): it sends features instead of raw input. "
        "Features of early layers still tell who is in a picture.",
        min=0,
    )
    name: Annotated[str, Named("model")] = option(
        "", "Name of the model in the mesh; the file's name when empty."
    )
    version: Annotated[str, VERSION] = option(
        "1", "Version of the model; in the mesh it never changes."
    )
    batch: str = seldom(
        "auto",
        "Whether requests share runs: auto where the graph shows that their rows stay apart, on by "
        "your word, off. Runs confirm auto and on.",
    )
    outputs: str = option(
        "",
        "The outputs that stay, separated by commas, or other tensors of the graph; the rest is "
        "left out. With --task: those that are read, where shapes do not tell.",
    )
    lighter_model: Annotated[str, Named("lighter model", version=True)] = seldom(
        "",
        "Another model of the mesh, NAME or NAME@VERSION, with the same inputs and outputs: it "
        "answers, `degraded`, where this one cannot in time, for whoever allows that.",
    )
    degrades: bool = seldom(
        False, "The lighter model's answers go to clients too that do not say whether they may."
    )


@dataclass(frozen=True, kw_only=True)
class SplitOptions(Splitting):
    """Of `swarm model split`."""

    output: str = option(..., "The folder to write; it must not exist yet.", "-o", "--output")
    edge_cut: str = seldom(
        "", "Name of the tensor after which the edge's layers end; instead of --edge-layers."
    )
    like: str = seldom(
        "",
        "Folders of versions that were split before, separated by commas: of the first one that is "
        "of this file, and has as many stages, the cuts are taken, whatever is measured.",
    )
    one_host: bool = seldom(
        False,
        "All nodes are on one host: the bytes of a cut count as at 8 Gbit/s, not as at 1 Gbit/s.",
    )
    lighter: str = option(
        "",
        "A lighter ONNX file with the same inputs and outputs; the edge itself answers with it "
        "when the mesh would be late.",
    )


async def split(file: ModelSource, options: SplitOptions, given: Given, json: Json = False) -> None:
    """Cut an ONNX file into shards of equal measured time, and check them against the whole.

    A language model is cut at the ends of its layers, and proved over a prompt and 64 tokens."""
    end_with_supervisor()
    from shards.split.balance import LINK_BYTES_PER_MS, ONE_HOST_BYTES_PER_MS
    from shards.split.split import split as split_model

    if options.degrades and not options.lighter_model:
        raise InvalidArgument("--degrades is for --lighter-model NAME")
    outputs = [name for name in options.outputs.split(",") if name]
    addition = first(lambda feature: feature.addition(given, outputs))
    cuts = first(lambda feature: feature.cuts(given))
    if cuts is None:
        cuts = [[c] for c in options.cuts.split(",") if c] or None
    model, hints = read_source(file)
    known = [read_dir(folder)[0] for folder in options.like.split(",") if folder]
    with progress(f"splitting {file}: timing its segments", silent=json):
        result = split_model(
            model,
            name=options.name or model_name(file),
            version=options.version,
            stages=options.stages if cuts is None else None,
            cuts=cuts,
            edge_layers=options.edge_layers or None,
            edge_cut=options.edge_cut or None,
            lighter=read_model(options.lighter).read_bytes() if options.lighter else None,
            bandwidth=ONE_HOST_BYTES_PER_MS if options.one_host else LINK_BYTES_PER_MS,
            addition=addition,
            hints=hints,
            batch=options.batch,
            known=known,
            example=read_inputs(options.example) if options.example else None,
            shapes=options.shapes(),
            outputs=outputs if addition is None else (),
        )
    manifest = with_lighter_model(result.manifest, options)
    for feature in features():
        manifest = replace(manifest, parts={**manifest.parts, **feature.adds(given, manifest)})
    write_dir(options.output, manifest, result.files)
    show(manifest, json)
    if not json:
        for note in result.notes:
            err.print(f"note: {note}", markup=False, soft_wrap=True)
        err.print(f"written to {options.output}; next: swarm model push {options.output}")


def with_lighter_model(manifest: Manifest, options: Splitting) -> Manifest:
    """The manifest that names the lighter model of the options, if there is one. Raises
    `InvalidArgument`."""
    if not options.lighter_model:
        return manifest
    model, _, version = options.lighter_model.partition("@")
    if manifest.kind is not None:
        raise InvalidArgument(f"{manifest.kind.about} has no lighter model: leave it out")
    if model == manifest.model:
        raise InvalidArgument(f"--lighter-model {model}: name another model than this one")
    named = {"model": model, "version": version, "degrades": options.degrades}
    return replace(manifest, parts={**manifest.parts, "lighter_model": named})


async def inspect(
    folder: Folder,
    target: OwnServers,
    plot: str = seldom(
        "", "Draw the parts of a composition: an .svg file; with --nats with their times."
    ),
) -> None:
    """Show the shards of a split model: layers, times, bytes of each cut. Checks the files."""
    manifest, files = checked_files(folder)
    if plot and not plot.endswith(".svg"):
        raise InvalidArgument(f"--plot {plot}: it is an .svg file")
    if plot:
        told = await statuses_of(target) if target.nats else []
        if not any(feature.draws(manifest, files, plot, told) for feature in features()):
            raise InvalidArgument(f"--plot draws compositions, and {manifest.model} is none")
    show(manifest, target.json)


async def statuses_of(target: OwnServers) -> list[Mapping[str, Any]]:
    """What the nodes of a mesh say. Raises `SwarmError`."""
    from nodes.cli.with_mesh import client_of  # a split asks no mesh
    from swarm.fleet.service import FleetWatch

    async with (
        client_of(target) as client,
        FleetWatch(client.link, client.subjects, events=0) as watch,
    ):
        await watch.hear_all()
        return [node.status for node in watch.view.nodes.values()]


def checked_files(folder: str) -> tuple[Manifest, dict[str, Path]]:
    """The manifest of a split model, and its files, by name. Raises `ManifestError` where one is
    not that of the manifest."""
    manifest, fetch = read_dir(folder)
    for name in manifest.files():
        fetch(name)
    return manifest, {name: Path(folder) / name for name in manifest.files()}


def model_name(path: str) -> str:
    """A model name from a file's name: what may not stand in a subject becomes `-`."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", Path(path).stem).strip("-") or "model"


def read_model(path: str) -> Path:
    """The file, checked. Raises `InvalidArgument`."""
    from shards.foreign import foreign

    file = Path(path)
    if file.is_dir():
        raise InvalidArgument(
            foreign(file) or f"{path} is a folder: give the .onnx file in it that is meant"
        )
    if not file.is_file():
        raise InvalidArgument(
            f"{path}: no such file; give an .onnx file, or a language model's folder"
        )
    return file


def read_source(path: str) -> tuple[Path | bytes, ModelHints | None]:
    """A model's file, and what lies beside it where a feature reads such a path.

    Raises `InvalidArgument`, ModelError.
    """
    source = first(lambda feature: feature.source(path))
    return (read_model(path), None) if source is None else source()


def check_source(path: str) -> None:
    """Raises `InvalidArgument` for what is neither a file nor a feature's."""
    if first(lambda feature: feature.source(path)) is None:
        read_model(path)


def show(manifest: Manifest, as_json: bool) -> None:
    """The shards of a manifest, as a table or a JSON document."""
    rows: list[dict[str, Any]] = [
        {
            "stage": shard.stage,
            "layers": [shard.start, shard.end],
            "compute_ms": round(shard.compute_ms, 4),
            "weights_bytes": shard.bytes,
            "receives": {
                s.name: [s.datatype, None if s.any_rank else list(s.shape)] for s in shard.receives
            },
            "receives_bytes": sum(s.nbytes for s in shard.receives),
        }
        for shard in manifest.shards
    ]
    info = ModelInfo.from_manifest(manifest.to_json())
    lanes = lane_bytes(info)
    if as_json:
        print_json(
            {
                "lane_bytes": lanes,
                "model": manifest.model,
                "version": manifest.version,
                "batchable": manifest.batchable,
                "batching": asdict(manifest.batching),
                "lighter": manifest.lighter is not None,
                "shards": rows,
            }
            | manifest.codecs_doc()
            | dict(manifest.parts)
        )
        return
    table = Table(title=f"{manifest.model}@{manifest.version}")
    for heading in ("stage", "layers", "compute ms", "shard KB", "receives", "KB"):
        table.add_column(heading, justify="left" if heading == "receives" else "right")
    for row in rows:
        tensors = ", ".join(
            f"{name} {datatype}{' of any shape' if shape is None else shape}"
            for name, (datatype, shape) in row["receives"].items()
        )
        table.add_row(
            "edge (0)" if row["stage"] == 0 else str(row["stage"]),
            "[{}, {})".format(*row["layers"]).replace("[", r"\["),
            f"{row['compute_ms']:.3f}",
            f"{row['weights_bytes'] / 1024:.0f}",
            tensors.replace("[", r"\["),
            f"{row['receives_bytes'] / 1024:.1f}",
        )
    out.print(table)
    lines = [*example_lines(manifest), *batching_lines(manifest), *codecs_lines(manifest)]
    if (lighter := info.lighter) is not None:
        who = "whoever does not refuse it" if lighter.degrades else "whoever allows it"
        lines.append(f"lighter model: {lighter} answers, degraded, for {who}")
    for feature in features():
        lines += feature.describes(manifest)
    for line in lines:
        out.print(line, soft_wrap=True, markup=False, highlight=False)
    text = f"lanes: {lanes / 1e6:.1f} MB of the server's room; a promote needs it three times"
    out.print(text, soft_wrap=True, markup=False, highlight=False)


# The slowest stage bounds the rate. Above this part of the mean it is worth a line.
_UNEVEN = 1.3


def example_lines(manifest: Manifest) -> list[str]:
    """The sizes that a model was timed with, and how uneven its stages are."""
    said = manifest.extra.get("example", "")
    lines = [said] if isinstance(said, str) and said else []
    timed = {s.stage: s.compute_ms for s in manifest.shards if s.stage > 0 and s.compute_ms > 0}
    if len(timed) < 2:
        return lines
    slowest = max(timed, key=lambda stage: timed[stage])
    ratio = timed[slowest] * len(timed) / sum(timed.values())
    if ratio > _UNEVEN:
        lines.append(
            f"uneven: stage {slowest} takes {ratio:.2f} of the mean of the stages, and bounds the "
            "rate. Give it more nodes, or ask for other --stages"
        )
    return lines


def batching_lines(manifest: Manifest) -> list[str]:
    """Whether requests share runs, and why not; none for a kind with a proof of its own."""
    batching = manifest.batching
    if manifest.kind is not None or manifest.opset == 0:  # no graph of its own
        return []
    if batching.by == "structure":
        return ["requests share runs: the graph keeps their rows apart, and runs confirm it"]
    if batching.by == "owner":
        return ["requests share runs: its owner says that their rows stay apart (--batch on)"]
    return [
        f"requests run one by one: {batching.why or 'nothing shows that their rows stay apart'}"
    ]
