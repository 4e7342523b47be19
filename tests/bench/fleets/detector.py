"""The detector and the pictures of `swarm bench links`, and what counts as a changed detection.

The pictures are scikit-image's astronaut, tiled and mirrored, with the noise of a camera. Without
the detector or that package a network of the zoo gets random pictures: then a detection is the
class with the highest score.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from bench.rivals.ultraface import NoModel, ultraface_file
from shards.manifest import CodecError, Manifest, write_dir
from shards.split.split import split

PICTURES = 8
NOISE = 1.5  # standard deviation of a camera's noise, of 255
JPEG_QUALITY = 90
THRESHOLD, OVERLAP = 0.7, 0.3  # the detector's usual score, and overlap of two boxes of one face
SAME_FACE = 0.5  # overlap from which two boxes mean one face
ALLOWED = ("f16", "i8", "i6", "i4")  # for features
ALLOWED_RESULTS = ("f16", "i8")  # so results travel as i8 where features do as i8, i6 or i4
Tensors = dict[str, np.ndarray]
Found = list[list[float]]


@dataclass(frozen=True)
class LinkModel:
    """A model that was split in three ways, below one folder.

    edge: the first layers at the edge, the rest at the core. stages: two. whole: in one piece.
    note: why it is not the detector, "" where it is. picture: height and width.
    """

    folder: Path
    name: str
    note: str
    picture: tuple[int, int]

    @property
    def pictures(self) -> Path:
        """An .npy file: UINT8 [n, height, width, 3]."""
        return self.folder / "pictures.npy"

    def manifest(self, way: str) -> Manifest:
        """Of `edge`, `stages` or `whole`; all codecs are allowed for features, `ALLOWED_RESULTS`
        for results."""
        return Manifest.from_json((self.folder / way / "manifest.json").read_bytes())


def prepare(folder: Path, ultraface: str = "") -> LinkModel:
    """Split, and draw the pictures, into `folder`. ultraface: as for `ultraface_file`."""
    model: Path | bytes
    note = "" if find_spec("skimage") else "scikit-image is absent"
    try:
        model = ultraface_file(ultraface)
    except NoModel as error:
        note = str(error)
    if note:
        from zoo.builders import resnet50

        model, name, picture = resnet50(224, 0.25), "resnet50-small", (224, 224)
    else:
        name, picture = "ultraface", (240, 320)
    ways: dict[str, dict[str, Any]] = {
        "edge": {"stages": 1, "edge_layers": 16},
        "stages": {"stages": 2},
        "whole": {"stages": 1},
    }
    for way, how in ways.items():
        result = split(model, name=f"{name}-{way}", **how)
        # The errors are measured here: what stands in the manifest is never read.
        unread = CodecError(0.0, 0.0, 0)
        manifest = replace(
            result.manifest,
            codecs=dict.fromkeys(ALLOWED, unread),
            result_codecs=dict.fromkeys(ALLOWED_RESULTS, unread),
        )
        write_dir(folder / way, manifest, result.files)
    prepared = LinkModel(folder, name, note, picture)
    np.save(prepared.pictures, draw(picture, real=not note))
    return prepared


def draw(size: tuple[int, int], real: bool) -> np.ndarray:
    """UINT8 [PICTURES, height, width, 3]."""
    random = np.random.default_rng(11)
    height, width = size
    if not real:
        small = random.integers(0, 255, (PICTURES, height // 16, width // 16, 3))
        return np.kron(small, np.ones((1, 16, 16, 1))).astype(np.uint8)
    from PIL import Image
    from skimage import data  # its pictures come with it

    astronaut = data.astronaut()  # type: ignore[no-untyped-call]
    pictures = []
    for number in range(PICTURES):
        part = astronaut[: 300 + 20 * number, 60 : 360 + 20 * number]
        half = np.asarray(Image.fromarray(part).resize((width // 2, height // 2)))
        tiles = [half, half[:, ::-1], np.roll(half, 9 * number, 1), 0.6 * half]
        picture = np.vstack([np.hstack(tiles[:2]), np.hstack(tiles[2:])])
        pictures.append(picture + random.normal(0, NOISE, picture.shape))
    return np.clip(np.stack(pictures), 0, 255).astype(np.uint8)


def as_input(picture: np.ndarray, name: str) -> Tensors:
    """UINT8 [height, width, 3] as the model takes it: FP32 [1, 3, height, width], -1 to 1."""
    values = (picture.astype(np.float32) - 127) / 128
    return {name: np.ascontiguousarray(values.transpose(2, 0, 1)[None])}


def as_jpeg(picture: np.ndarray) -> bytes:
    """A picture as a camera with a JPEG encoder would send it."""
    from PIL import Image

    sink = io.BytesIO()
    Image.fromarray(picture).save(sink, "JPEG", quality=JPEG_QUALITY)
    return sink.getvalue()


def of_jpeg(data: bytes) -> np.ndarray:
    """UINT8 [height, width, 3]."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(data)))


def found_in(outputs: Tensors) -> Found:
    """The detections: boxes (left, top, right, bottom; 0 to 1) above `THRESHOLD`, one a face. Of a
    network without boxes, its best class."""
    if "boxes" not in outputs:
        (scores,) = outputs.values()
        return [[float(np.argmax(scores))]]
    scores, boxes = outputs["scores"][0, :, 1], outputs["boxes"][0]
    found: Found = []
    for index in np.argsort(-scores):
        if scores[index] < THRESHOLD:
            break
        box = [float(edge) for edge in boxes[index]]
        if all(overlap(box, other) < OVERLAP for other in found):
            found.append(box)
    return found


def changed(found: Found, expected: Found) -> int:
    """Detections that are missed or made up, of one picture."""
    left = list(found)
    missed = 0
    for box in expected:
        same = [other for other in left if _is_same(box, other)]
        if same:
            left.remove(same[0])
        else:
            missed += 1
    return missed + len(left)


def _is_same(one: list[float], two: list[float]) -> bool:
    return one == two if len(one) < 4 else overlap(one, two) >= SAME_FACE


def overlap(one: list[float], two: list[float]) -> float:
    """The common area of two boxes, as a share of the area that they cover."""
    width = min(one[2], two[2]) - max(one[0], two[0])
    height = min(one[3], two[3]) - max(one[1], two[1])
    both = max(0.0, width) * max(0.0, height)
    area = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, two)) - both
    return both / area if area > 0 else 0.0
