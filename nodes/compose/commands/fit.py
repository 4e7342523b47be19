"""`swarm compose fit`: the threshold of a `choose`, by labelled samples."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

import swarm
from nodes.cli.command import option, seldom
from nodes.cli.options import Target
from nodes.cli.with_mesh import client_of
from nodes.compose.commands.check import CompositionFile, checked_composition, read_composition
from nodes.compose.model import signature_of
from nodes.console import duration, err, out, print_json
from nodes.extras import missing_extra
from shards.compose.both_ways import both_ways, choice, judged_output
from shards.compose.bound_text import with_bound
from shards.compose.composition import AskPart, ChoosePart, Composition
from shards.compose.fit import (
    ChoiceScores,
    CurvePoint,
    cheapest,
    curve,
    most_accurate,
    point,
    set_aside,
    wilson,
)
from shards.compose.nearest import IndexAbout, NearestIndex
from shards.compose.run import AskModel, NotAnswered, Tensors
from shards.errors import ModelError
from shards.samples import LABELS, Samples, read_samples
from swarm.errors import InvalidArgument, SwarmError

ROWS_SHOWN = 12  # of the curve


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """Of `swarm compose fit`."""

    samples: str = option(
        ...,
        "An .npz file with an array for each input of the composition, axis 0 the samples, and an "
        "array `labels`: integers.",
    )
    accuracy: float = option(
        0.0, "The accuracy to reach, such as 0.97, at the least cost.", min=0, max=1
    )
    cost: str = option("", "The mean time a request may take, such as 1.5ms.")
    output: str = option("", "Write the composition here, with its new number.", "-o", "--output")
    plot: str = option("", "Draw the curve into this .png or .svg.")
    part: str = seldom("", "The `choose` to fit; the only one when empty.")
    judge: str = seldom("", "The output that says the class; the only one when empty.")
    held_out: float = seldom(
        0.3, "The share of the samples that are not fitted on, but judged with.", min=0, max=0.9
    )
    most: int = seldom(2000, "So many samples are asked at most, drawn at random.", min=1)
    budget: str = seldom("10s", "Of each request.")


async def fit(file: CompositionFile, options: FitOptions, target: Target) -> None:
    """Fit the threshold of a cascade on labelled samples, for an accuracy or a cost."""
    if bool(options.accuracy) == bool(options.cost):
        raise InvalidArgument("give one of --accuracy 0.97 and --cost 1.5ms")
    cost_ms, budget = duration(options.cost or "0") * 1e3, duration(options.budget)
    if options.plot:
        _figure()  # what is missing is told before anything is asked
    text = await asyncio.to_thread(_text_to_change, file, options.output)
    async with client_of(target, signs=False) as client:
        found = await checked_composition(client, file)
        composition = _with_open_indexes(found.composition, Path(file).parent)
        part = choice(composition, options.part)
        judged = judged_output(found.composition, options.judge)
        samples = _some(read_samples(options.samples, found.composition.inputs), options)
        with err.status("asking …", spinner="line") as status:
            scores = await both_ways(
                composition,
                {name: signature_of(info) for name, info in found.models.items()},
                samples,
                _asks(client, budget),
                part=part,
                output=judged,
                progress=lambda done: status.update(f"{done} of {len(samples)} samples …"),
            )
    fitted_on, held = set_aside(len(samples), options.held_out)
    below = part.condition.below
    points = curve(scores.only(fitted_on), below=below)
    if options.accuracy:
        chosen = cheapest(points, options.accuracy, part.name)
    else:
        chosen = most_accurate(points, cost_ms, part.name)
    assert samples.labels is not None
    document = {
        "part": part.name,
        "judged": judged,
        "models": {name: f"{info.model}@{info.version}" for name, info in found.models.items()},
        "samples": {"fitted_on": len(fitted_on), "held_out": len(held)},
        "chosen": asdict(chosen),
        "held_out": _judged(scores.only(held), chosen, below) if len(held) else None,
        "ways": {
            name: {"accuracy": float(np.mean(right)), "ms": ms}
            for name, right, ms in (
                (part.then, scores.then, scores.then_ms),
                (part.otherwise, scores.otherwise, scores.otherwise_ms),
            )
        },
        "curve": [asdict(each) for each in points],
        "notes": _notes(scores, samples, len(held)),
    }
    if options.plot:
        _plot(points, chosen, part, options.plot)
    if options.output:
        _write(options.output, with_bound(text, part.name, chosen.threshold))
    if target.json:
        print_json(document)
    else:
        _show(document, points, chosen, part)
        if options.output:
            err.print(f"written to {options.output}; next: swarm compose build {options.output}")


def _text_to_change(file: str, output: str) -> str:
    """Raises `InvalidArgument` where there is no such text, or no place for the changed one."""
    if output and Path(output).exists():
        raise InvalidArgument(f"{output} is there already: name another file by -o")
    if not Path(output).parent.is_dir():
        raise InvalidArgument(f"-o {output}: there is no such folder")
    read_composition(file)
    return Path(file).read_text(encoding="utf-8-sig")


def _with_open_indexes(composition: Composition, folder: Path) -> Composition:
    """Raises CompositionError for an index that is none, `MissingExtra` without its library."""
    opened: dict[str, IndexAbout | NearestIndex] = {}
    for name, about in composition.indexes.items():
        assert isinstance(about, IndexAbout)
        try:
            opened[name] = NearestIndex(about, (folder / name).joinpath, name)
        except ModuleNotFoundError as error:
            raise missing_extra(error, f"index {name!r}") or error from None
    return replace(composition, indexes=opened)


def _asks(client: swarm.Mesh, budget: float) -> AskModel:
    async def ask(part: AskPart, tensors: Tensors) -> Tensors:
        name = f"{part.model}@{part.version}"
        try:
            answer = await client.infer(name, tensors, budget)
        except SwarmError as error:
            raise NotAnswered(f"part {part.name!r}, {name}: {error}") from error
        if answer.degraded:
            raise NotAnswered(f"part {part.name!r}: a lighter model answered for {name}")
        return dict(answer.outputs)

    return ask


def _some(samples: Samples, options: FitOptions) -> Samples:
    """Of many a few, at random: a file may be sorted by its labels. Raises ModelError."""
    if samples.labels is None:
        raise ModelError(
            f"{options.samples} has no array {LABELS!r}: a class, from 0 on, for each sample"
        )
    if len(samples) <= options.most:
        return samples
    drawn = np.sort(np.random.default_rng(0).permutation(len(samples))[: options.most])
    arrays = {name: array[drawn] for name, array in samples.arrays.items()}
    return Samples(arrays, samples.labels[drawn], whole=samples.whole)


def _judged(held: ChoiceScores, chosen: CurvePoint, below: bool) -> dict[str, Any]:
    found = point(held, chosen.threshold, below=below)
    low, high = wilson(found.right, len(held))
    return {"accuracy": found.accuracy, "low": low, "high": high, "share": found.share}


def _notes(scores: ChoiceScores, samples: Samples, held: int) -> list[str]:
    notes = []
    if not held:
        notes.append("no samples are held out: nothing says how the threshold does on others")
    if samples.labels is not None and len(classes := np.unique(samples.labels)) == 1:
        notes.append(f"all samples are of class {classes[0]}: of others nothing is known")
    if unknown := int(np.isnan(scores.measured).sum()):
        notes.append(f"{unknown} samples have no measure (NaN): they never go by `then`")
    if scores.then_ms <= scores.otherwise_ms:
        notes.append("`then` costs no more than `otherwise`: here a choice saves no time")
    return notes


def _show(
    document: dict[str, Any], points: Sequence[CurvePoint], chosen: CurvePoint, part: ChoosePart
) -> None:
    sign = "<" if part.condition.below else ">"
    measure = f"{part.condition.measure} of {part.by}"
    shares = np.linspace(points[0].share, points[-1].share, ROWS_SHOWN)
    shown = {int(np.argmin([abs(each.share - share) for each in points])) for share in shares}
    table = Table(f"{measure} {sign}", f"share of {part.then}", "accuracy", "ms", "")
    for number in sorted(shown | {points.index(chosen)}):
        each = points[number]
        cells = f"{each.threshold:.5g}", f"{each.share:.1%}", f"{each.accuracy:.4f}"
        mark = "chosen" if each is chosen else ""
        table.add_row(*cells, f"{each.cost_ms:.3g}", mark)
    out.print(table)
    for name, way in document["ways"].items():
        out.print(f"always {name}: accuracy {way['accuracy']:.4f}, {way['ms']:.3g} ms")
    out.print(
        f"{part.name}: {part.then} where {measure} {sign} {chosen.threshold:.6g}: accuracy "
        f"{chosen.accuracy:.4f} of {document['samples']['fitted_on']} samples, "
        f"{chosen.cost_ms:.3g} ms",
        markup=False,
        soft_wrap=True,
    )
    if held := document["held_out"]:
        out.print(
            f"on {document['samples']['held_out']} held out: accuracy {held['accuracy']:.4f} (with "
            f"95 % confidence {held['low']:.4f} to {held['high']:.4f}), {held['share']:.1%} by "
            f"{part.then}",
            markup=False,
            soft_wrap=True,
        )
    versions = ", ".join(sorted(set(document["models"].values())))
    out.print(f"fitted for {versions}; fit again for other versions", markup=False, soft_wrap=True)
    for note in document["notes"]:
        err.print(f"note: {note}", markup=False)


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(f"-o {path}: {error}") from None


def _figure() -> Any:
    """The class of figures. Raises `InvalidArgument`."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InvalidArgument(
            f"--plot needs matplotlib ({error}): pip install 'swarm-mesh[bench]'"
        ) from None
    return Figure


def _plot(points: Sequence[CurvePoint], chosen: CurvePoint, part: ChoosePart, path: str) -> None:
    """Accuracy against milliseconds, and against the share. Raises `InvalidArgument`."""
    drawn = _figure()(figsize=(8, 4), layout="constrained")
    axes = drawn.subplots(1, 2, sharey=True)
    across = {
        "mean milliseconds of a request": [each.cost_ms for each in points],
        f"share that asks {part.then}": [each.share for each in points],
    }
    of_chosen = chosen.cost_ms, chosen.share
    for one, (label, values), at in zip(axes, across.items(), of_chosen, strict=True):
        one.plot(values, [each.accuracy for each in points], color="#2a78d6")
        one.plot([at], [chosen.accuracy], "o", color="#b3541e", label=f"{chosen.threshold:.4g}")
        one.set_xlabel(label)
    axes[0].set_ylabel("accuracy on the samples")
    axes[0].legend(title="threshold", frameon=False)
    drawn.suptitle(f"{part.name}: {part.condition.measure} of {part.by}")
    try:
        drawn.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"--plot {path}: {error}") from None
