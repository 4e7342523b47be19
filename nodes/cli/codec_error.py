"""What the codecs that a model's owner allows do to its outputs, measured on samples."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
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


def codecs_of(text: str) -> tuple[str, ...]:
    """The codecs of a comma-separated list. Raises `InvalidArgument`."""
    names = tuple(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))
    for name in names:
        if name not in CODECS:
            known = ", ".join(CODECS)
            raise InvalidArgument(f"--allow-codec {name!r}: it is one of {known}, or several")
    return names


async def with_codecs(
    manifest: Manifest, folder: str, names: Sequence[str], samples: str
) -> Manifest:
    """The manifest that allows these codecs, with the error of each. samples: an .npz file with an
    array for each input, "" for seeded values.

    Raises `ShardsError` for samples that do not fit, or a model that cannot be run here.
    """
    if not names:
        return manifest
    return await asyncio.to_thread(_measured, manifest, Path(folder), names, samples)


def _measured(manifest: Manifest, folder: Path, names: Sequence[str], samples: str) -> Manifest:
    feeds = list(_feeds(manifest, samples))
    stages = [
        load_stage(manifest, shard.stage, lambda name: folder / name) for shard in manifest.shards
    ]
    try:
        errors = {name: error_of(stages, feeds, name) for name in names}
    finally:
        for stage in stages:
            stage.close()
    return replace(manifest, codecs=errors)


def _feeds(manifest: Manifest, samples: str) -> Iterator[Tensors]:
    if samples:
        from shards.quantize.samples import read_samples  # only the splitter's side has its needs

        yield from read_samples(samples, manifest.inputs).first(MOST_SAMPLES)
        return
    examples = manifest.extra.get("examples")
    for seed in range(SYNTHETIC):
        yield random_feeds(manifest.inputs, examples, seed=seed)


def error_of(stages: Sequence[StageRuntime], feeds: Iterable[Tensors], codec: str) -> CodecError:
    """The model's outputs with all that crosses a cut, and the inputs and results, in this codec,
    against the exact ones."""
    largest, worst, total, count, samples = 0.0, 0.0, 0.0, 0, 0
    for feed in feeds:
        samples += 1
        exact, coded = _run(stages, feed, ""), _run(stages, feed, codec)
        for name, array in exact.items():
            if array.dtype.kind != "f" or not array.size:
                continue
            apart = np.abs(coded[name].astype(np.float64) - array)
            largest = max(largest, float(np.abs(array).max()))
            worst = max(worst, float(apart.max()))
            total += float(apart.sum())
            count += apart.size
    scale = largest or 1.0
    return CodecError(worst / scale, total / max(count, 1) / scale, samples)


def _run(stages: Sequence[StageRuntime], feed: Mapping[str, np.ndarray], codec: str) -> Tensors:
    tensors = dict(feed)
    for stage in stages:
        if stage.shard.stage > 0:  # what the edge's own layers get crosses no wire
            tensors = _across(tensors, codec)
        tensors = stage.run(tensors)
    return _across(tensors, codec)


def _across(tensors: Mapping[str, np.ndarray], codec: str) -> Tensors:
    """The tensors as the next one reads them."""
    read: Tensors = {}
    for name, array in tensors.items():
        data = codecs.encode(array, codec) if codec and array.nbytes >= CODED_FROM else None
        read[name] = array if data is None else codecs.decode(data, codec, array.shape)
    return read
