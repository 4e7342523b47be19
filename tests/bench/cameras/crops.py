"""`swarm bench crops`: how often an object keeps its answer, and how often that answer is wrong.

Cards with digits move and stand still; every second card takes the place of the one before it, and
so its track. A camera's noise lies over them, and a detector's boxes tremble. The digits model
reads each crop, once; then each threshold decides which of the answers stand for later crops. A
crop is wrong where its own answer is right and the one that stands for it is not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnxruntime as ort

from bench.report.frame import Benchmark, Progress
from bench.report.tables import new_table
from nodes.cameras.crops.cache import CropCache, CropRule, KnownObject
from nodes.cameras.crops.crops import cut, reduced
from nodes.cameras.demo.scene import CARDS, HEIGHT, PAPER, TURN, WIDTH, card, draw
from nodes.cameras.gate.measures import gray
from nodes.console import out
from shards.zoo import digits_model

RATE = 30.0
NOISES = 7  # pictures of noise, in turn: neither a card's frames nor two cards share them all
SIDES = np.array([WIDTH, HEIGHT, WIDTH, HEIGHT])
ALIKE = (0.8, 0.9, 0.95, 0.98)
USUAL = 0.95
MOST_WRONG = 0.005  # of the usual threshold's crops; the target


@dataclass(frozen=True)
class CropsPlan:
    """cards: shown one after the other. noise: a pixel's, of 255. tremble: of a box's sides, in
    pixels."""

    cards: int = len(CARDS)
    noise: float = 3.0
    tremble: float = 1.0
    seed: int = 3


@dataclass(frozen=True, slots=True)
class Shown:
    """A card in a frame, where the detector has it. Two cards have a track in common."""

    track: int
    digit: int
    image: np.ndarray
    box: np.ndarray


def frames_of(plan: CropsPlan) -> Iterator[Shown]:
    random = np.random.default_rng(plan.seed)
    noises = random.normal(0, plan.noise, (NOISES, HEIGHT, WIDTH, 3)).astype(np.float32)
    for number in range(plan.cards * TURN):
        shown, image = card(number), draw(number)
        noisy = np.clip(image + noises[number % NOISES], 0, 255).astype(np.uint8)
        box = shown.box + random.normal(0, plan.tremble, 4) / SIDES
        yield Shown(number // TURN // 2, shown.digit, noisy, box)


def readings(crops: Sequence[np.ndarray]) -> list[int]:
    """The digit that the model reads from each crop."""
    session = ort.InferenceSession(digits_model(), providers=["CPUExecutionProvider"])
    cells = np.stack([gray(crop, (8, 8)) for crop in crops]).astype(np.float32) / 255
    written = np.clip((cells - PAPER) / (1 - PAPER), 0, 1)[:, None]
    (logits,) = session.run(None, {session.get_inputs()[0].name: written})
    return [int(each) for each in np.argmax(logits, axis=1)]


def measure(plan: CropsPlan, progress: Progress) -> dict[str, Any]:
    progress(f"{plan.cards} cards, each frame's crop is read …")
    crops = [cut(each.image, each.box) for each in frames_of(plan)]
    read = readings([crop for crop in crops if crop is not None])
    digits = [card(number).digit for number in range(plan.cards * TURN)]
    rows = []
    for alike in ALIKE:
        progress(f"SSIM {alike} …")
        rows.append(_row(alike, frames_of(plan), read))
    return {
        "crops": len(read),
        "read_rightly": round(float(np.mean(np.equal(read, digits))), 4),
        "rows": rows,
        "figures": {},
    }


def _row(alike: float, shown: Iterator[Shown], read: Sequence[int]) -> dict[str, Any]:
    cache, kept, wrong, spent = CropCache(CropRule(alike)), 0, 0, 0.0
    for number, (each, own) in enumerate(zip(shown, read, strict=True)):
        now, began = number / RATE, time.perf_counter()
        look = partial(reduced, each.image)
        known = cache.answer(each.track, each.box, look, "1", now)
        if known is None:
            crop = look(each.box)
            assert crop is not None
            cache.keep(each.track, KnownObject(each.box, crop, "1", {"digit": own}, now))
        else:
            kept += 1
            wrong += own == each.digit != known.found["digit"]
        spent += time.perf_counter() - began
    share, mistaken = kept / len(read), wrong / len(read)
    us = round(spent / len(read) * 1e6)
    return {"alike": alike, "kept": round(share, 3), "wrong": round(mistaken, 4), "us": us}


def show(document: dict[str, Any]) -> None:
    title = f"{document['crops']} crops, {document['read_rightly']:.1%} read rightly"
    table = new_table(title, "SSIM", "kept", "wrong", "µs")
    for row in document["rows"]:
        cells = (f"{row['kept']:.2f}", f"{row['wrong']:.2%}", f"{row['us']}")
        table.add_row(f"{row['alike']}", *cells)
    out.print(table)


def misses(document: dict[str, Any]) -> list[str]:
    row = next(row for row in document["rows"] if row["alike"] == USUAL)
    if row["wrong"] <= MOST_WRONG:
        return []
    return [f"{USUAL}: {row['wrong']:.2%} of the crops are wrong, {MOST_WRONG:.1%} may be"]


CROPS = Benchmark("crops", measure, show, misses=misses)
