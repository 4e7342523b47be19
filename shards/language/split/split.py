"""Split a language model at the ends of its layers: plan, extract, prove, describe."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from onnx import ModelProto, NodeProto

from shards.errors import ModelError, SplitError
from shards.graph.fuse import fuse
from shards.graph.source import subgraphs, tensor_bytes
from shards.language.decoder import Decoder, LanguageHints, StageStates
from shards.language.kv_growing import GrowingKv
from shards.language.kv_stage import KvStage, SharedKv, StageForm
from shards.language.split.check import check_decoder, tolerance_of
from shards.language.split.graph import (
    TOKENS,
    DecoderGraph,
    embedding_rows,
    keep_whole_states,
    read_decoder,
)
from shards.language.split.part import DecoderPart, extract_part, whole_model
from shards.manifest import Manifest, PartFile, Shard, sha256
from shards.specs import TensorSpec
from shards.split.balance import balance
from shards.split.plan import CutOptions

# Tokens of a session where neither the graph nor its folder names a bound.
DEFAULT_CONTEXT = 2048
_PROVED_SLOTS = 3
_PROVED_CONTEXT = 128
# Bytes a millisecond that a core reads weights at: only proportions matter.
_WEIGHT_BYTES_PER_MS = 1e7
_TIMED_RUNS = 5


def split_decoder(
    source: ModelProto,
    digest: str,
    *,
    name: str,
    version: str,
    created: str,
    options: CutOptions,
    hints: LanguageHints,
) -> tuple[Manifest, dict[str, bytes], tuple[str, ...]]:
    """The manifest, the files and notes of a language model's split.

    Raises ModelError and SplitError, as `shards.split.split.split` says.
    """
    if options.edge_layers or options.edge_cut:
        raise SplitError("a language model has no layers for an edge: its stages keep its sessions")
    whole_states = keep_whole_states(source)
    fused = fuse(source)
    opset = next((o.version for o in fused.opset_import if o.domain in ("", "ai.onnx")), 0)
    unchanged = ModelProto()
    unchanged.CopyFrom(fused)
    decoder = read_decoder(fused)
    notes: list[str] = []
    if whole_states:
        notes.append(
            "layers with a window keep the keys and values of all tokens: the window hides the "
            "older ones, so the answers are the export's, and the memory is that of the context"
        )
    sizes = sizes_of(decoder, hints, notes)
    bounds = [0, *_cuts(decoder, options, sizes), len(decoder.ends) + 1]
    parts = [extract_part(decoder, a, b) for a, b in pairwise(bounds)]
    shares = decoder.shares_buffers and all("mask" not in part.feeds for part, _ in parts)
    stages = [_stage(decoder, part, data, sizes, shares) for part, data in parts]
    whole = whole_model(decoder)
    raw = None if whole is None else unchanged.SerializeToString()
    try:
        report = check_decoder(whole, raw, decoder, stages)
    finally:
        for stage in stages:
            stage.close()
    notes += report.notes
    if not shares:
        notes.append(
            "each token copies its session's keys and values once, and sessions run one by one: "
            "an export with GroupQueryAttention (onnxruntime-genai's builder) does neither"
        )
    described = Decoder(
        **sizes,
        kv_datatype=kv_datatype_of(decoder),
        shares_buffers=shares,
        exact_batch=report.exact_batch,
        end_tokens=hints.end_tokens,
        stages=tuple(
            StageStates(stage, part.layers, _pairs(part), part.feeds)
            for stage, (part, _) in enumerate(parts, 1)
        ),
        files=tuple(
            PartFile(file, sha256(data), len(data)) for file, data in sorted(hints.files.items())
        ),
        proof=report.proof,
        quantized=hints.quantized,
    )
    shards = tuple(
        _shard(stage, part, data, sizes, decoder.logits, took if options.profile else 0.0)
        for stage, ((part, data), took) in enumerate(zip(parts, report.times_ms, strict=True), 1)
    )
    manifest = Manifest(
        model=name,
        version=version,
        created=created,
        source_sha256=digest,
        opset=int(opset),
        inputs=shards[0].receives,
        outputs=shards[-1].sends,
        shards=shards,
        extra={
            "tolerance": tolerance_of(decoder),
            "layers": len(decoder.graph),
            "notes": notes,
        },
        parts={"decoder": described.to_dict()},
    )
    files = {shard.file: data for shard, (_, data) in zip(shards, parts, strict=True)}
    return Manifest.from_json(manifest.to_json()), files | dict(hints.files), tuple(notes)


def sizes_of(decoder: DecoderGraph, hints: LanguageHints, notes: list[str]) -> dict[str, int]:
    """The sizes of the manifest's field. Raises ModelError where the graph leaves one open."""
    kv = decoder.types[decoder.states[0].past[0]].shape
    hidden = decoder.types[(decoder.hidden or (decoder.logits,))[0]].shape
    logits = decoder.types[decoder.logits].shape
    wanted = {"kv_heads": kv[1:2], "head_dim": kv[3:4], "vocabulary": logits[-1:]}
    wanted["width"] = hidden[-1:]
    if not hidden or not isinstance(hidden[-1], int):
        wanted["width"] = _norm_width(decoder)
    if not isinstance(wanted["head_dim"][0] if wanted["head_dim"] else None, int):
        wanted["head_dim"] = _head_dim(decoder)
    found: dict[str, int] = {}
    for key, size in wanted.items():
        if not size or not isinstance(size[0], int):
            raise ModelError(f"the graph does not say its {key}: export it with fixed sizes")
        found[key] = size[0]
    _check_vocabulary(decoder, hints, found["vocabulary"])
    tables = [
        rows
        for node in decoder.graph.nodes
        for at in {"GroupQueryAttention": (7,), "RotaryEmbedding": (1,)}.get(node.op_type, ())
        if len(node.input) > at
        for rows in _table_rows(decoder, node.input[at])
    ]
    context = min([*tables, *([hints.context] if hints.context else [])], default=0)
    if not context:
        context = DEFAULT_CONTEXT
        notes.append(f"no bound of the context was found: it is {context} tokens")
    if hints.window is not None and hints.window < context and not _has_windows(decoder):
        context = hints.window
        notes.append(
            f"the exporter's settings name a window of {context} tokens, which no layer of the "
            "graph has: sessions end there, where the answers are still the model's"
        )
    heads = next(
        (
            a.i
            for node in decoder.graph.nodes
            for a in node.attribute
            if node.op_type == "GroupQueryAttention" and a.name == "num_heads"
        ),
        hints.heads or found["width"] // found["head_dim"],
    )
    return found | {"layers": decoder.layers, "heads": int(heads), "context": int(context)}


def _check_vocabulary(decoder: DecoderGraph, hints: LanguageHints, logits: int) -> None:
    """Raise ModelError unless each id that the head can choose, and each one of the tokenizer, is a
    row of the embedding: another one would fail at the first stage, in the midst of an answer."""
    rows = min(embedding_rows(decoder.graph), default=logits)
    if rows < logits:
        raise ModelError(
            f"the model's head chooses among {logits} ids, and its embedding has {rows} rows: "
            "export the model with as many of both"
        )
    if hints.largest is not None and hints.largest[0] >= logits:
        last, token = hints.largest
        raise ModelError(
            f"the tokenizer has more ids than the model: {token!r:.80} is {last}, and the model's "
            f"ids are 0 to {logits - 1}: take the model's own tokenizer.json, or export the model "
            "with a larger table (transformers: model.resize_token_embeddings(len(tokenizer)))"
        )


def _head_dim(decoder: DecoderGraph) -> tuple[int, ...]:
    """The size of a head by what goes into the attention; empty where that is not known."""
    for node in decoder.graph.nodes:
        attributes = {a.name: a.i for a in node.attribute}
        if node.op_type == "GroupQueryAttention":
            last = decoder.types[node.input[0]].shape[-1:]
            packed = not node.input[1]
            heads = attributes["num_heads"] + 2 * packed * attributes["kv_num_heads"]
            return tuple(size // heads for size in last if isinstance(size, int))
    return ()


def _has_windows(decoder: DecoderGraph) -> bool:
    """Whether some attention looks back at some tokens only."""
    return any(
        a.name == "local_window_size" and a.i > 0 for n in decoder.graph.nodes for a in n.attribute
    )


def _norm_width(decoder: DecoderGraph) -> tuple[int, ...]:
    """The size of the hidden state by a norm that makes or reads it; empty where there is none. OPT
    reshapes its hidden states, behind which no sizes are known."""
    for node in decoder.graph.nodes:
        if "Norm" in node.op_type and decoder.hidden[0] in (*node.input[:2], *node.output[:1]):
            scales = [decoder.graph.initializers.get(name) for name in node.input[1:3]]
            return tuple(each.dims[0] for each in scales if each is not None and each.dims)[:1]
    return ()


def _table_rows(decoder: DecoderGraph, name: str) -> list[int]:
    """The positions that a table of rotary embedding has; of each branch where the length of a
    session chooses one. Sessions stay within the shortest, which is for all of their tokens then.
    """
    stored = decoder.graph.initializers.get(name)
    tables = [] if stored is None else [stored]
    for chooser in (node for node in decoder.shared if name in node.output):
        at = list(chooser.output).index(name)
        for branch in (graph for a in chooser.attribute for graph in subgraphs(a)):
            made = branch.output[at].name
            tables += [each for each in branch.initializer if each.name == made]
            tables += [
                a.t for n in branch.node if made in n.output for a in n.attribute if a.HasField("t")
            ]
    return [table.dims[0] for table in tables if table.dims]


def _cuts(decoder: DecoderGraph, options: CutOptions, sizes: dict[str, int]) -> list[int]:
    """The ends of layers that are cut at, counted from 1. Raises SplitError."""
    if options.cuts is not None:
        names = [c if isinstance(c, str) else ",".join(c) for c in options.cuts]
        for cut in names:
            if cut not in decoder.hidden:
                raise SplitError(
                    f"{cut!r} is no end of a layer; those are {', '.join(decoder.hidden)}"
                )
        places = [decoder.hidden.index(cut) + 1 for cut in names]
        if places != sorted(set(places)):
            raise SplitError("the cuts must come in the order of the layers, each once")
        return places
    stages, units = options.stages or 1, len(decoder.ends) + 1
    if stages > units:
        raise SplitError(
            f"{stages} stages were asked for, but the model has {decoder.layers} layers: "
            f"{units} stages are possible",
            possible=units,
        )
    if stages == 1:
        return []
    known = list(options.ends[:-1])
    if len(known) == stages - 1 and known == sorted({*known} & {*range(1, units)}):
        return known
    costs = _unit_costs(decoder, sizes, timed=options.profile)
    sends = [4 * sizes["width"] / options.bandwidth] * (units - 1)
    return [boundary + 1 for boundary in balance(costs, sends, stages)]


def _unit_costs(decoder: DecoderGraph, sizes: dict[str, int], *, timed: bool) -> list[float]:
    """Milliseconds of each layer, and of the head, for one token.

    Layers of equal operators and weights take equal times, so one of them is timed.
    """
    bounds = [0, *decoder.ends, len(decoder.graph)]
    known: dict[tuple[object, ...], float] = {}
    costs = []
    for unit, (start, end) in enumerate(pairwise(bounds)):
        nodes = decoder.graph.nodes[start:end]
        weights = _weights_read(decoder, nodes)
        key = (tuple(node.op_type for node in nodes), weights)
        if key not in known:
            known[key] = _timed(decoder, unit, sizes) if timed else weights / _WEIGHT_BYTES_PER_MS
        costs.append(known[key])
    return costs


def _weights_read(decoder: DecoderGraph, nodes: Sequence[NodeProto]) -> int:
    """Bytes of the weights that a token reads: all, but one row of an embedding."""
    total = 0
    for node in nodes:
        for name in node.input:
            stored = decoder.graph.initializers.get(name)
            if stored is not None:
                rows = stored.dims[0] if node.op_type == "Gather" and stored.dims else 1
                total += tensor_bytes(stored) // max(1, rows)
    return total


def _timed(decoder: DecoderGraph, unit: int, sizes: dict[str, int]) -> float:
    """The median time of one token through one layer, or the head, in milliseconds."""
    part, data = extract_part(decoder, unit, unit + 1)
    shares = decoder.shares_buffers and "mask" not in part.feeds
    stage = _stage(decoder, part, data, sizes, shares, slots=1)
    rows = (
        np.zeros((1, 1), np.int64) if stage.first else np.ones((1, 1, sizes["width"]), np.float32)
    )
    times = []
    try:
        for _ in range(1 + _TIMED_RUNS):
            begin = time.perf_counter()
            stage.run(rows, 0, np.array([0]))
            times.append((time.perf_counter() - begin) * 1e3)
    finally:
        stage.close()
    return statistics.median(times[1:])


def _stage(
    decoder: DecoderGraph,
    part: DecoderPart,
    model: bytes,
    sizes: dict[str, int],
    shares: bool,
    slots: int = _PROVED_SLOTS,
) -> KvStage:
    """A stage with little memory for sessions, to prove or time it."""
    form = StageForm(
        first=part.start == 0,
        last=part.sends == decoder.logits,
        receives=part.receives,
        sends=part.sends,
        states=_pairs(part),
        feeds=part.feeds,
        width=sizes["width"],
        vocabulary=sizes["vocabulary"],
        kv_heads=sizes["kv_heads"],
        head_dim=sizes["head_dim"],
        kv_datatype=kv_datatype_of(decoder),
    )
    context = min(sizes["context"], _PROVED_CONTEXT)
    return (SharedKv if shares else GrowingKv)(model, form, slots=slots, context=context)


def _pairs(part: DecoderPart) -> tuple[tuple[str, str], ...]:
    return tuple(pair for s in part.states for pair in zip(s.past, s.present, strict=True))


def kv_datatype_of(decoder: DecoderGraph) -> str:
    """The datatype of keys and values."""
    return decoder.types[decoder.states[0].past[0]].spec().datatype


def _shard(
    stage: int,
    part: DecoderPart,
    model: bytes,
    sizes: dict[str, int],
    logits: str,
    compute_ms: float,
) -> Shard:
    """The manifest's entry of one stage: the tensors that cross, not the states."""

    def crossing(name: str) -> TensorSpec:
        if name == TOKENS:
            return TensorSpec(name, "INT64", (-1, -1))
        last = "vocabulary" if name == logits else "width"
        return TensorSpec(name, "FP32", (-1, -1, sizes[last]))

    received, sent = (crossing(part.receives),), (crossing(part.sends),)
    return Shard(
        stage=stage,
        start=part.start,
        end=part.end,
        file=f"stage-{stage}.onnx",
        sha256=sha256(model),
        bytes=len(model),
        inputs=received,
        outputs=sent,
        carries=(),
        receives=received,
        sends=sent,
        compute_ms=round(compute_ms, 4),
    )
