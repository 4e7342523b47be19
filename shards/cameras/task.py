"""What a model is for, as its manifest says it: from a picture to tensors, and back to results.

    task = Task.of(manifest.parts.get("task"))
    outputs = run(task.prepare(image))
    found = task.read(outputs, image.shape)

The document is JSON, signed with the manifest. Unknown fields are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from shards.cameras.beside import corners_of, hull, masks_of, points_of, turned_that_stay
from shards.cameras.boxes import upright
from shards.cameras.decode import (
    DECODERS,
    Raw,
    form_of,
    read_classes,
    read_depth,
    read_detections,
    read_embedding,
    read_letters,
    suppresses,
)
from shards.cameras.decode import read_segments as read_raw_segments
from shards.cameras.pixels import FITS, normalised, on_grid
from shards.cameras.placement import PlacedPicture, place
from shards.cameras.results import Classes, DepthGrid, Detections, Embedding, Segments, Text
from shards.cameras.text import lines_of, said_by
from shards.errors import InputError, ManifestError
from shards.specs import DTYPES

Result = Detections | Classes | Segments | DepthGrid | Text | Embedding

KINDS = tuple(DECODERS)
COLOURS = ("rgb", "bgr", "gray")
LAYOUTS = ("nchw", "nhwc")
DATATYPES = ("UINT8", "FP16", "FP32")
# The outputs of a graph that holds its postprocessing, by kind; `Task.answers` has those of a task.
RESULTS: Mapping[str, tuple[str, ...]] = {
    "detect": ("boxes", "scores", "classes"),
    "depth": ("depth",),
    "read": ("scores", "classes"),
    "classify": ("scores", "classes"),
    "segment": ("classes",),
    "embed": ("embedding",),
}
MOST_LABELS = 1 << 16
MOST_LETTERS = 256  # of a label
MOST_PIXELS = 16384  # of one side of the model's picture


@dataclass(frozen=True, slots=True)
class Preprocess:
    """From a picture to the model's `input`, [1, c, height, width] (`nchw`) or `nhwc`.

    width, height: of the model's picture. fit: `stretch` it, or keep its proportions and fill the
    rest with `fill` (0..255): `letterbox` in the middle, `corner` at the left and the top, `line`
    in full height at the left. colours: `rgb`, `bgr` or `gray`. datatype: UINT8 takes the pixels as
    they are; FP32 and FP16 take (pixel * scale - mean) / std, with one number for all channels or
    one for each, computed in FP32.
    """

    input: str
    width: int
    height: int
    fit: str = "stretch"
    colours: str = "rgb"
    layout: str = "nchw"
    datatype: str = "FP32"
    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    fill: int = 114

    @property
    def channels(self) -> int:
        return 1 if self.colours == "gray" else 3

    @property
    def offset(self) -> np.ndarray:
        """FP32 [1 or channels]: pixel - offset, times `factor`, is what the model takes."""
        return (np.array(self.mean) / self.scale).astype(np.float32)

    @property
    def factor(self) -> np.ndarray:
        """FP32 [1 or channels], see `offset`."""
        return (self.scale / np.array(self.std)).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Postprocess:
    """From the model's outputs to results. decode: one of `shards.cameras.decode.DECODERS` of the
    task's kind. outputs: the names of the tensors that it reads, in its order. threshold: scores
    above it count (0..1). iou: of two boxes of one class that overlap by more (0..1), the likelier
    one stays. top: the most boxes, or the most classes. more: values that each box has behind its
    scores: weights of its mask's parts, numbers of its keypoints, or an angle. each: numbers of a
    keypoint, 2 or 3, 0 for other heads."""

    decode: str
    outputs: tuple[str, ...]
    threshold: float = 0.25
    iou: float = 0.45
    top: int = 300
    more: int = 0
    each: int = 0


@dataclass(frozen=True, slots=True)
class Task:
    """kind: one of `KINDS`. labels: names by class, () without names; letters, of class 1 on, where
    lines of text are read.
    baked: the graph itself holds the arithmetic: its input is UINT8 [n, height, width, channels],
    RGB or gray, and its outputs are `RESULTS` of the kind. Resizing stays outside."""

    kind: str
    preprocess: Preprocess
    postprocess: Postprocess
    labels: tuple[str, ...] = ()
    baked: bool = False

    def prepare(self, image: np.ndarray) -> dict[str, np.ndarray]:
        """The model's inputs of one picture.

        image: uint8 [height, width, 3], RGB. Resized with OpenCV where it is installed, else with
        numpy, which is slower and differs by 1 of 255 at most in some pixels. Raises InputError.
        """
        grid = self.fitted(image)
        return {self.preprocess.input: grid[None] if self.baked else self.arranged(grid[None])}

    def fitted(self, image: np.ndarray) -> np.ndarray:
        """A picture, as of `prepare`, of the model's own size: uint8 [height, width, channels].
        Prepared from there the inputs are the same. Raises InputError."""
        check_image(image)
        pre = self.preprocess
        return on_grid(image, pre.width, pre.height, pre.fit, pre.fill, gray=pre.channels == 1)

    def arranged(self, pictures: np.ndarray) -> np.ndarray:
        """What the model's file takes, where its graph does not hold this arithmetic.

        pictures: uint8 [n, height, width, channels] of the model's own size, RGB or gray, as a
        baked graph takes them. Raises InputError for others.
        """
        pre = self.preprocess
        if pictures.dtype != np.uint8 or pictures.shape[1:] != (
            pre.height,
            pre.width,
            pre.channels,
        ):
            wanted = f"UINT8[n,{pre.height},{pre.width},{pre.channels}]"
            raise InputError(pre.input, wanted, f"{pictures.dtype} {list(pictures.shape)}")
        if pre.colours == "bgr":
            pictures = pictures[..., ::-1]
        if pre.layout == "nchw":
            pictures = pictures.transpose(0, 3, 1, 2)
        if pre.datatype == "UINT8":
            return np.ascontiguousarray(pictures)
        return normalised(pictures, pre.offset, pre.factor, pre.layout, DTYPES[pre.datatype])

    def read(self, outputs: Mapping[str, np.ndarray], shape: Sequence[int]) -> Result:
        """What the model's outputs say about one picture.

        shape: the picture's `image.shape`: height and width come first. Raises InputError for
        outputs that are not those of one picture and of this task.
        """
        post, pre = self.postprocess, self.preprocess
        names = self.answers if self.baked else post.outputs
        tensors = [_tensor(outputs, name) for name in names]
        placed = place(shape, pre.width, pre.height, pre.fit)
        if self.kind == "detect":
            return self._detections(tensors, placed)
        if self.kind in ("classify", "read"):
            if self.baked:
                scores, classes = (_first(name, t) for name, t in zip(names, tensors, strict=True))
            elif self.kind == "read":
                classes, scores = read_letters(post.decode, tensors[0])
            else:
                scores, classes = read_classes(post.decode, tensors[0], post.top)
            classes, scores = classes.astype(np.int64), scores.astype(np.float32)
            if self.kind == "read":
                return Text(*said_by(classes, scores, self.labels))
            return Classes(classes, scores, self.labels)
        if self.kind == "segment":
            first = _first(names[0], tensors[0]) if self.baked else None
            grid = read_raw_segments(post.decode, tensors[0]) if first is None else first
            return Segments(placed.part(grid), self.labels)
        if self.kind == "depth":
            return DepthGrid(placed.part(read_depth(tensors[0])))
        if self.baked:
            return Embedding(_first(names[0], tensors[0]).astype(np.float32))
        return Embedding(read_embedding(tensors[0]))

    @property
    def answers(self) -> tuple[str, ...]:
        """The outputs of a graph that holds this task."""
        beside = form_of(self.postprocess.decode)[1]
        more = ("more",) if beside else ()
        return (*RESULTS[self.kind], *more, *(("prototypes",) if beside == "seg" else ()))

    def _detections(self, tensors: Sequence[np.ndarray], placed: PlacedPicture) -> Detections:
        post, pre = self.postprocess, self.preprocess
        beside, size = form_of(post.decode)[1], (pre.width, pre.height)
        corners = points = masks = None
        if post.decode == "db":
            corners, scores = lines_of(tensors[0], post.threshold, post.top)
            raw = Raw(hull(corners), scores, np.zeros(len(scores)), np.zeros((len(scores), 0)))
        elif self.baked:
            raw = _baked_detections(tensors, post.more)
        else:
            raw = read_detections(
                post.decode, tensors, size, post.threshold, post.iou, post.top, post.more
            )
        boxes = raw.boxes
        if beside == "obb":
            if suppresses(post.decode):
                raw = turned_that_stay(raw, size, post.iou, post.top)
            corners = corners_of(raw.boxes, raw.more[:, 0], size)
            boxes = hull(corners)
        if corners is not None:
            corners = placed.points(corners)
        if beside == "pose":
            points = points_of(raw.more, post.each, size)
            points[..., :2] = np.clip(placed.points(points[..., :2]), 0, 1)
        if beside == "seg":
            masks = masks_of(raw, tensors[-1], size, placed)
        return Detections(
            placed.back(upright(boxes)),
            raw.scores,
            raw.classes.astype(np.int64),
            self.labels,
            points=points,
            corners=corners,
            masks=masks,
        )

    def to_doc(self) -> dict[str, Any]:
        """The document of the manifest, for JSON."""
        doc = asdict(self)
        for part in (doc, doc["preprocess"], doc["postprocess"]):
            part.update({k: list(v) for k, v in part.items() if isinstance(v, tuple)})
        return doc

    @classmethod
    def of(cls, doc: object) -> Task:
        """Of a manifest's `task`. Raises ManifestError, which names the offending field, and for
        a model that was split without `--task`."""
        if doc is None:
            raise ManifestError(
                "the model does not say what it is for: split it with "
                f"`swarm model split FILE --task {'|'.join(KINDS)}`"
            )
        kind = _word(doc, "kind", KINDS)
        pre, post = _object(doc, "preprocess"), _object(doc, "postprocess")
        task = cls(
            kind=kind,
            preprocess=Preprocess(
                input=_name(pre, "input"),
                width=_whole(pre, "width", 1, MOST_PIXELS),
                height=_whole(pre, "height", 1, MOST_PIXELS),
                fit=_word(pre, "fit", FITS),
                colours=_word(pre, "colours", COLOURS),
                layout=_word(pre, "layout", LAYOUTS),
                datatype=_word(pre, "datatype", DATATYPES),
                scale=_number(pre.get("scale"), "scale"),
                mean=_numbers(pre, "mean"),
                std=_numbers(pre, "std"),
                fill=_whole(pre, "fill", 0, 255),
            ),
            postprocess=Postprocess(
                decode=_word(post, "decode", DECODERS[kind]),
                outputs=_names(post, "outputs", 8),
                threshold=_share(post, "threshold"),
                iou=_share(post, "iou"),
                top=_whole(post, "top", 1, 1 << 16),
                more=_whole({"more": 0, **post}, "more", 0, 1 << 12),
                each=_whole({"each": 0, **post}, "each", 0, 3),
            ),
            labels=_names(doc, "labels", MOST_LABELS),
            baked=_object({"baked": doc}, "baked").get("baked") is True,
        )
        task.check()
        return task

    def check(self) -> None:
        """Raises ManifestError where the parts do not fit each other."""
        pre, post = self.preprocess, self.postprocess
        wanted = DECODERS[self.kind][post.decode]
        if not self.baked and len(post.outputs) != wanted:
            raise ManifestError(
                f"{post.decode} reads {wanted} outputs, not {len(post.outputs)}: "
                f"{', '.join(post.outputs)}"
            )
        beside = form_of(post.decode)[1]
        fits = {"": post.more == 0, "obb": post.more == 1, "seg": post.more > 0}
        is_pose = beside == "pose" and post.each in (2, 3) and post.more > 0
        if not fits.get(beside, is_pose and post.more % max(post.each, 1) == 0):
            raise ManifestError(
                f"task field 'more' is {post.more}: {post.decode} has other values beside a box"
            )
        for field, numbers in (("mean", pre.mean), ("std", pre.std)):
            if len(numbers) not in (1, pre.channels):
                raise ManifestError(
                    f"task field {field!r} has {len(numbers)} numbers for {pre.channels} channels"
                )
        if not pre.scale or not all(pre.std):
            raise ManifestError("task fields 'scale' and 'std' must not be 0")


def check_image(image: np.ndarray) -> None:
    """Raises InputError unless this is a picture: uint8 [height, width, 3], not empty."""
    fits = isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3
    if not fits or image.shape[2] != 3 or 0 in image.shape:
        got = getattr(image, "shape", type(image).__name__)
        raise InputError(
            "image", "UINT8[height,width,3], RGB", f"{getattr(image, 'dtype', '')} {got}"
        )


def _baked_detections(tensors: Sequence[np.ndarray], more: int) -> Raw:
    boxes, scores, classes = tensors[:3]
    n = len(scores) if scores.ndim == 1 else -1
    beside = tensors[3] if more else np.zeros((max(n, 0), 0), np.float32)
    if boxes.shape != (n, 4) or classes.shape != (n,) or beside.shape != (n, more):
        got = ", ".join(str(list(t.shape)) for t in tensors)
        wanted = "[n,4], [n], [n]" + (f", [n,{more}]" if more else "")
        raise InputError("boxes, scores, classes", wanted, got)
    return Raw(boxes.astype(np.float32), scores.astype(np.float32), classes, beside)


def _tensor(outputs: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    if name not in outputs:
        raise InputError(name, "an output of this name", ", ".join(outputs) or "nothing")
    return np.asarray(outputs[name])


def _first(name: str, array: np.ndarray) -> np.ndarray:
    """The one row of a batch of one."""
    if array.ndim < 2 or len(array) != 1:
        raise InputError(name, "the result of one picture, [1,…]", str(list(array.shape)))
    return np.asarray(array[0])


def _object(raw: object, key: str) -> Mapping[str, Any]:
    found = raw.get(key) if isinstance(raw, Mapping) else None
    if not isinstance(found, Mapping):
        raise ManifestError(f"task field {key!r} must be an object")
    return found


def _word(raw: object, key: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    value = raw.get(key) if isinstance(raw, Mapping) else None
    if not isinstance(value, str) or value not in known:
        raise ManifestError(
            f"task field {key!r} is {value!r:.80}, this version knows {', '.join(known)}: upgrade "
            "the node, or split the model again"
        )
    return value


def _name(raw: Mapping[str, Any], key: str) -> str:
    value = raw.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= MOST_LETTERS:
        raise ManifestError(f"task field {key!r} must be a name, is {value!r:.80}")
    return value


def _names(raw: object, key: str, most: int) -> tuple[str, ...]:
    values = raw.get(key, []) if isinstance(raw, Mapping) else None
    if not isinstance(values, list | tuple) or len(values) > most:
        raise ManifestError(f"task field {key!r} must be a list of at most {most} names")
    return tuple(_name({key: value}, key) for value in values)


def _whole(raw: Mapping[str, Any], key: str, least: int, most: int) -> int:
    value = raw.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ManifestError(f"task field {key!r} must be {least} to {most}, is {value!r:.80}")
    return value


def _number(value: object, key: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or abs(value) > 1e9:  # type: ignore[arg-type]
        raise ManifestError(f"task field {key!r} must be a number, is {value!r:.80}")
    return float(value)  # type: ignore[arg-type]


def _numbers(raw: Mapping[str, Any], key: str) -> tuple[float, ...]:
    values = raw.get(key)
    if not isinstance(values, list | tuple) or not 1 <= len(values) <= 3:
        raise ManifestError(f"task field {key!r} must be a list of 1 or 3 numbers")
    return tuple(_number(value, key) for value in values)


def _share(raw: Mapping[str, Any], key: str) -> float:
    value = _number(raw.get(key), key)
    if not 0 <= value <= 1:
        raise ManifestError(f"task field {key!r} must be 0 to 1, is {value}")
    return value
