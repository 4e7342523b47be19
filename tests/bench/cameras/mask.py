"""`swarm bench mask`: what leaves a camera with a mask.

Faces move through rooms, the video goes through H.264, and a door masks each frame with UltraFace.
Then the frames that left are judged: do the places where the faces are hold one value, and do two
other looks find a face there: an LBP cascade (scikit-image's), and UltraFace again. A second part
asks how many of 100 people's faces the detector finds at all, by their size: no mask is better.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import cv2
import numpy as np

from bench.cameras.clips import CLIPS, clip
from bench.cameras.faces import face_detector, in_pixels
from bench.faces import (
    BACKGROUNDS,
    HEIGHT,
    WIDTH,
    Box,
    background,
    overlap,
    paste,
    people,
)
from bench.report.frame import Benchmark, Progress
from bench.report.tables import new_table
from nodes.cameras.frame import Frame
from nodes.cameras.mask.door import Cleared, Masked, MaskingDoor, image_of
from nodes.cameras.mask.proof import MaskProof
from nodes.cameras.mask.regions import MaskRule
from nodes.console import out

FACE_OF_BOX = 0.8  # the part of a pasted box, around its middle, that is face
SEEN_AGAIN = 0.2  # overlap from which a box found in a masked frame is the clip's face
SIZES = (32, 48, 64, 96, 128, 160)
HARD: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "plain": lambda image: image,
    "dark .15": lambda image: (image * 0.15).astype(np.uint8),
    "motion blur 15": lambda image: cv2.blur(image, (15, 1)),
    "turned 90°": lambda image: np.ascontiguousarray(np.rot90(image)),
}
EVERY = 10  # of the masked frames, one is given to the slow cascade


@dataclass(frozen=True)
class MaskPlan:
    """frames: that leave. length: of each clip. faces: people, for the second part."""

    frames: int = 3000
    length: int = 150
    seed: int = 21
    clips: tuple[str, ...] = tuple(CLIPS)
    faces: int = 100
    ultraface: str = ""


def face_of(box: Box) -> tuple[slice, slice]:
    """Rows and columns of the face in a pasted box."""
    left, top, right, bottom = box
    across, down = (right - left) * (1 - FACE_OF_BOX) / 2, (bottom - top) * (1 - FACE_OF_BOX) / 2
    rows = slice(max(0, round(top + down)), min(HEIGHT, round(bottom - down)))
    columns = slice(max(0, round(left + across)), min(WIDTH, round(right - across)))
    return rows, columns


def holds_one_value(image: np.ndarray) -> bool:
    return bool((image == image.reshape(-1)[0]).all()) if image.size else True


class Judge:
    """Looks at frames that left. open: frames whose face is not filled, by clip. again: frames in
    which the second detectors find the clip's face."""

    def __init__(self, ultraface: str = "") -> None:
        from skimage import data
        from skimage.feature import Cascade

        self._ultraface = face_detector(MaskRule().threshold, ultraface)
        trained = data.lbp_frontal_face_cascade_filename()  # type: ignore[no-untyped-call]
        self._cascade = Cascade(trained)
        self.frames: dict[str, int] = {}
        self.with_face: dict[str, int] = {}
        self.open: dict[str, int] = {}
        self.again = {"ultraface": 0, "cascade": 0}
        self.looked = {"ultraface": 0, "cascade": 0}

    def look(self, name: str, number: int, cleared: Cleared, face: Box | None) -> None:
        image = image_of(cleared)
        self.frames[name] = self.frames.get(name, 0) + 1
        if face is None:
            return
        self.with_face[name] = self.with_face.get(name, 0) + 1
        rows, columns = face_of(face)
        self.open[name] = self.open.get(name, 0) + (not holds_one_value(image[rows, columns]))
        found = in_pixels(self._ultraface.find(image), image).tolist()
        self._count("ultraface", found, face)
        if number % EVERY == 0:
            boxes = self._cascade.detect_multi_scale(image, 1.2, 1.5, (48, 48), (240, 240))
            found = [[b["c"], b["r"], b["c"] + b["width"], b["r"] + b["height"]] for b in boxes]
            self._count("cascade", found, face)

    def _count(self, name: str, found: list[Any], face: Box) -> None:
        self.looked[name] += 1
        self.again[name] += any(overlap(box, face) >= SEEN_AGAIN for box in found)


async def masked(
    plan: MaskPlan, judge: Judge, progress: Progress
) -> tuple[dict[str, int], list[float]]:
    """Frames that did not leave, by reason, and seconds that each took."""
    detector = face_detector(MaskRule().threshold, plan.ultraface)
    withheld: dict[str, int] = {}
    seconds: list[float] = []
    done, seed = 0, plan.seed
    while done < plan.frames:
        for name in plan.clips:
            progress(f"{name}, {done} of {plan.frames} frames …")
            drawn = clip(name, seed, min(plan.length, plan.frames - done))
            door = MaskingDoor(MaskRule(), MaskProof.of(), detector)
            for number, (image, face) in enumerate(zip(drawn.images, drawn.faces, strict=True)):
                began = time.perf_counter()
                passed = await door.clear(Frame(image, number / 30, number))
                seconds.append(time.perf_counter() - began)
                done += 1
                if isinstance(passed, Masked):
                    judge.look(name, number, passed, face)
                else:
                    withheld[passed.why] = withheld.get(passed.why, 0) + 1
            door.close()
            if done >= plan.frames:
                break
        seed += 1
    return withheld, seconds


def recall(plan: MaskPlan, progress: Progress) -> list[dict[str, Any]]:
    """The share of people whose face is filled in a single frame, by size and by what was done to
    the picture."""
    detector = face_detector(MaskRule().threshold, plan.ultraface)
    rows = []
    for how, spoil in HARD.items():
        progress(f"people, {how} …")
        row: dict[str, Any] = {"picture": how}
        for size in SIZES:
            hit = 0
            for number, face in enumerate(people()[: plan.faces]):
                wide = background(BACKGROUNDS[number % len(BACKGROUNDS)])
                image = wide[120 : 120 + HEIGHT, 160 : 160 + WIDTH].copy()
                box = paste(image, face, (WIDTH / 2, HEIGHT / 2), size)
                spoilt = spoil(image)
                if spoilt.shape != image.shape:  # turned to the left
                    left, top, right, bottom = box
                    box = (top, WIDTH - right, bottom, WIDTH - left)
                found = in_pixels(detector.find(spoilt), spoilt).tolist()
                hit += any(overlap(each, box) >= SEEN_AGAIN for each in found)
            row[str(size)] = round(hit / plan.faces, 2)
        rows.append(row)
    return rows


def measure(plan: MaskPlan, progress: Progress) -> dict[str, Any]:
    judge = Judge(plan.ultraface)
    withheld, seconds = asyncio.run(masked(plan, judge, progress))
    return {
        "frames": sum(judge.frames.values()),
        "with_face": sum(judge.with_face.values()),
        "open": {name: count for name, count in judge.open.items() if count},
        "found_again": judge.again,
        "looked_again": judge.looked,
        "withheld": withheld,
        "ms": round(median(seconds) * 1e3, 2),
        "recall": recall(plan, progress) if plan.faces else [],
        "figures": {},
    }


def show(document: dict[str, Any]) -> None:
    out.print(
        f"{document['frames']} frames left, {document['with_face']} with a face, "
        f"{document['ms']:.1f} ms each; withheld: {document['withheld'] or 'none'}"
    )
    out.print(f"faces that are not filled, by clip: {document['open'] or 'none'}")
    for name, count in document["found_again"].items():
        out.print(f"found in masked frames by {name}: {count} of {document['looked_again'][name]}")
    if document["recall"]:
        table = new_table(
            "people found, by the height of a face in pixels", "picture", *map(str, SIZES)
        )
        for row in document["recall"]:
            table.add_row(row["picture"], *(f"{row[str(size)]:.2f}" for size in SIZES))
        out.print(table)


MASK = Benchmark("mask", measure, show)
