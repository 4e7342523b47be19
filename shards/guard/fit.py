"""A guard is made of calibration data: inputs that the model is meant for.

A half of the samples, drawn by chance, gives the mean and the covariance of each view; a quarter
the scale of its distances; the last quarter the threshold, by split conformal prediction
(H. Papadopoulos et al., 2002; A. Angelopoulos and S. Bates, "A Gentle Introduction to Conformal
Prediction", 2021). Of n held-out scores the threshold is the ceil((n + 1)(1 - a))-th smallest: a
further sample of the same kind is above it with a chance of `a` at most, whatever the
distribution is, as long as all of them could come in any order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from shards.errors import ModelError
from shards.guard.distance import distances, fitted
from shards.guard.part import PART
from shards.guard.reference import MOST_VIEWS, FittedView, GuardReference
from shards.guard.summary import CELLS, LEVELS, TensorView, view_of
from shards.guard.told import ToldGuard
from shards.runtimes.load import Fetch, load_stage
from shards.samples import Samples
from shards.schema import Manifest

LEAST_RATE, MOST_RATE = 1e-4, 0.5
LEAST = 1e-9  # of a distance that others are divided by
Tensors = Mapping[str, np.ndarray]


def samples_needed(false_alarms: float) -> int:
    """So many samples calibrate this rate."""
    return 4 * math.ceil(1 / false_alarms)


def first_stage(manifest: Manifest, fetch: Fetch) -> Callable[[Tensors], Tensors]:
    """What stage 1 receives and sends for a model's inputs. Raises ShardsError."""
    numbers = [shard.stage for shard in manifest.shards if shard.stage <= 1]
    stages = [load_stage(manifest, number, fetch) for number in numbers]

    def run(inputs: Tensors) -> Tensors:
        received, sent = inputs, inputs
        for stage in stages:
            received, sent = sent, stage.run(sent)
        return {**received, **sent}

    return run


def guarded(
    manifest: Manifest,
    fetch: Fetch,
    samples: Samples,
    *,
    false_alarms: float = 0.01,
    refuse: bool = False,
) -> tuple[Manifest, GuardReference]:
    """A version with a guard of these samples, in the place of the one that it had. The artifact
    is the reference's bytes. Raises ModelError for samples that do not do, ShardsError."""
    if not LEAST_RATE <= false_alarms <= MOST_RATE:
        raise ModelError(f"--false-alarms {false_alarms:g}: {LEAST_RATE:g} to {MOST_RATE:g}")
    if len(samples) < samples_needed(false_alarms):
        raise ModelError(
            f"{len(samples)} samples cannot calibrate a false-alarm rate of {false_alarms:g}: it "
            f"takes {samples_needed(false_alarms)}"
        )
    run = first_stage(manifest, fetch)
    rows: list[list[np.ndarray]] = []
    views: list[TensorView] = []
    for feed in samples:
        tensors = run(feed)
        views = views or _views(manifest, tensors)
        with np.errstate(all="ignore"):
            rows.append([view.summary(tensors[view.tensor])[0] for view in views])
    seen = [np.stack(each) for each in zip(*rows, strict=True)]
    reference = _reference(views, seen, false_alarms)
    told = ToldGuard(tuple(views), false_alarms, len(samples), refuse)
    part = told.to_dict(reference.to_bytes())
    return replace(manifest, parts={**manifest.parts, PART.field: part}), reference


def _views(manifest: Manifest, tensors: Tensors) -> list[TensorView]:
    """Raises ModelError for a stage without numbers."""
    shard = manifest.shard(1)
    received = [(spec, way) for spec in shard.receives for way in (LEVELS, CELLS)]
    passed = {spec.name for spec in shard.receives}
    sent = [(spec, LEVELS) for spec in shard.sends if spec.name not in passed]
    views = [
        view_of(spec, way, manifest.batchable, tensors[spec.name])
        for spec, way in (*received, *sent)
        if tensors[spec.name].size
    ]
    if not views:
        raise ModelError("stage 1 of this model has no tensor that a guard can look at")
    return views[:MOST_VIEWS]


def _reference(
    views: Sequence[TensorView], seen: Sequence[np.ndarray], false_alarms: float
) -> GuardReference:
    """seen: float64 [samples, size] of each view."""
    count = len(seen[0])
    order = np.random.default_rng(0).permutation(count)
    fit, scale, held = np.split(order, [count // 2, count - count // 4])
    if not any(rows.std(axis=0).any() for rows in seen):
        raise ModelError("all samples are alike: they say nothing of what is usual")
    made, shares = [], []
    for view, rows in zip(views, seen, strict=True):
        if not np.isfinite(rows).all():
            bad = int(np.argmin(np.isfinite(rows).all(axis=1)))
            raise ModelError(f"sample {bad}: {view.tensor!r} of stage 1 has no finite values")
        mean, whitening = fitted(rows[fit])
        usual = float(np.quantile(distances(rows[scale], mean, whitening), 1 - false_alarms))
        made.append(FittedView(view, max(usual, LEAST), mean, whitening))
        shares.append(distances(rows[held], mean, whitening) / made[-1].scale)
    scores = np.sort(np.max(shares, axis=0))
    place = min(math.ceil((len(scores) + 1) * (1 - false_alarms)), len(scores))
    threshold = max(float(scores[place - 1]), LEAST)
    return GuardReference(tuple(replace(each, scale=each.scale * threshold) for each in made))
