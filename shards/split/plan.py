"""Turn the caller's options (stages, cuts, edge layers) into cut positions in the graph."""

from __future__ import annotations

import difflib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from shards.errors import ModelError, SplitError
from shards.graph.cuts import (
    cut_bytes,
    nearest_position,
    node_costs,
    sensible_cuts,
    thin_out,
    why_no_cuts,
)
from shards.graph.graph import Graph
from shards.graph.source import weight_bytes
from shards.graph.tensor_types import TensorType
from shards.split.balance import LINK_BYTES_PER_MS, balance
from shards.split.profile import time_segments, time_stages
from shards.split.refine import refine

log = logging.getLogger(__name__)

# Candidate cuts whose segments are timed. More need more sessions, and balance no better.
MOST_CANDIDATES = 40
# Mean milliseconds of a stage. Shorter stages are not timed as a whole: noise would choose the cut.
SHORTEST_STAGE_TO_REFINE = 0.5
# Seconds after which no further cut is tried.
MOST_REFINING_SECONDS = 10.0
# Bytes of weights. The sessions of a larger model's stages are not held in memory all at once.
MOST_WEIGHTS_AT_ONCE = 1 << 30


@dataclass(frozen=True)
class CutOptions:
    """The caller's options; the function `split` documents them. ends: where the stages of a known
    version end, which are taken where the graph can be cut there."""

    stages: int | None = None
    cuts: Sequence[Sequence[str] | str] | None = None
    edge_layers: int | None = None
    edge_cut: str | None = None
    profile: bool = True
    bandwidth: float = LINK_BYTES_PER_MS
    ends: Sequence[int] = ()


@dataclass
class SplitPlan:
    """The chosen positions, ascending: the end of the edge's layers (or None), then the cuts.

    `notes` tell the caller about the choice.
    """

    edge: int | None
    cuts: list[int]
    notes: list[str] = field(default_factory=list)


def plan_cuts(
    graph: Graph,
    types: Mapping[str, TensorType],
    options: CutOptions,
    *,
    sizes: Mapping[str, TensorType] | None = None,
    feeds: Mapping[str, np.ndarray] | None = None,
    whole_rows: Callable[[str], bool] | None = None,
) -> SplitPlan:
    """Choose the positions.

    `whole_rows` says of a tensor that its rows are those of requests: cuts where all tensors are so
    are preferred. `sizes` are the types with concrete shapes. `feeds` is an example input, without
    which nothing is timed. Raises SplitError when the graph cannot be split as asked; its message
    says how it can.
    """
    _check(options)
    sizes = sizes or types
    if options.cuts is not None:
        return _plan_of_named_cuts(graph, types, options)
    stages = options.stages or 1
    candidates = _preferred(graph, sensible_cuts(graph, types), stages, options, whole_rows)
    notes: list[str] = []
    edge = _edge_end(graph, types, options, candidates, stages, notes)
    after = [position for position in candidates if position > (edge or 0)]
    if len(after) + 1 < stages:
        beyond = " after the edge's layers" if edge else ""
        raise SplitError(
            f"{stages} stages were asked for, but the graph has {len(after)} sensible "
            f"cuts{beyond}: {_possible(graph, types, len(after) + 1)}",
            possible=len(after) + 1,
        )
    if stages == 1:
        return SplitPlan(edge, [], notes)
    cuts = _known_cuts(options.ends, edge, after, len(graph), stages)
    if cuts:
        return SplitPlan(edge, cuts, notes)
    bytes_at = {position: cut_bytes(graph, sizes, position) for position in after}
    costs = node_costs(graph, sizes)
    chosen = thin_out(after, bytes_at, costs, max(MOST_CANDIDATES, 3 * stages))
    bounds = [edge or 0, *chosen, len(graph)]
    segments = _segment_times(graph, types, bounds, feeds, notes) if options.profile else None
    sends = [bytes_at[p] / options.bandwidth for p in chosen]
    if segments is not None and feeds is not None:
        measure = _stage_timer(graph, types, bounds, feeds, sum(segments) / stages)
        picked = refine(segments, sends, stages, measure)
    else:
        # A slow core does 1e6 multiply-adds a millisecond. Only the proportion to `sends` matters.
        picked = balance([sum(costs[a:b]) / 1e6 for a, b in pairwise(bounds)], sends, stages)
    return SplitPlan(edge, [chosen[index] for index in picked], notes)


def _known_cuts(
    ends: Sequence[int], edge: int | None, after: Sequence[int], layers: int, stages: int
) -> list[int]:
    """The cuts of a known version, where they are sensible ones behind the same edge; else none."""
    begin = [] if edge is None else [edge]
    cuts = list(ends[len(begin) : -1])
    fits = list(ends) == [*begin, *cuts, layers] and len(cuts) == stages - 1
    return cuts if fits and set(cuts) <= set(after) else []


def _possible(graph: Graph, types: Mapping[str, TensorType], stages: int) -> str:
    """How many stages are possible, why no more are, and what to ask for instead."""
    many = "1 stage is" if stages == 1 else f"{stages} stages are"
    why = why_no_cuts(graph, types)
    text = f"{many} possible{f' ({why})' if why else ''}. Ask for --stages {stages}"
    return text if len(graph) < 2 else f"{text}, or name tensors to cut after with --cuts"


def _preferred(
    graph: Graph,
    candidates: list[int],
    stages: int,
    options: CutOptions,
    whole_rows: Callable[[str], bool] | None,
) -> list[int]:
    """The candidates where all tensors have the rows of requests, where they are enough."""
    if whole_rows is None:
        return candidates
    good = [p for p in candidates if all(whole_rows(name) for name in graph.live[p])]
    return good if len(good) >= stages - 1 + bool(options.edge_layers) else candidates


def _check(options: CutOptions) -> None:
    """Raise SplitError for options that contradict each other."""
    if options.stages is not None and options.stages < 1:
        raise SplitError(f"at least one stage is needed, not {options.stages}")
    if options.cuts is not None and options.stages not in (None, len(options.cuts) + 1):
        raise SplitError(
            f"{len(options.cuts)} cuts make {len(options.cuts) + 1} stages, not {options.stages}: "
            "give either cuts or stages"
        )
    if options.edge_layers is not None and options.edge_cut is not None:
        raise SplitError("give either edge_layers or edge_cut, not both")
    if options.edge_layers is not None and options.edge_layers < 0:
        raise SplitError(f"edge_layers counts layers, and cannot be {options.edge_layers}")


def _edge_end(
    graph: Graph,
    types: Mapping[str, TensorType],
    options: CutOptions,
    candidates: Sequence[int],
    stages: int,
    notes: list[str],
) -> int | None:
    """The position where the edge's layers end; None without an edge. Raises SplitError."""
    if options.edge_cut is not None:
        return _position_after(graph, types, options.edge_cut)
    if not options.edge_layers:
        return None
    # The stages behind the edge need the last candidates for their own cuts.
    usable = candidates[: len(candidates) - (stages - 1)] if stages > 1 else candidates
    found = nearest_position(usable, options.edge_layers)
    if found is None:
        raise SplitError(
            f"the graph has {len(candidates)} sensible cuts, too few for an edge and {stages} "
            f"stages: {max(0, len(candidates))} stages are possible behind an edge",
            possible=max(0, len(candidates)),
        )
    if found != options.edge_layers:
        _note(
            notes,
            f"edge_layers {options.edge_layers} moved to {found}, the nearest place to cut well",
        )
    return found


def _plan_of_named_cuts(
    graph: Graph, types: Mapping[str, TensorType], options: CutOptions
) -> SplitPlan:
    """The plan for cuts that the caller named by tensors. Raises SplitError."""
    notes: list[str] = []
    cuts = sorted(_position_after(graph, types, cut) for cut in options.cuts or ())
    if len(set(cuts)) != len(cuts):
        raise SplitError("two of the cuts lie at the same place: each must be after the one before")
    sensible = sensible_cuts(graph, types)
    edge: int | None = None
    if options.edge_cut is not None:
        edge = _position_after(graph, types, options.edge_cut)
    elif options.edge_layers:
        before_cuts = [p for p in sensible if not cuts or p < cuts[0]]
        edge = _edge_end(graph, types, options, before_cuts, 1, notes)
    if edge is not None and cuts and edge >= cuts[0]:
        raise SplitError("the edge's layers must end before the first cut")
    for position in cuts:
        if 0 < position < len(graph) and position not in sensible:
            _note(
                notes, f"the cut at layer {position} tears operators apart that run faster as one"
            )
    return SplitPlan(edge, cuts, notes)


def _position_after(graph: Graph, types: Mapping[str, TensorType], cut: Sequence[str] | str) -> int:
    """The first position at which all named tensors exist. Raises SplitError."""
    names = [cut] if isinstance(cut, str) else list(cut)
    if not names:
        raise SplitError("a cut names at least one tensor")
    for name in names:
        if graph.is_constant(name):
            raise SplitError(f"{name!r} is a constant: it is copied into shards, not sent")
        if name not in graph.producer:
            close = difflib.get_close_matches(name, graph.producer, n=3, cutoff=0.5)
            hint = f"; close names: {', '.join(close)}" if close else ""
            raise SplitError(
                f"no tensor {name!r} in the fused graph (fusing removes the ones inside "
                f"Conv+BatchNormalization and the like{hint})"
            )
    position = max(graph.position_after(name) for name in names)
    for name in graph.live[position]:
        if types[name].datatype is None:
            raise SplitError(
                f"cutting after {', '.join(names)} would send {name!r}, a {types[name].ort}, which "
                "cannot cross the mesh: cut elsewhere"
            )
    return position


def _segment_times(
    graph: Graph,
    types: Mapping[str, TensorType],
    bounds: Sequence[int],
    feeds: Mapping[str, np.ndarray] | None,
    notes: list[str],
) -> list[float] | None:
    """Milliseconds of each segment between neighbouring bounds; None if they cannot be timed."""
    if feeds is None:
        return None
    try:
        return time_segments(graph, types, bounds, feeds)
    except ModelError as error:
        _note(notes, f"balanced by estimated work, because timing failed: {error}")
        return None


def _stage_timer(
    graph: Graph,
    types: Mapping[str, TensorType],
    bounds: Sequence[int],
    feeds: Mapping[str, np.ndarray],
    mean_ms: float,
) -> Callable[[Sequence[int]], list[float] | None]:
    """A function that times the stages between chosen bounds, for `refine`.

    It gives None where a measurement is not worth its time: for stages of a short mean time, after
    `MOST_REFINING_SECONDS`, and for stages that do not run.
    """
    until = time.monotonic() + MOST_REFINING_SECONDS
    # `time_stages` holds all weights in sessions at once, `time_segments` one session at a time.
    together = weight_bytes(graph.model) < MOST_WEIGHTS_AT_ONCE
    timer = time_stages if together else time_segments

    def measure(picked: Sequence[int]) -> list[float] | None:
        if mean_ms < SHORTEST_STAGE_TO_REFINE or time.monotonic() > until:
            return None
        ends = [bounds[0], *(bounds[boundary + 1] for boundary in picked), bounds[-1]]
        try:
            return timer(graph, types, ends, feeds, budget_s=1.0)
        except ModelError as error:
            log.info("the stages cannot be timed, so the cuts go by segments: %s", error)
            return None

    return measure


def _note(notes: list[str], text: str) -> None:
    """Tell the caller by the log and by the notes of the result."""
    log.warning("%s", text)
    notes.append(text)
