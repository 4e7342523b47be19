"""`swarm model plan MODEL --devices FILE`: where a model's layers should run, ahead of any mesh."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from nodes.cli.arrays import read_inputs
from nodes.cli.command import option, seldom
from nodes.cli.options import Exemplified
from nodes.console import err, out, print_json
from nodes.progress import progress
from shards.auto.devices import read_fleet
from shards.auto.plan import FleetPlan, make_plan, make_plan_with
from shards.auto.predict import Prediction
from shards.auto.problem import PlanningProblem, PlanObjective, Segment
from shards.errors import PlanError, SplitError
from shards.manifest import Manifest, read_dir
from shards.runtimes.memory import SESSION, need_of
from swarm.errors import InvalidArgument

MOST_SEGMENTS = 24  # that a file is cut into to be planned; each is timed
LANE = 48  # characters of a request's time


@dataclass(frozen=True, kw_only=True)
class PlanOptions(Exemplified):
    """Of `swarm model plan … --devices`."""

    devices: str = option(
        "",
        "A TOML file of devices and links: plan for them, ahead of any mesh (`shards/auto`); "
        "or mesh: for its nodes of role auto, as they tell of themselves.",
    )
    objective: str = seldom(
        "latency",
        "With --devices: latency, throughput (requests/s), or devices (the fewest that do).",
    )
    latency_ms: float = seldom(
        0.0, "With --devices: the longest a request may take; 0: any.", min=0
    )
    rate: float = seldom(0.0, "With --devices: requests a second that are needed.", min=0)
    most_error: float = seldom(
        0.0, "With --devices: the largest change of a result that a codec may make.", min=0
    )
    plot: str = seldom("", "With --devices: draw the plan: a .png or .svg file.")
    output: str = seldom(
        "", "With --devices: write the plan, for `swarm model split --plan`.", "-o", "--output"
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """A model's segments. cuts: the tensors behind each segment but the last, as `split` takes
    them. source_sha256: of the file that it was made from."""

    name: str
    segments: tuple[Segment, ...]
    cuts: tuple[tuple[str, ...], ...]
    input_bytes: int
    source_sha256: str = ""


async def run_plan_ahead(model: str, options: PlanOptions, as_json: bool) -> None:
    """`swarm model plan --devices FILE`. Raises `PlanError` where no plan can run."""
    objective, fleet = objective_of(options.objective), read_fleet(_text_of(options.devices))
    measured = measured_of(model, as_json, options)
    problem = PlanningProblem(
        measured.segments,
        fleet.devices,
        objective,
        fleet.links,
        fleet.link,
        fleet.codecs,
        options.most_error,
        fleet.source,
        fleet.stays,
        measured.input_bytes,
        options.latency_ms or float("inf"),
        options.rate,
    )
    plan = make_plan_with(problem, fleet.picture) if fleet.picture else make_plan(problem)
    conclude_plan(document_of(measured, problem, plan), model, options, as_json)


def conclude_plan(
    document: Mapping[str, Any], model: str, options: PlanOptions, as_json: bool
) -> None:
    """Write, show and draw a plan, as the options say. Raises `InvalidArgument`."""
    if options.output:
        _write(document, options.output)
    if as_json:
        print_json(document)
    else:
        _show(document, model, options.output)
    if options.plot:
        _plot(document, options.plot)


def objective_of(text: str) -> PlanObjective:
    """Raises `InvalidArgument`."""
    try:
        return PlanObjective(text)
    except ValueError:
        raise InvalidArgument(f"--objective {text}: it is {', '.join(PlanObjective)}") from None


@dataclass(frozen=True, slots=True)
class PlanFile:
    """What a plan's file is read for. cuts: as `shards.split` takes them. devices: of each stage.
    source_sha256: of the model's file, "" where it does not tell."""

    cuts: list[list[str]]
    devices: list[list[str]]
    source_sha256: str


def read_plan_file(path: str) -> PlanFile:
    """Raises `InvalidArgument`."""
    try:
        document = json.loads(_text_of(path))
        cuts = [list(cut) for cut in document["cuts"]]
        devices = [list(stage["devices"]) for stage in document["stages"]]
        names = [name for part in (*cuts, *devices) for name in part]
        digest = document.get("source_sha256", "")
        is_plan = all(isinstance(name, str) for name in (*names, digest)) and all(devices)
        if is_plan and len(devices) == len(cuts) + 1:
            return PlanFile(cuts, devices, digest)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass
    raise InvalidArgument(f"{path} is no plan: make one with `swarm model plan … -o {path}`")


def _write(document: Mapping[str, Any], path: str) -> None:
    try:
        Path(path).write_text(json.dumps(document, indent=1), encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(f"{path}: {error}") from None


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path}: {error}") from None


def measured_of(model: str, silent: bool, sizes: Exemplified | None = None) -> Measured:
    """The segments of an ONNX file at these sizes, or the stages of a folder of `swarm model
    split`. Raises `ShardsError`, `InvalidArgument`."""
    sizes = sizes or Exemplified()
    if Path(model).is_dir():
        if sizes.example or sizes.shape:
            raise InvalidArgument(
                f"{model} was timed when it was split: give its ONNX file with --example or --shape"
            )
        manifest, _ = read_dir(model)
        return of_manifest(manifest)
    from shards.split.split import split

    timed = partial(
        split,
        model,
        name="planned",
        time_whole=True,
        example=read_inputs(sizes.example) if sizes.example else None,
        shapes=sizes.shapes(),
    )
    with progress(f"timing the segments of {model}", silent=silent):
        try:
            result = timed(stages=MOST_SEGMENTS)
        except SplitError as error:
            if not error.possible:
                raise
            result = timed(stages=error.possible)
    if not silent and result.manifest.extra["example"]:
        err.print(result.manifest.extra["example"], markup=False, soft_wrap=True)
    measured = of_manifest(result.manifest)
    segments = scaled(measured.segments, result.whole_ms)
    return replace(measured, name=Path(model).stem, segments=segments)


def scaled(segments: tuple[Segment, ...], whole_ms: float) -> tuple[Segment, ...]:
    """With times that add up to the whole model's. Segments alone take longer, for a runtime fuses
    across them; or less, for each one's weights stay in a cache that is too small for all of them:
    that is theirs by their weights. whole_ms: 0.0 where nothing was measured."""
    alone = sum(segment.ms for segment in segments)
    weights = sum(segment.weights for segment in segments)
    factor = min(1.0, whole_ms / alone) if whole_ms else 1.0
    per_byte = max(0.0, whole_ms - alone) / weights if weights else 0.0
    return tuple(replace(s, ms=s.ms * factor + s.weights * per_byte) for s in segments)


def of_manifest(manifest: Manifest) -> Measured:
    """Its stages are the segments. Raises `PlanError`."""
    if manifest.kind is not None:
        raise PlanError(f"{manifest.kind.about} is not planned: its stages are no tensors' alone")
    shards = [shard for shard in manifest.shards if shard.stage > 0]
    if len(shards) < len(manifest.shards):
        raise PlanError("the model has edge layers already: plan for the file that it is made from")
    segments = tuple(
        Segment(
            f"stage {shard.stage}",
            max(shard.compute_ms, 1e-3),
            need_of(shard.bytes) - SESSION,
            sum(spec.nbytes for spec in shard.receives) + sum(spec.nbytes for spec in shard.sends),
            sum(spec.nbytes for spec in shard.sends),
        )
        for shard in shards
    )
    cuts = tuple(tuple(spec.name for spec in shard.sends) for shard in shards[:-1])
    arrives = sum(spec.nbytes for spec in manifest.inputs)
    return Measured(manifest.model, segments, cuts, arrives, manifest.source_sha256)


# --- what people and programs read ----------------------------------------------------------


def document_of(measured: Measured, problem: PlanningProblem, plan: FleetPlan) -> dict[str, Any]:
    """A plan's file: for people, for `swarm model split --plan`, for a drawing."""
    found = plan.prediction
    return {
        "model": measured.name,
        "source_sha256": measured.source_sha256,
        "objective": str(problem.objective),
        "latency_ms": round(found.latency_ms, 3),
        "requests_per_s": round(found.rate, 2),
        "exact": plan.gap == 0.0,
        "gap": round(plan.gap, 4),
        "cuts": [list(measured.cuts[each.start - 1]) for each in plan.ranges[1:]],
        "stages": [
            {
                "stage": number,
                "segments": [each.start + 1, each.end],
                "devices": list(each.devices),
                "compute_ms": round(ms, 3),
                "memory_mb": round(found.memory[each.devices[0]] / 1e6, 1),
            }
            for number, (each, ms) in enumerate(zip(plan.ranges, found.compute_ms, strict=True), 1)
        ],
        "crossings": [
            {
                "from": each.sender,
                "to": each.receiver,
                "bytes": each.bytes,
                "ms": round(each.ms, 3),
                "codec": each.codec,
            }
            for each in found.crossings
        ],
        "others": [_other(other.name, other.prediction, other.why) for other in plan.others],
    }


def _other(name: str, prediction: Prediction | None, why: str) -> dict[str, Any]:
    if prediction is None or prediction.lacks:
        return {"plan": name, "why": why}
    figures = {
        "latency_ms": round(prediction.latency_ms, 3),
        "requests_per_s": round(prediction.rate, 2),
    }
    return {"plan": name, **figures, "why": why}


def steps_of(document: Mapping[str, Any]) -> list[tuple[str, str, float, float]]:
    """What a request goes through: kind (`compute` or `send`), device or way, begin and end in
    milliseconds."""
    at, steps = 0.0, []
    crossings = list(document["crossings"])
    first = document["stages"][0]["devices"]
    if crossings and crossings[0]["to"] in first:
        way = crossings.pop(0)
        steps.append(("send", f"{way['from']} → {way['to']}", at, at + way["ms"]))
        at += way["ms"]
    for stage in document["stages"]:
        steps.append(("compute", stage["devices"][0], at, at + stage["compute_ms"]))
        at += stage["compute_ms"]
        if crossings:
            way = crossings.pop(0)
            steps.append(("send", f"{way['from']} → {way['to']}", at, at + way["ms"]))
            at += way["ms"]
    return steps


def _show(document: Mapping[str, Any], model: str, written: str) -> None:
    exact = "the best there is" if document["exact"] else f"within {document['gap']:.1%} of a bound"
    title = (
        f"{document['model']}: {document['latency_ms']:.1f} ms a request, "
        f"{document['requests_per_s']:.1f} requests/s; {document['objective']}, {exact}"
    )
    out.print(title, markup=False, highlight=False, soft_wrap=True)
    table = Table()
    for name in ("stage", "segments", "devices", "compute ms", "MB"):
        table.add_column(name, justify="left" if name == "devices" else "right")
    for stage in document["stages"]:
        first, last = stage["segments"]
        table.add_row(
            str(stage["stage"]),
            f"{first}-{last}",
            ", ".join(stage["devices"]),
            f"{stage['compute_ms']:.2f}",
            f"{stage['memory_mb']:.0f}",
        )
    out.print(table)
    for line in lanes(document):
        out.print(line, markup=False, highlight=False, soft_wrap=True)
    for device in document.get("devices", ()):
        out.print(device_line(device), markup=False, highlight=False, soft_wrap=True)
    for other in document["others"]:
        out.print(f"not {other['plan']}: {other['why']}", markup=False, highlight=False)
    make = "" if written else "swarm model plan … -o plan.json; "
    plan, is_file = written or "plan.json", Path(model).is_file()
    then = f"swarm model split {model if is_file else 'FILE'} --plan {plan} -o FOLDER"
    if "devices" in document:
        push = f"swarm model push {model if Path(model).is_dir() else 'FOLDER'} --plan {plan}"
        then = f"{then}; {push}" if is_file else push
    err.print(f"next: {make}{then}", markup=False, highlight=False, soft_wrap=True)


def device_line(device: Mapping[str, Any]) -> str:
    """What a node of the mesh has told, for people."""
    room = device["memory_mb"]
    link = device["link"] or {}
    ways = "".join(
        f", {link[way] * 8 / 1e6:.3g} Mbit/s {way}" for way in ("down", "up") if link.get(way)
    )
    far = f", server {link['round_trip_us'] / 1e3:.1f} ms away{ways}" if link else ""
    return f"{device['name']}: times {device['times']}" + (f", {room} MB" if room else "") + far


def lanes(document: Mapping[str, Any]) -> list[str]:
    """A request as a drawing: a lane for each device, and one for each way."""
    steps = steps_of(document)
    scale = LANE / max(steps[-1][3], 1e-9)
    wide = max(len(name) for _, name, _, _ in steps)
    lines = []
    for kind, name, begin, end in steps:
        left = round(begin * scale)
        bar = ("█" if kind == "compute" else "·") * max(1, round((end - begin) * scale))
        lines.append(f"{name:<{wide}} {' ' * left}{bar} {end - begin:.2f} ms")
    return lines


def _plot(document: Mapping[str, Any], path: str) -> None:
    """A figure: devices as lanes, stages as bars, ways as thin lines. Raises `InvalidArgument`."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InvalidArgument("--plot draws with matplotlib: pip install matplotlib") from None
    steps = steps_of(document)
    names = list(dict.fromkeys(name for kind, name, _, _ in steps if kind == "compute"))
    drawn = Figure(figsize=(8, 1.2 + 0.5 * len(names)), layout="constrained")
    axes = drawn.add_subplot()
    for kind, name, begin, end in steps:
        if kind == "compute":
            axes.barh([name], [end - begin], left=[begin], color="#2a78d6")
            axes.text((begin + end) / 2, name, f"{end - begin:.1f}", ha="center", va="center")
        else:
            ends = [each for each in name.split(" → ") if each in names]
            axes.plot([begin, end], [ends[0], ends[-1]], color="#b3541e", marker=".")
            axes.text((begin + end) / 2, ends[-1], f"{end - begin:.1f} ms", fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds of a request")
    axes.set_title(f"{document['model']}: {document['objective']}")
    try:
        drawn.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"--plot {path}: {error}") from None
