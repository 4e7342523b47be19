"""From an ONNX file to a smaller one, and a report that says whether the change pays."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from typing import Any, Literal

import numpy as np
from onnx import ModelProto

from shards.errors import ModelError
from shards.graph.graph import Graph
from shards.graph.metadata import picture_size
from shards.graph.source import PROTOBUF_LIMIT, read_model, weight_bytes
from shards.graph.tensor_types import infer_types
from shards.quantize import tools
from shards.quantize.measure import (
    Answers,
    OutputComparison,
    accuracy_of,
    answers,
    judge,
    times_by_turns,
)
from shards.samples import (
    Samples,
    read_samples,
    synthetic_samples,
)
from shards.specs import Example
from shards.split.example import WantedInputs, find_example, hints_of

# Which layers stay in floating point so that a model loses no more than allowed.


def layers_to_keep(
    layers: Sequence[str],
    most_drop: float,
    *,
    harm: Callable[[str], float],
    drop: Callable[[Sequence[str]], float],
    done: Callable[[int], None] = lambda n: None,
) -> list[str]:
    """The layers that stay in floating point, the most harmful first; all where nothing helps.

    `harm` says how far the answers move when this layer alone is quantized, `drop` how much is lost
    when all but these layers are. The layers are sorted by harm, and the shortest head of that list
    that is good enough is found by bisection: a list of n costs n calls of `harm` and log n of
    `drop`. A longer head is taken to be no worse than a shorter one; where that fails, more layers
    stay than had to, and the result is within `most_drop` all the same. `done` hears of each call.
    """
    harms: dict[str, float] = {}
    for name in layers:
        harms[name] = harm(name)
        done(1)
    order = sorted(layers, key=lambda name: -harms[name])
    fewest, enough = 1, len(order)  # nobody asks whether keeping all of them is enough
    while fewest < enough:
        middle = (fewest + enough) // 2
        lost = drop(order[:middle])
        done(1)
        if lost <= most_drop:
            enough = middle
        else:
            fewest = middle + 1
    return order[:enough]


log = logging.getLogger(__name__)

Mode = Literal["int8", "dynamic", "fp16", "weights-only"]
MODES: tuple[Mode, ...] = ("int8", "dynamic", "fp16", "weights-only")
# Below this a difference in time is taken for noise.
LEAST_SPEEDUP = 1.1
# FP16 and small weights are there to save memory; they pay unless they cost much time.
MOST_BYTES = 0.75
LEAST_SPEED = 0.8
_TIMING_S = 1.0
_RANKING_SAMPLES = 8

Tell = Callable[[str, int, int], None]
"""Told of each step: a phase's title, the work that is done in it, and its whole work."""


@dataclass(frozen=True)
class QuantizeOptions:
    """`ranges`: one of `tools.RANGES`, or "auto" for the one that costs least accuracy. `bits`: 4
    or 8, of the weights with "weights-only". `max_drop`: the loss that is allowed on the samples of
    `keep_accuracy` (see `OutputComparison.drop`)."""

    mode: Mode = "int8"
    per_channel: bool = True
    ranges: str = "auto"
    bits: int = 8
    max_drop: float = 0.01


@dataclass(frozen=True)
class QuantizeReport:
    """Bytes of the file, median milliseconds of a run with one thread, accuracy and `distance` of
    the answers (see `OutputComparison`), each before and after. `layers` multiply by stored
    weights; `float_layers` of them stay in floating point because of their loss. `tried`: the loss
    with each way of finding ranges; `skipped`: the ways that failed, and why. `judged_on`: the
    samples were those of "eval", of "calibration", or "synthetic". `gain`: whether the change pays;
    `verdict` says why, or why not."""

    mode: str
    ranges: str
    bytes_before: int
    bytes_after: int
    ms_before: float
    ms_after: float
    accuracy_before: float | None
    accuracy_after: float | None
    distance: float
    judged_on: str
    samples: int
    layers: int
    float_layers: tuple[str, ...]
    gain: bool
    verdict: str
    tried: Mapping[str, float] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The form for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class QuantizeResult:
    """The quantized model, whether it pays or not, and the report."""

    model: bytes
    report: QuantizeReport


def quantize(
    model: bytes | str | os.PathLike[str],
    *,
    calibrate: str | os.PathLike[str] | None = None,
    keep_accuracy: str | os.PathLike[str] | None = None,
    example: Mapping[str, np.ndarray] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    options: QuantizeOptions | None = None,
    tell: Tell = lambda title, done, total: None,
) -> QuantizeResult:
    """Quantize a model, given as a path or as bytes, and compare it with what it was.

    `calibrate` names the .npz file whose samples give the ranges of "int8". `keep_accuracy` names
    samples to judge with, best with `labels`: layers stay in floating point until no more than
    `max_drop` is lost on them. Without it the calibration's samples judge, or synthetic ones, like
    `example` or of these `shapes` where they are given (see `shards.split.example`).
    Raises ModelError (invalid or unsupported model or file, nothing to quantize), InputError
    (samples that do not fit the model).
    """
    chosen = options or QuantizeOptions()
    if chosen.mode == "int8" and calibrate is None:
        raise ModelError(
            "INT8 needs samples to calibrate with (--calibrate data.npz): without any, quantize "
            "the weights alone (--weights-only) or by the ranges of each run (--dynamic)"
        )
    tell("reading and preparing the model", 0, 0)
    source, _ = read_model(model)
    if weight_bytes(source) >= PROTOBUF_LIMIT:
        raise ModelError("the model has 2 GiB of weights or more: ONNX Runtime's tools need less")
    wanted = WantedInputs(example, shapes or {}, picture_size(source))
    work = _Work(source, chosen, tell, wanted)
    calibration = read_samples(calibrate, work.inputs) if calibrate is not None else None
    evaluation = read_samples(keep_accuracy, work.inputs) if keep_accuracy is not None else None
    return work.run(calibration, evaluation)


class _Work:
    """One model on its way; holds the prepared model and the right answers."""

    def __init__(
        self, source: ModelProto, options: QuantizeOptions, tell: Tell, wanted: WantedInputs
    ) -> None:
        self.options = options
        self.tell = tell
        self.before = tools.prepare(source)
        graph = Graph.of(self.before)
        types = infer_types(graph)
        self._types = [types[name] for name in graph.inputs]
        self.inputs = [kind.spec() for kind in self._types]
        self._wanted = wanted
        self._hints = hints_of(graph, types, wanted)
        products = options.mode in ("dynamic", "weights-only")
        self.base = tools.with_products(self.before) if products else self.before
        self.layers = tools.layers(self.base, ("MatMul",)) if products else tools.layers(self.base)
        if not self.layers:
            sought = "matrix products" if products else "convolutions or matrix products"
            raise ModelError(
                f"the model has no {sought} with stored weights, so --{options.mode} changes "
                "nothing; try another mode"
            )

    def run(self, calibration: Samples | None, evaluation: Samples | None) -> QuantizeResult:
        samples = evaluation or calibration or self._synthetic()
        plain = self.before.SerializeToString()
        title = "answers in floating point"
        right = answers(plain, samples, self._counter(title, len(samples)))
        if samples.labels is not None:
            accuracy_of(right, samples.labels)  # raises before the long work begins
        builds = self._builds(calibration)
        tried: dict[str, tuple[bytes, OutputComparison]] = {}
        skipped: dict[str, str] = {}
        heard = self._counter("quantizing and judging", len(builds) * len(samples))
        for name, build in builds.items():
            try:
                data = build(excluded=()).SerializeToString()
                tried[name] = data, judge(right, answers(data, samples, heard), samples.labels)
            except ModelError as error:
                skipped[name] = str(error)
                log.debug("%s failed", name, exc_info=True)
        if not tried:
            whys = [f"{name}: {why}" if name else why for name, why in skipped.items()]
            raise ModelError("; ".join(whys))
        best = min(tried, key=lambda name: (tried[name][1].drop, tried[name][1].distance))
        data, judgement = tried[best]
        kept: Sequence[str] = ()
        if evaluation is not None and judgement.drop > self.options.max_drop:
            kept = self._search(builds[best], right, samples)
            data = builds[best](excluded=kept).SerializeToString()
            judgement = judge(right, answers(data, samples), samples.labels)
        self.tell("timing both by turns", 0, 0)
        before, after = times_by_turns([plain, data], next(iter(samples)), _TIMING_S)
        origin = "eval" if evaluation else "calibration" if calibration else "synthetic"
        gain, verdict = verdict_on(
            self.options,
            speedup=before / after,
            size=len(data) / len(plain),
            layers=len(self.layers),
            kept=len(kept),
            lost=judgement.drop if evaluation is not None else None,
        )
        report = QuantizeReport(
            mode=self.options.mode,
            ranges=best if self.options.mode == "int8" else "",
            bytes_before=len(plain),
            bytes_after=len(data),
            ms_before=round(before, 4),
            ms_after=round(after, 4),
            accuracy_before=None if samples.labels is None else accuracy_of(right, samples.labels),
            accuracy_after=judgement.accuracy,
            distance=judgement.distance,
            judged_on=origin,
            samples=len(samples),
            layers=len(self.layers),
            float_layers=tuple(kept),
            gain=gain,
            verdict=verdict,
            tried={name: pair[1].drop for name, pair in tried.items()},
            skipped=skipped,
        )
        return QuantizeResult(data, report)

    def _synthetic(self) -> Samples:
        """Seeded samples of a size that the model runs with. Raises ModelError."""
        found = find_example(
            self.before.SerializeToString(), self._types, self._hints, self._wanted
        )
        if found.feeds is None:
            raise ModelError(
                f"the model runs on no synthetic input ({found.reason}): give samples by "
                "--calibrate, or one by --example"
            )
        if found.said:
            self.tell(found.said, 0, 0)
        seen = [replace(s, example=Example.of(found.feeds[s.name])) for s in self.inputs]
        return synthetic_samples(seen)

    def _builds(self, calibration: Samples | None) -> dict[str, Callable[..., ModelProto]]:
        """The ways to quantize that are to be tried, by name. Each takes `excluded`."""
        options = self.options
        if options.mode == "dynamic":
            return {"": partial(tools.dynamic, self.base, per_channel=options.per_channel)}
        if options.mode == "fp16":
            return {"": partial(tools.half, self.base)}
        if options.mode == "weights-only":
            return {"": partial(tools.weights_only, self.base, bits=options.bits)}
        assert calibration is not None
        methods = tools.RANGES if options.ranges == "auto" else (options.ranges,)
        heard = self._counter("calibrating", len(methods) * len(calibration))

        def with_ranges(method: str) -> Callable[..., ModelProto]:
            @cache
            def found() -> Any:
                return tools.ranges(self.base, calibration, method, heard)

            def build(*, excluded: Collection[str]) -> ModelProto:
                return tools.static(
                    self.base, found(), per_channel=options.per_channel, excluded=excluded
                )

            return build

        return {method: with_ranges(method) for method in methods}

    def _search(
        self, build: Callable[..., ModelProto], right: Answers, samples: Samples
    ) -> list[str]:
        few = samples.first(_RANKING_SAMPLES)
        right_few = {name: array[: len(few)] for name, array in right.items()}

        def harm(layer: str) -> float:
            others = [name for name in self.layers if name != layer]
            data = build(excluded=others).SerializeToString()
            return judge(right_few, answers(data, few), None).distance

        def drop(kept: Sequence[str]) -> float:
            data = build(excluded=kept).SerializeToString()
            return judge(right, answers(data, samples), samples.labels).drop

        trials = len(self.layers) + max(1, len(self.layers) - 1).bit_length()
        heard = self._counter("seeking the layers that stay in floating point", trials)
        return layers_to_keep(self.layers, self.options.max_drop, harm=harm, drop=drop, done=heard)

    def _counter(self, title: str, total: int) -> Callable[[int], None]:
        """A function that tells of steps in this phase, which begins now."""
        so_far = 0
        self.tell(title, 0, total)

        def heard(steps: int) -> None:
            nonlocal so_far
            so_far += steps
            self.tell(title, so_far, total)

        return heard


def verdict_on(
    options: QuantizeOptions,
    *,
    speedup: float,
    size: float,
    layers: int,
    kept: int,
    lost: float | None,
) -> tuple[bool, str]:
    """Whether the change pays, and why. `size`: bytes after / before; `lost`: None if unlimited."""
    if kept == layers:
        return False, (
            f"no gain: within a drop of {options.max_drop:g} every layer stays in floating point"
        )
    if lost is not None and lost > options.max_drop:
        return False, f"no gain: the drop is {lost:.3g}, more than {options.max_drop:g}"
    measured = f"{speedup:.2f}x as fast, {size:.2f}x the bytes"
    if options.mode in ("fp16", "weights-only"):
        if size > MOST_BYTES or speedup < LEAST_SPEED:
            return False, (
                f"no gain: {measured}; it pays from {MOST_BYTES:g}x the bytes and "
                f"{LEAST_SPEED:g}x as fast"
            )
    elif speedup < LEAST_SPEEDUP:
        return False, f"no gain: {measured}; it pays from {LEAST_SPEEDUP:g}x as fast"
    return True, measured
