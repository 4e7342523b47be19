"""What the codecs that a model's owner allows do to its outputs, measured on samples."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from shards.manifest import CodecError, Manifest
from shards.runtimes.load import StageRuntime, load_stage
from shards.runtimes.synthetic import random_feeds
from swarm.errors import InvalidArgument
from swarm.wire import codecs
from swarm.wire.codecs import CODECS
from swarm.wire.tensors import CODED_FROM

SYNTHETIC = 4  # samples where the owner gives none
MOST_SAMPLES = 64  # of a file, from its start

Tensors = dict[str, np.ndarray]


@dataclass(frozen=True)
class AllowedCodecs:
    """What the options of `swarm model push` say. features, results: lossy codecs that the owner
    allows for these, separated by commas. samples: an .npz file with an array for each input, ""
    for seeded values."""

    features: str = ""
    results: str = ""
    samples: str = ""

    def for_features(self) -> tuple[str, ...]:
        """Names of `CODECS`. Raises `InvalidArgument`."""
        return _codecs_of(self.features, "--allow-codec")

    def for_results(self) -> tuple[str, ...]:
        """Names of `CODECS`. Raises `InvalidArgument`."""
        return _codecs_of(self.results, "--allow-result-codec")


def _codecs_of(text: str, option: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))
    for name in names:
        if name not in CODECS:
            known = ", ".join(CODECS)
            raise InvalidArgument(f"{option} {name!r}: it is one of {known}, or several")
    return names


async def with_codecs(manifest: Manifest, folder: str, allowed: AllowedCodecs) -> Manifest:
    """The manifest that allows these codecs, with the error of each.

    Raises `InvalidArgument` for a codec that does not exist, `ShardsError` for samples that do not
    fit, or a model that cannot be run here.
    """
    if not (allowed.for_features() or allowed.for_results()):
        return manifest
    return await asyncio.to_thread(_measured, manifest, Path(folder), allowed)


def _measured(manifest: Manifest, folder: Path, allowed: AllowedCodecs) -> Manifest:
    feeds = list(_feeds(manifest, allowed.samples))
    stages = [
        load_stage(manifest, shard.stage, lambda name: folder / name) for shard in manifest.shards
    ]
    try:
        features = {name: LossyCodecs(features=name) for name in allowed.for_features()}
        results = {name: LossyCodecs(results=name) for name in allowed.for_results()}
        errors = errors_of(stages, feeds, {*features.values(), *results.values()})
    finally:
        for stage in stages:
            stage.close()
    return replace(
        manifest,
        codecs={name: errors[each] for name, each in features.items()} or manifest.codecs,
        result_codecs={name: errors[each] for name, each in results.items()}
        or manifest.result_codecs,
    )


def _feeds(manifest: Manifest, samples: str) -> Iterator[Tensors]:
    if samples:
        from shards.samples import read_samples  # only the splitter's side has its needs

        yield from read_samples(samples, manifest.inputs).first(MOST_SAMPLES)
        return
    examples = manifest.extra.get("examples")
    for seed in range(SYNTHETIC):
        yield random_feeds(manifest.inputs, examples, seed=seed)


@dataclass(frozen=True)
class LossyCodecs:
    """The lossy codecs of what crosses the wire, "" for the exact values."""

    features: str = ""
    results: str = ""


EXACT = LossyCodecs()


@dataclass
class _Sums:
    """Over the outputs of all samples."""

    largest: float = 0.0
    worst: float = 0.0
    total: float = 0.0
    count: int = 0
    samples: int = 0

    def add(self, exact: Tensors, coded: Tensors) -> None:
        self.samples += 1
        for name, array in exact.items():
            if array.dtype.kind != "f" or not array.size:
                continue
            apart = np.abs(coded[name].astype(np.float64) - array)
            self.largest = max(self.largest, float(np.abs(array).max()))
            self.worst = max(self.worst, float(apart.max()))
            self.total += float(apart.sum())
            self.count += apart.size

    def error(self) -> CodecError:
        scale = self.largest or 1.0
        return CodecError(self.worst / scale, self.total / max(self.count, 1) / scale, self.samples)


def errors_of(
    stages: Sequence[StageRuntime], feeds: Iterable[Tensors], crossings: Collection[LossyCodecs]
) -> dict[LossyCodecs, CodecError]:
    """The model's outputs with all that crosses a cut, and the inputs and results, in these codecs,
    against the exact ones, which are computed once for all codecs."""
    sums = {crossing: _Sums() for crossing in crossings}
    for feed in feeds:
        exact = _run(stages, feed, EXACT)
        for crossing, each in sums.items():
            each.add(exact, _run(stages, feed, crossing))
    return {crossing: each.error() for crossing, each in sums.items()}


def _run(
    stages: Sequence[StageRuntime], feed: Mapping[str, np.ndarray], crossing: LossyCodecs
) -> Tensors:
    outputs = frozenset(spec.name for spec in stages[-1].shard.sends)
    tensors = dict(feed)
    for stage in stages:
        if stage.shard.stage > 0:  # what the edge's own layers get crosses no wire
            tensors = _across(tensors, outputs, crossing)
        tensors = stage.run(tensors)
    return _across(tensors, outputs, crossing)


def _across(
    tensors: Mapping[str, np.ndarray], outputs: frozenset[str], crossing: LossyCodecs
) -> Tensors:
    """The tensors as the next one reads them. outputs: the names of results."""
    read: Tensors = {}
    for name, array in tensors.items():
        codec = crossing.results if name in outputs else crossing.features
        data = codecs.encode(array, codec) if codec and array.nbytes >= CODED_FROM else None
        read[name] = array if data is None else codecs.decode(data, codec, array.shape)
    return read


def codecs_lines(manifest: Manifest) -> list[str]:
    """The codecs that a version allows, with their errors, in lines for people."""
    found = {"features": manifest.codecs, "results": manifest.result_codecs}
    return [
        f"{name} is allowed for {what}: outputs off by {error.max:.2g} at most, {error.mean:.2g} "
        f"on average, of the largest output ({error.samples} samples)"
        for what, errors in found.items()
        for name, error in errors.items()
    ]
