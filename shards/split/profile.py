"""Run a graph part by part: the time of each part, and the tensors that cross between parts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from shards.errors import ModelError
from shards.graph.graph import Graph
from shards.graph.layer_range import LayerRange, extract, layer_range
from shards.graph.tensor_types import TensorType
from shards.runtimes.ort import Level, Model, make_session
from shards.runtimes.ort_errors import reason_of
from shards.specs import Example

Tensors = Mapping[str, np.ndarray]

# Rounds of timing. Parts that take microseconds need no more for a good median.
MOST_TIMING_ROUNDS = 50


@dataclass
class ChainRun:
    """The times and tensors of one run through all parts.

    `times_ms[i]` is the median time of part i, 0 where nothing was timed. `sent[i]` holds the
    tensors that left part i, for each set of feeds. `examples` has every tensor that
    entered or left a part, for the first set of feeds.
    """

    times_ms: list[float] = field(default_factory=list)
    sent: list[list[dict[str, np.ndarray]]] = field(default_factory=list)
    examples: dict[str, Example] = field(default_factory=dict)


def run_chain(
    parts: Sequence[tuple[LayerRange, Model | None]],
    feeds: Sequence[Tensors],
    *,
    level: Level = "all",
    budget_s: float = 0.0,
) -> ChainRun:
    """Run the parts one after the other, each on the tensors that the part before it sent.

    Every set of `feeds` goes through all parts. The first set is timed on one thread, for
    `budget_s` seconds in all. Only one session lives at a time. Raises ModelError when a part
    fails.
    """
    chain = ChainRun()
    current = [dict(each) for each in feeds]
    chain.examples.update({name: Example.of(array) for name, array in current[0].items()})
    for part, model in parts:
        made: list[Mapping[str, np.ndarray]] = [{} for _ in current]
        spent = 0.0
        if model is not None:
            session = make_session(model, level=level)
            try:
                runs = [_bound(session, part, each) for each in current]
                made = [dict(zip(part.outputs, run(), strict=True)) for run in runs]
                if budget_s > 0:
                    [spent] = _time_in_turn(runs[:1], budget_s / len(parts))
            except Exception as error:  # pybind raises a dozen unrelated types here
                raise ModelError(
                    f"layers [{part.start}, {part.end}) do not run: {reason_of(error)}"
                ) from error
            del session, runs
        current = [
            {name: (each if name in each else new)[name] for name in part.sends}
            for each, new in zip(current, made, strict=True)
        ]
        chain.examples.update({name: Example.of(array) for name, array in current[0].items()})
        chain.times_ms.append(spent)
        chain.sent.append(current)
    return chain


def time_segments(
    graph: Graph,
    types: Mapping[str, TensorType],
    boundaries: Sequence[int],
    feeds: Tensors,
    *,
    budget_s: float = 1.5,
) -> list[float]:
    """Median milliseconds of each segment between neighbouring boundaries, at full optimisation.

    `boundaries` ascend; `feeds` are the model's inputs. The layers before the first boundary run,
    but their time is not returned. Segments are timed one by one, for `budget_s` seconds in all,
    and only one session lives at a time. Raises ModelError.
    """
    ends = list(dict.fromkeys((0, *boundaries)))
    total: list[float] = []
    current: Tensors = feeds
    for start, end in pairwise(ends):
        # All segments at once would hold all weights once more.
        last = end == len(graph)
        part = layer_range(graph, start, end, first=start == 0, last=last)
        chain = run_chain(
            [(part, extract(graph, part, types))], [current], budget_s=budget_s / len(ends)
        )
        total.append(chain.times_ms[0])
        current = chain.sent[0][0]
    return total[1:] if boundaries[0] > 0 else total


def time_stages(
    graph: Graph,
    types: Mapping[str, TensorType],
    boundaries: Sequence[int],
    feeds: Tensors,
    *,
    budget_s: float = 1.0,
) -> list[float]:
    """Median milliseconds of each stage between neighbouring boundaries, timed in turn.

    Arguments and result are those of `time_segments`. All stages run once a round, so each finds
    the caches that the others leave, and a machine that slows down for a while slows all of them.
    All sessions live at once. Raises ModelError.
    """
    ends = list(dict.fromkeys((0, *boundaries)))
    parts = [
        layer_range(graph, start, end, first=start == 0, last=end == len(graph))
        for start, end in pairwise(ends)
    ]
    runs: dict[int, Callable[[], Any]] = {}  # by the start of the part; not of parts without layers
    current: dict[str, np.ndarray] = dict(feeds)
    try:
        for part in parts:
            model = extract(graph, part, types)
            made: Mapping[str, np.ndarray] = {}
            if model is not None:
                runs[part.start] = run = _bound(make_session(model), part, current)
                made = dict(zip(part.outputs, run(), strict=True))
            current = {name: (current if name in current else made)[name] for name in part.sends}
        took = dict(zip(runs, _time_in_turn(list(runs.values()), budget_s), strict=True))
    except ModelError:
        raise
    except Exception as error:  # pybind raises a dozen unrelated types here
        raise ModelError(f"a stage cannot be timed: {reason_of(error)}") from error
    total = [took.get(part.start, 0.0) for part in parts]
    return total[1:] if boundaries[0] > 0 else total


def _time_in_turn(runs: Sequence[Callable[[], object]], budget_s: float) -> list[float]:
    """The median time of each run in milliseconds. All run in turn until `budget_s` is spent.

    Long runs vary little, so one round is enough for them.
    """
    times: list[list[float]] = [[] for _ in runs]
    until = time.perf_counter() + budget_s
    for number in range(MOST_TIMING_ROUNDS):
        if number and time.perf_counter() > until:
            break
        for run, taken in zip(runs, times, strict=True):
            begin = time.perf_counter()
            run()
            taken.append((time.perf_counter() - begin) * 1e3)
    return [statistics.median(taken) for taken in times]


def _bound(session: Any, part: LayerRange, tensors: Tensors) -> Callable[[], Any]:
    """A function that runs the session on the part's inputs; it returns `part.outputs` in order."""
    feeds = {name: tensors[name] for name in part.inputs}
    return partial(session.run, list(part.outputs), feeds)
