"""Labelled samples by both ways of a `choose`: measured, judged, timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from shards.compose.check import ModelSignature
from shards.compose.composition import ChoosePart, Composition, Ref
from shards.compose.errors import CompositionError
from shards.compose.fit import ChoiceScores
from shards.compose.run import AskModel, Ran, run
from shards.samples import Samples

_BY = "\0by"  # no output that an owner writes has this name


def choice(composition: Composition, name: str = "") -> ChoosePart:
    """The `choose` of a name, or the only one. Raises CompositionError."""
    found = {p.name: p for p in composition.parts.values() if isinstance(p, ChoosePart)}
    if name and name in found:
        return found[name]
    if not name and len(found) == 1:
        return next(iter(found.values()))
    raise CompositionError(
        name, f"name the `choose` to fit by --part: there are {', '.join(found) or 'none'}"
    )


def judged_output(composition: Composition, name: str = "") -> str:
    """The output of a name, or the only one. Raises CompositionError."""
    if name in composition.outputs:
        return name
    if not name and len(composition.outputs) == 1:
        return next(iter(composition.outputs))
    raise CompositionError(
        "", f"name the output to judge by --judge: there are {', '.join(composition.outputs)}"
    )


async def both_ways(
    composition: Composition,
    models: Mapping[str, ModelSignature],
    samples: Samples,
    ask: AskModel,
    *,
    part: ChoosePart,
    output: str,
    progress: Callable[[int], None] = lambda done: None,
) -> ChoiceScores:
    """Run each sample by each way, in turns and one at a time; a way's cost is the median.

    samples: with labels. output: is judged, a label or scores with one class a place of its last
    axis. The rest is as of `shards.compose.run.run`, whose errors are raised, too.
    """
    assert samples.labels is not None
    ways = [_always(composition, part, taken) for taken in (part.then, part.otherwise)]
    count = len(samples)
    measured, right = np.zeros(count), np.zeros((2, count), bool)
    took: tuple[list[float], list[float]] = ([], [])
    for place, inputs in enumerate(samples):
        # Who is asked first after a pause waits longer.
        for way in (0, 1) if place % 2 else (1, 0):
            if not place:
                await run(ways[way], models, inputs, ask)  # to warm up
            began = time.perf_counter()
            ran = await run(ways[way], models, inputs, ask)
            took[way].append((time.perf_counter() - began) * 1e3)
            _all_answered(ran)
            right[way, place] = _label(ran.outputs[output], output) == samples.labels[place]
            measured[place] = part.condition.of(ran.outputs[_BY])
        progress(place + 1)
    then_ms, otherwise_ms = (statistics.median(each) for each in took)
    return ChoiceScores(measured, right[0], right[1], then_ms, otherwise_ms)


def _always(composition: Composition, part: ChoosePart, taken: str) -> Composition:
    """The same where one way is always taken, with the tensor of the choice as an output."""
    fixed = replace(part, then=taken, otherwise=taken)
    outputs: dict[str, Ref] = {**composition.outputs, _BY: part.by}
    return replace(composition, parts={**composition.parts, part.name: fixed}, outputs=outputs)


def _all_answered(ran: Ran) -> None:
    for name, part in ran.parts.items():
        if part.left_out:
            raise CompositionError(name, f"it was left out, so this is not judged: {part.left_out}")


def _label(array: np.ndarray, output: str) -> int:
    """The class that one sample's output says. Raises CompositionError."""
    labels = array.argmax(axis=-1) if array.ndim and array.dtype.kind == "f" else array
    if labels.size != 1 or labels.dtype.kind not in "iu":
        raise CompositionError(
            "", f"output {output!r} says no class of one sample: {array.dtype}{list(array.shape)}"
        )
    return int(labels.reshape(-1)[0])
