"""Run a graph part by part: how long each takes, and what crosses between them."""

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
from shards.runtimes.ort import Level, make_session

Tensors = Mapping[str, np.ndarray]


@dataclass
class Trace:
    """What a chain of parts did. `times_ms[i]`: median of part i, 0 where nothing was timed.

    `sent[i]`: for each set of feeds, the tensors that left part i. `shapes`: the shape of every
    tensor that entered or left a part, for the first set of feeds.
    """

    times_ms: list[float] = field(default_factory=list)
    sent: list[list[dict[str, np.ndarray]]] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)


def run_chain(
    parts: Sequence[tuple[LayerRange, bytes | None]],
    feeds: Sequence[Tensors],
    *,
    level: Level = "all",
    budget_s: float = 0.0,
) -> Trace:
    """Run the parts one after the other, each on what the one before it sent.

    Every set of `feeds` takes the whole way; only the first is timed, for `budget_s` in all, on
    one thread. One session lives at a time. Raises ModelError when a part fails.
    """
    trace = Trace()
    current = [dict(each) for each in feeds]
    trace.shapes.update({name: array.shape for name, array in current[0].items()})
    for part, model in parts:
        made: list[Mapping[str, np.ndarray]] = [{} for _ in current]
        spent = 0.0
        if model is not None:
            session = make_session(model, level=level)
            try:
                runs = [_bound(session, part, each) for each in current]
                made = [dict(zip(part.outputs, run(), strict=True)) for run in runs]
                if budget_s > 0:
                    [spent] = _rounds(runs[:1], budget_s / len(parts))
            except Exception as error:  # pybind raises a dozen unrelated types here
                raise ModelError(
                    f"layers [{part.start}, {part.end}) do not run: {error}"
                ) from error
            del session, runs
        current = [
            {name: (each if name in each else new)[name] for name in part.sends}
            for each, new in zip(current, made, strict=True)
        ]
        trace.shapes.update({name: array.shape for name, array in current[0].items()})
        trace.times_ms.append(spent)
        trace.sent.append(current)
    return trace


def time_segments(
    graph: Graph,
    types: Mapping[str, TensorType],
    boundaries: Sequence[int],
    feeds: Tensors,
    *,
    budget_s: float = 1.5,
) -> list[float]:
    """Median milliseconds of each segment between neighbouring boundaries, at full optimisation.

    `boundaries` ascend; `feeds` are the model's inputs. What lies before the first boundary runs,
    but is not returned. Raises ModelError.
    """
    ends = list(dict.fromkeys((0, *boundaries)))
    total: list[float] = []
    current: Tensors = feeds
    for start, end in pairwise(ends):
        # Extracted one at a time: together they would hold all weights once more.
        last = end == len(graph)
        part = layer_range(graph, start, end, first=start == 0, last=last)
        trace = run_chain(
            [(part, extract(graph, part, types))], [current], budget_s=budget_s / len(ends)
        )
        total.append(trace.times_ms[0])
        current = trace.sent[0][0]
    return total[1:] if boundaries[0] > 0 else total


def time_stages(
    graph: Graph,
    types: Mapping[str, TensorType],
    boundaries: Sequence[int],
    feeds: Tensors,
    *,
    budget_s: float = 1.0,
) -> list[float]:
    """The same as `time_segments` for few long segments, each several times in turn.

    So each runs with the caches that the others leave, and what slows the machine down for a while
    slows all of them. All sessions live at once. Raises ModelError.
    """
    ends = list(dict.fromkeys((0, *boundaries)))
    parts = [
        layer_range(graph, start, end, first=start == 0, last=end == len(graph))
        for start, end in pairwise(ends)
    ]
    runs: dict[int, Callable[[], Any]] = {}  # by where the part starts; one may have no layers
    current: dict[str, np.ndarray] = dict(feeds)
    try:
        for part in parts:
            model = extract(graph, part, types)
            made: Mapping[str, np.ndarray] = {}
            if model is not None:
                runs[part.start] = run = _bound(make_session(model), part, current)
                made = dict(zip(part.outputs, run(), strict=True))
            current = {name: (current if name in current else made)[name] for name in part.sends}
        took = dict(zip(runs, _rounds(list(runs.values()), budget_s), strict=True))
    except ModelError:
        raise
    except Exception as error:  # pybind raises a dozen unrelated types here
        raise ModelError(f"a stage cannot be timed: {error}") from error
    total = [took.get(part.start, 0.0) for part in parts]
    return total[1:] if boundaries[0] > 0 else total


def _rounds(runs: Sequence[Callable[[], object]], budget_s: float) -> list[float]:
    """The median of each in milliseconds, all in turn.

    One round at least, long runs vary little; fifty at most, for parts of microseconds.
    """
    times: list[list[float]] = [[] for _ in runs]
    until = time.perf_counter() + budget_s
    for number in range(50):
        if number and time.perf_counter() > until:
            break
        for run, taken in zip(runs, times, strict=True):
            begin = time.perf_counter()
            run()
            taken.append((time.perf_counter() - begin) * 1e3)
    return [statistics.median(taken) for taken in times]


def _bound(session: Any, part: LayerRange, tensors: Tensors) -> Callable[[], Any]:
    """A run of the session on what it needs of `tensors`: `part.outputs`, in order."""
    feeds = {name: tensors[name] for name in part.inputs}
    return partial(session.run, list(part.outputs), feeds)
