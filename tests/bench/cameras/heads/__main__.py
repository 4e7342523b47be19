"""The heads of `--task` beside the libraries' own post-processing, on random weights.

    PYTHONPATH=tests uv run --with ultralytics --with transformers --with rapidocr \
        --with pixeltable-yolox python -m bench.cameras.heads [NAME …]

Each model is exported by its own library into a folder that is deleted again. Its file is split
with the task, run, and read; its library answers the same picture. Prints a table, and exits with 1
where boxes differ by more than a pixel, scores by more than a thousandth, masks by more than a
hundredth of their places, or where anything is found by one of the two alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bench.cameras.heads import (
    rapidocr_models,
    transformers_models,
    ultralytics_models,
    yolox_models,
)
from bench.cameras.heads.case import Case, Row
from shards.cameras import Classes, DepthGrid, Detections, Result, Segments, Task, Text
from shards.cameras.wish import Wish
from shards.errors import TaskError
from shards.runtimes.ort import make_session
from shards.split.split import split

PIXELS, SCORE, PLACES = 1.0, 1e-3, 0.01
FAR = 5.0  # pixels: another object


@dataclass
class Apart:
    """The largest differences. pixels: of boxes, corners and keypoints. places: share of a mask's,
    or of a map's. alone: objects that one of the two has found."""

    found: int = 0
    alone: int = 0
    pixels: float = 0.0
    score: float = 0.0
    places: float = 0.0

    @property
    def is_near(self) -> bool:
        near = self.pixels <= PIXELS and self.score <= SCORE and self.places <= PLACES
        return near and not self.alone


def main(names: Sequence[str]) -> int:
    modules = (ultralytics_models, transformers_models, yolox_models, rapidocr_models)
    cases = [case for module in modules for case in module.cases()]
    chosen = [case for case in cases if not names or any(name in case.name for name in names)]
    print(
        "| model | taken for | found | apart, pixels | scores | places |\n|---|---|---|---|---|---|"
    )
    is_far = False
    with TemporaryDirectory() as folder:
        for case in chosen:
            head, apart = _tried(case, Path(folder))
            if apart is None:
                print(f"| {case.name} | {head} | | | | |", flush=True)
                continue
            is_far = is_far or not apart.is_near
            shown = f"{apart.found}" + (f", {apart.alone} by one alone" if apart.alone else "")
            numbers = f"{apart.pixels:.2g} | {apart.score:.1g} | {apart.places:.2g}"
            print(f"| {case.name} | {head} | {shown} | {numbers} |", flush=True)
    return int(is_far)


def noise(width: int, height: int) -> np.ndarray:
    """A smooth picture, uint8 [height, width, 3], of a fixed seed."""
    import cv2

    small = np.random.default_rng(0).integers(0, 255, (12, 16, 3), np.uint8)
    return np.asarray(cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC))


def _tried(case: Case, folder: Path) -> tuple[str, Apart | None]:
    image = noise(480, 360) if case.picture is None else case.picture()
    try:
        path, answer = case.build(folder, image)
    except Exception as error:  # of any library: this row is told without figures
        return f"not exported: {type(error).__name__}: {str(error).splitlines()[0][:80]}", None
    if case.own_size:
        side = make_session(path.read_bytes(), level="basic").get_inputs()[0].shape[2]
        image = noise(side, side)
    asked = ""
    options = dict(case.options)
    least = options if "fit" in options else {k: v for k, v in options.items() if k == "size"}
    for given in (least, options):
        try:
            wish = Wish(case.kind, **given)
            result = split(path, name="m", stages=1, profile=False, addition=wish)
            break
        except TaskError as error:
            asked = f"asked for ({str(error).partition(': ')[2][:40]}…), then "
    else:
        return "refused", None
    task = Task.of(result.manifest.parts.get("task"))
    session = make_session(result.files[result.manifest.shards[-1].file], level="basic")
    names = [output.name for output in session.get_outputs()]
    outputs = dict(zip(names, session.run(names, task.prepare(image)), strict=True))
    found = task.read(outputs, image.shape)
    return asked + task.postprocess.decode, compared(found, answer(image), image.shape)


def compared(found: Result, rows: list[Row], shape: tuple[int, ...]) -> Apart:
    """Ours beside the library's."""
    if isinstance(found, Text):
        alone = int(found.text != rows[0].text)
        return Apart(1, alone, score=abs(found.score - rows[0].score))
    if isinstance(found, Classes):
        theirs = {row.kind: row.score for row in rows}
        ours = dict(zip(found.classes.tolist(), found.scores.tolist(), strict=True))
        both = theirs.keys() & ours.keys()
        score = max((abs(theirs[kind] - ours[kind]) for kind in both), default=0.0)
        return Apart(len(ours), 2 * (len(ours) - len(both)), score=score)
    if isinstance(found, DepthGrid | Segments):
        ours_map = found.values if isinstance(found, DepthGrid) else found.classes
        theirs_map = rows[0].grid
        assert theirs_map is not None
        tolerance = 1e-3 * float(np.abs(theirs_map).max()) if isinstance(found, DepthGrid) else 0
        return Apart(1, places=float((np.abs(ours_map - theirs_map * 1.0) > tolerance).mean()))
    assert isinstance(found, Detections)
    return _objects(found, rows, shape)


def _objects(found: Detections, rows: list[Row], shape: tuple[int, ...]) -> Apart:
    size = np.array(shape[1::-1], np.float64)
    apart, free = Apart(len(found)), list(rows)
    for at in range(len(found)):
        near = [row for row in free if row.kind == found.classes[at]]
        distance = _distance(found, at, size)
        best = min(near, key=lambda r: distance(r) + abs(r.score - found.scores[at]), default=None)
        if best is None or distance(best) > FAR:
            apart.alone += 1
            continue
        free = [row for row in free if row is not best]
        apart.pixels = max(apart.pixels, distance(best))
        apart.score = max(apart.score, abs(best.score - float(found.scores[at])))
        if found.points is not None and best.points is not None:
            off = np.abs(found.points[at] * (*size, 1) - best.points)
            apart.pixels = max(apart.pixels, float(off[:, :2].max()))
            apart.score = max(apart.score, float(off[:, 2].max()))
        if found.masks is not None and best.mask is not None:
            apart.places = max(apart.places, _masks_apart(found.masks[at], best.mask))
    apart.alone += len(free)
    return apart


def _distance(found: Detections, at: int, size: np.ndarray) -> Callable[[Row], float]:
    """From an object of ours to one of theirs, in pixels."""

    def of(row: Row) -> float:
        if found.corners is not None and row.corners is not None:
            mine, theirs = found.corners[at] * size, row.corners
            turns = [np.roll(each, by, 0) for each in (theirs, theirs[::-1]) for by in range(4)]
            return float(min(np.abs(turn - mine).max() for turn in turns))
        assert row.box is not None
        inside = np.clip(row.box, 0, (*size, *size))
        return float(np.abs(inside - found.boxes[at] * (*size, *size)).max())

    return of


def _masks_apart(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The share of both masks' places that only one has; theirs covers the letterbox too."""
    top, left = ((a - b) // 2 for a, b in zip(theirs.shape, ours.shape, strict=True))
    theirs = theirs[top : top + ours.shape[0], left : left + ours.shape[1]]
    return float((ours ^ theirs).sum() / max((ours | theirs).sum(), 1))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
