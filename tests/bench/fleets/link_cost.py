"""Where a split pays: the time of one frame, from parts that were measured. Pure.

One frame is on its way at a time, and the result is wanted at the core. The device is `slower`
times as slow as the core. A split sends the features of a cut, whose layers before it are the
*head*, and behind it the *tail*.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np

from bench.fleets.detector import LinkModel, as_input, as_jpeg, of_jpeg
from shards.manifest import read_dir
from shards.runtimes.load import load_stage
from swarm.wire.tensors import Coding, decode_tensors, encode_coded, map_prefix


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds on the core, and bytes on the wire.

    head, tail: of the layers. coding: of encoding and decoding a cut's features together. jpeg: of
    encoding and decoding a picture together. cut, picture, result: bytes, as they are sent.
    """

    head: float
    tail: float
    coding: float
    jpeg: float
    cut: int
    picture: int
    result: int = 64


@dataclass(frozen=True, slots=True)
class Link:
    """rate: bytes a second. round_trip: seconds."""

    rate: float
    round_trip: float


def latencies(parts: Parts, link: Link, slower: float) -> dict[str, float]:
    """Seconds of a frame: `all at the edge`, `jpeg` to the core, `split`."""
    half = link.round_trip / 2
    whole = parts.head + parts.tail
    # The device does half of the coding, and the core the other half.
    both = (slower + 1) / 2
    return {
        "all at the edge": slower * whole + half + parts.result / link.rate,
        "jpeg": parts.jpeg * both + parts.picture / link.rate + half + whole,
        "split": slower * parts.head
        + parts.coding * both
        + parts.cut / link.rate
        + half
        + parts.tail,
    }


def rates(parts: Parts, link: Link, slower: float) -> dict[str, float]:
    """Frames a second with many on their way: the slowest of device, link and core decides."""
    whole = parts.head + parts.tail
    half_jpeg, half_coding = parts.jpeg / 2, parts.coding / 2
    slowest = {
        "all at the edge": max(slower * whole, parts.result / link.rate),
        "jpeg": max(slower * half_jpeg, parts.picture / link.rate, whole + half_jpeg),
        "split": max(
            slower * (parts.head + half_coding),
            parts.cut / link.rate,
            parts.tail + half_coding,
        ),
    }
    return {way: 1 / seconds for way, seconds in slowest.items()}


def quickest(parts: Parts, link: Link, slower: float) -> str:
    """The way with the least latency."""
    times = latencies(parts, link, slower)
    return min(times, key=lambda way: times[way])


def cameras_a_core(parts: Parts) -> float:
    """How many times as many cameras one core serves with a split as with pictures."""
    return (parts.head + parts.tail + parts.jpeg / 2) / (parts.tail + parts.coding / 2)


REPEATS = 15
SLOWER = (4, 8)  # devices, against the core
MBIT = 125_000.0  # bytes a second
ROUND_TRIP = 0.010  # seconds


def measure_parts(model: LinkModel, lossy: str) -> Parts:
    """Of the split with edge layers, its cut in a codec with zstd; "" for plain bytes."""
    manifest, fetch = read_dir(model.folder / "edge")
    head, tail = load_stage(manifest, 0, fetch), load_stage(manifest, 1, fetch)
    picture = np.load(model.pictures)[0]
    inputs = as_input(picture, manifest.inputs[0].name)
    features = head.run(inputs)
    coding = Coding(lossy, zstd=bool(lossy))

    def code() -> int:
        coded = b"".join([map_prefix(len(features)), *encode_coded(features, coding)])
        decode_tensors(msgpack.unpackb(coded))
        return len(coded)

    try:
        return Parts(
            head=_seconds(lambda: head.run(inputs)),
            tail=_seconds(lambda: tail.run(features)),
            coding=_seconds(code),
            jpeg=_seconds(lambda: of_jpeg(as_jpeg(picture))),
            cut=code(),
            picture=len(as_jpeg(picture)),
        )
    finally:
        head.close()
        tail.close()


def _seconds(work: Callable[[], Any]) -> float:
    """The shortest of some runs: others use the machine too."""
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def where_it_pays(model: LinkModel, codecs: tuple[str, ...]) -> dict[str, Any]:
    """The cost model's answer for devices and links: by the codec of the split."""
    parts = {codec: measure_parts(model, "" if codec == "none" else codec) for codec in codecs}
    rows = []
    for slower in SLOWER:
        for mbit in (5, 20, 100):
            link = Link(mbit * MBIT, ROUND_TRIP)
            row: dict[str, Any] = {"slower": slower, "mbit": mbit}
            for codec, of in parts.items():
                times, paces = latencies(of, link, slower), rates(of, link, slower)
                for way, seconds in times.items():
                    name = f"split {codec}" if way == "split" else way
                    row[name] = [round(seconds * 1e3, 1), round(paces[way])]
            rows.append(row)
    return {
        "parts": {
            codec: {
                "head_ms": of.head * 1e3,
                "tail_ms": of.tail * 1e3,
                "coding_ms": of.coding * 1e3,
                "jpeg_ms": of.jpeg * 1e3,
                "cut_bytes": of.cut,
                "picture_bytes": of.picture,
                "cameras_a_core": cameras_a_core(of),
            }
            for codec, of in parts.items()
        },
        "model": rows,
    }
