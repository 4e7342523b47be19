"""Split one ONNX model into shards and a manifest: read, fuse, plan, extract, prove."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
from onnx import ModelProto

from shards.batch.follow import follow
from shards.batch.rebuild import rebuilding
from shards.errors import ModelError
from shards.graph.fuse import fuse, fuse_on_disk
from shards.graph.graph import SIGMOID, SOFTMAX, Graph, keep_outputs, made_by
from shards.graph.layer_range import LayerRange, extract, layer_range
from shards.graph.metadata import picture_size
from shards.graph.source import PROTOBUF_LIMIT, read_model, weight_bytes
from shards.graph.tensor_types import TensorType, infer_sizes, infer_types
from shards.manifest import LighterModel, Manifest, Shard, check_token, sha256
from shards.parts import Addition, ModelHints, ModelKind, ModelWithAddition, kinds
from shards.runtimes.ort import Beside, make_session
from shards.runtimes.synthetic import TOLERANCE, TOLERANCE_HALF, TOLERANCE_QUANTIZED
from shards.specs import Example, TensorSpec
from shards.split.balance import LINK_BYTES_PER_MS
from shards.split.batching import TOLERANCE as BATCH_TOLERANCE
from shards.split.batching import check_mode, judge
from shards.split.check import CheckReport, check_split
from shards.split.example import WantedInputs, find_example, hints_of
from shards.split.on_disk import Files, open_large
from shards.split.plan import CutOptions, SplitPlan, plan_cuts
from shards.split.profile import run_chain


def known_ends(known: Sequence[Manifest], digest: str, stages: int | None) -> list[int]:
    """Where the stages of the first of these versions end that is of the same file and has as many
    stages: in layers of the graph, or in what its kind counts; empty where none is so."""
    for manifest in known:
        if manifest.source_sha256 == digest and manifest.stages == stages:
            if manifest.kind is not None:
                return manifest.kind.stage_ends(manifest)
            return [shard.end for shard in manifest.shards]
    return []


@dataclass(frozen=True)
class SplitResult:
    """A manifest, its files by name, and notes for the caller about the split. whole_ms: median
    milliseconds of the whole model, 0.0 where they were not asked for or could not be measured."""

    manifest: Manifest
    files: Mapping[str, bytes]
    notes: tuple[str, ...] = ()
    whole_ms: float = 0.0


def split(
    model: bytes | str | os.PathLike[str],
    *,
    name: str,
    stages: int | None = None,
    cuts: Sequence[Sequence[str] | str] | None = None,
    edge_layers: int | None = None,
    edge_cut: str | None = None,
    version: str = "1",
    lighter: bytes | None = None,
    profile: bool = True,
    example: Mapping[str, np.ndarray] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    outputs: Sequence[str] = (),
    bandwidth: float = LINK_BYTES_PER_MS,
    created: str | None = None,
    hints: ModelHints | None = None,
    addition: Addition | None = None,
    time_whole: bool = False,
    batch: str = "auto",
    known: Sequence[Manifest] = (),
) -> SplitResult:
    """Split a model, given as a path or as bytes, into `stages` shards of equal measured time.

    `cuts` names the cuts instead. Each cut is a tensor (or several) of the fused graph and lies
    right after it; all tensors that are alive there cross. `edge_layers` or `edge_cut` set apart a
    stage 0 for the edge; `edge_layers` moves to the nearest sensible cut, and a note says so.
    `lighter` is a whole model with the same outputs, for degraded answers. `profile=False` balances
    by estimated work instead of measured times. `example` is one input of batch 1 that the split is
    timed and proved with, or of many rows, the first of which is taken. `shapes` gives shapes of
    inputs alone. Without them sizes that the model leaves open are chosen as a person would (see
    `shards.split.example`), and `extra["example"]` says which. `outputs` are the tensors that the
    model answers with, instead of all its outputs; what only others need is left out. `bandwidth`
    is the link's, in bytes per millisecond: the bytes of a cut count as time of the stage that
    sends them. `created` is an RFC 3339 time, now by default. `addition` is made before anything is
    cut, such as a task with its arithmetic. `time_whole` times the whole model beside its parts.
    `batch` says whether requests may share a run: "auto" where the graph's structure shows that
    rows stay apart, "on" by your word, "off" never; runs confirm both. `known` are versions that
    were split before: where one is of the same file, and has as many stages, its cuts are taken, so
    that the same options give the same version whatever is measured.

    A model of a kind of its own (`shards.parts.ModelKind`) is split as that kind does it; `hints`
    tell about it what its graph does not. `lighter` and `example` do not go with it.

    Before this returns, the shards are compared with the whole model at the same optimisation
    level. Any deviation is told in a note. Raises ModelError (invalid or unsupported model, or a
    deviation above the model's tolerance), SplitError (cannot be split as asked), ManifestError
    (name or version is no token), and what the addition raises.
    """
    check_token("model name", name)
    check_token("model version", version)
    check_mode(batch)
    source, digest, folder = _read(model, wants_all=addition is not None)
    disk = None if folder is None else Files()
    ends = known_ends(known, digest, stages)
    options = CutOptions(stages, cuts, edge_layers, edge_cut, profile, bandwidth, ends)
    created = created or datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    if (kind := _kind_of(source)) is not None:
        if lighter is not None or example or shapes or outputs or addition is not None:
            raise ModelError(
                f"{kind.about} is split without a lighter model, an example, shapes, --outputs "
                "and additions (--task)"
            )
        if batch != "auto":
            raise ModelError(f"{kind.about} shares runs by a proof of its own: leave --batch out")
        made = kind.split(
            source,
            digest,
            name=name,
            version=version,
            created=created,
            options=options,
            hints=hints,
        )
        return SplitResult(*made)
    if hints is not None and hints.misfit:
        raise ModelError(hints.misfit)
    if outputs:
        keep_outputs(source, outputs)
    added = (
        ModelWithAddition(source, lighter, {})
        if addition is None
        else addition.add(source, lighter)
    )
    source, lighter, added_parts, added_notes = added.model, added.lighter, added.parts, added.notes
    del added
    wanted = WantedInputs(example, shapes or {}, picture_size(source))
    graph = _fused(source, folder, disk)
    del source
    types = infer_types(graph)
    _check_crossing(graph, types)
    followed = follow(graph, types)
    graph = rebuilding(graph, followed, types)
    lighter_file = _check_lighter(lighter, graph, types)
    whole = _whole(graph, types)
    found = find_example(
        whole, [types[n] for n in graph.inputs], hints_of(graph, types, wanted), wanted
    )
    feeds, sizes = found.feeds, types
    if feeds is not None:
        sizes = infer_sizes(graph, types, {key: array.shape for key, array in feeds.items()})
    whole_rows = None if followed.why else lambda name: not followed.crosses(name)
    plan = plan_cuts(graph, types, options, sizes=sizes, feeds=feeds, whole_rows=whole_rows)
    parts = [(part, extract(graph, part, types)) for part in _layer_ranges(graph, plan)]
    tolerance = _tolerance(graph, types)
    if feeds is None:
        report = CheckReport(
            [0.0] * len(parts),
            notes=[
                "not timed and not proved: no input was found that the model runs on "
                f"({found.reason}). Give one with --example FILE.npz"
            ],
        )
    else:
        report = check_split(
            whole, parts, feeds, tolerance=tolerance, budget_s=1.0 if profile else 0.0
        )
    batching = judge(
        batch,
        followed,
        parts,
        types,
        feeds,
        tolerance=TOLERANCE_HALF if _is_half(types) else BATCH_TOLERANCE,
    )
    whole_ms = 0.0
    if time_whole and whole is not None and feeds is not None:
        uncut = layer_range(graph, 0, len(graph), first=True, last=True)
        [whole_ms] = run_chain([(uncut, whole)], [feeds], budget_s=1.0).times_ms
    notes = (*added_notes, *plan.notes, *report.notes)
    examples = report.examples | {
        name: _of_probabilities(report.examples[name])
        for name in made_by(graph, SIGMOID | SOFTMAX) & report.examples.keys()
    }
    specs = {
        name: replace(types[name].spec(batch=batching.by != ""), example=examples.get(name))
        for part, _ in parts
        for name in (*part.receives, *part.sends)
    }
    staged = list(enumerate(parts, start=0 if plan.edge is not None else 1))
    files: dict[str, bytes] | Files = {} if disk is None else disk
    shards = tuple(
        _shard(stage, part, _stored(files, _file_name(stage), data), specs, took)
        for (stage, (part, data)), took in zip(staged, report.times_ms, strict=True)
    )
    if lighter is not None and lighter_file is not None:
        _stored(files, lighter_file.file, lighter)
    if disk is not None:
        disk.clear_scratch()
    manifest = Manifest(
        model=name,
        version=version,
        created=created,
        source_sha256=digest,
        opset=_opset(graph.model),
        inputs=tuple(specs[n] for n in graph.inputs),
        outputs=tuple(specs[n] for n in graph.outputs),
        shards=shards,
        batching=batching,
        lighter=lighter_file,
        extra={
            # Nodes of an older version read these.
            "examples": {key: list(each.shape) for key, each in sorted(report.examples.items())},
            "example": found.said,
            "tolerance": tolerance,
            "layers": len(graph),
            "notes": list(notes),
        },
        parts=added_parts,
    )
    return SplitResult(Manifest.from_json(manifest.to_json()), files, notes, whole_ms)


def _read(
    model: bytes | str | os.PathLike[str], *, wants_all: bool
) -> tuple[ModelProto, str, Path | None]:
    """A model, its SHA-256, and the folder where its weights stay, None where they are read. Those
    of a language model, or where all are wanted, are read."""
    opened = None if wants_all or isinstance(model, bytes) else open_large(Path(model))
    if opened is None or _kind_of(opened.model) is not None:
        return *read_model(model), None
    return opened.model, opened.digest, opened.folder


def _kind_of(model: ModelProto) -> ModelKind | None:
    """None for a model of tensors alone."""
    return next((kind for kind in kinds() if kind.has(model)), None)


def _fused(source: ModelProto, folder: Path | None, disk: Files | None) -> Graph:
    if folder is None or disk is None:
        return Graph.of(fuse(source))
    return Graph.of(fuse_on_disk(source, folder, disk.scratch()), disk.scratch())


def _stored(
    files: dict[str, bytes] | Files, name: str, data: bytes | Beside | None
) -> tuple[str, int] | None:
    """Keep an artifact. Returns its SHA-256 and its bytes, None for none."""
    if data is None:
        return None
    if isinstance(files, Files):
        given = (data.model, data.folder) if isinstance(data, Beside) else (data, None)
        return files.add(name, *given)
    assert isinstance(data, bytes)
    files[name] = data
    return sha256(data), len(data)


def _layer_ranges(graph: Graph, plan: SplitPlan) -> list[LayerRange]:
    """The layers of each stage, the edge's first."""
    bounds = [0, *([] if plan.edge is None else [plan.edge]), *plan.cuts, len(graph)]
    last = len(bounds) - 2
    return [
        layer_range(graph, start, end, first=index == 0, last=index == last)
        for index, (start, end) in enumerate(pairwise(bounds))
    ]


def _whole(graph: Graph, types: Mapping[str, TensorType]) -> bytes | Beside | None:
    """The fused model as one; None if it is too large for one in memory."""
    if graph.folder is None and weight_bytes(graph.model) >= PROTOBUF_LIMIT:
        return None
    part = layer_range(graph, 0, len(graph), first=True, last=True)
    return extract(graph, part, types, limit=sys.maxsize)


def _file_name(stage: int) -> str:
    return f"stage-{stage}.onnx"


def _shard(
    stage: int,
    part: LayerRange,
    stored: tuple[str, int] | None,
    specs: Mapping[str, TensorSpec],
    compute_ms: float,
) -> Shard:
    """The manifest's entry of one stage; `stored`: SHA-256 and bytes of its file, None for a stage
    without layers."""

    def named(names: Sequence[str]) -> tuple[TensorSpec, ...]:
        return tuple(specs[n] for n in names)

    return Shard(
        stage=stage,
        start=part.start,
        end=part.end,
        file=_file_name(stage) if stored else "",
        sha256=stored[0] if stored else "",
        bytes=stored[1] if stored else 0,
        inputs=named(part.inputs),
        outputs=named(part.outputs),
        carries=part.carries,
        receives=named(part.receives),
        sends=named(part.sends),
        compute_ms=round(compute_ms, 4),
    )


def _check_crossing(graph: Graph, types: Mapping[str, TensorType]) -> None:
    """Raise ModelError for a model input or output of a type that cannot cross the mesh."""
    for title, names in (("input", graph.inputs), ("output", graph.outputs)):
        for name in names:
            if types[name].datatype is None:
                others = _crossing(graph, types)
                leave = f"--outputs {','.join(others)} leaves it out. Or cut" if others else "Cut"
                if title == "input":
                    leave = "Cut"
                raise ModelError(
                    f"{title} {types[name].refusal}. {leave} off the nodes that it belongs to, and "
                    "let clients do their part"
                )


def _crossing(graph: Graph, types: Mapping[str, TensorType]) -> list[str]:
    """The outputs that can cross the mesh; for a map of classes, as scikit-learn's classifiers
    give, the tensor that it is made of."""
    found = []
    for name in graph.outputs:
        maker = graph.nodes[graph.producer[name]] if graph.producer.get(name, -1) >= 0 else None
        made_of = maker.input[0] if maker is not None and maker.op_type == "ZipMap" else name
        if made_of in types and types[made_of].datatype:
            found.append(made_of)
    return found


def _check_lighter(
    lighter: bytes | None, graph: Graph, types: Mapping[str, TensorType]
) -> LighterModel | None:
    """The lighter model's entry in the manifest. Raises ModelError if it does not fit the model."""
    if lighter is None:
        return None
    session = make_session(lighter, level="basic")
    for title, mine, theirs in (
        ("inputs", graph.inputs, session.get_inputs()),
        ("outputs", graph.outputs, session.get_outputs()),
    ):
        wanted = {name: types[name].ort for name in mine}
        got = {arg.name: arg.type for arg in theirs}
        # The lighter model may use fewer inputs, but its answers must have all outputs.
        fits = got.items() <= wanted.items() if title == "inputs" else got == wanted
        if not fits:
            raise ModelError(f"the lighter model has the {title} {got}, the model {wanted}")
    return LighterModel("lighter.onnx", sha256(lighter), len(lighter))


def _tolerance(graph: Graph, types: Mapping[str, TensorType]) -> float:
    """The deviation that this model's self-test allows (see `shards.runtimes.synthetic`)."""
    if any(_has_few_bits(node.op_type) for node in (*graph.nodes, *graph.constant_nodes.values())):
        return TOLERANCE_QUANTIZED
    return TOLERANCE_HALF if _is_half(types) else TOLERANCE


def _of_probabilities(example: Example) -> Example:
    """With the whole range: seeded input seldom shows a detector what it is sure of."""
    low, high, *spread = example.values or (0.0, 1.0)
    return replace(example, values=(min(low, 0.0), max(high, 1.0), *spread))


def _has_few_bits(operator: str) -> bool:
    """Whether an operator is of a quantized model. With weights alone in few bits a runtime may
    also round what they are multiplied with."""
    return "quantize" in operator.lower() or any(
        each in operator for each in ("QLinear", "Integer", "NBits")
    )


def _is_half(types: Mapping[str, TensorType]) -> bool:
    """Whether the model computes in half precision."""
    return any(kind.datatype in ("FP16", None) for kind in types.values())


def _opset(model: ModelProto) -> int:
    versions = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    if not versions:
        raise ModelError("the model does not say which operator set it uses")
    return int(versions[0])
