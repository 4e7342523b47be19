"""The operators of compositions: pure, bounded, and nobody's code.

Each says what it makes of tensors of which datatypes and shapes (`made`), and makes it (`run`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from shards.compose.errors import CompositionError
from shards.specs import TensorSpec

MOST_SIDE = 4096  # pixels of a crop's or a resized picture's side
MOST_BOXES = 1024  # that `nms` may be allowed

Arrays = Mapping[str, np.ndarray]
Settings = Mapping[str, Any]
FLOATS = frozenset(("FP16", "FP32", "FP64"))


class _Required:
    """A setting without a default."""


REQUIRED = _Required()


class Made(Protocol):
    """Raises CompositionError for tensors that the operator does not take."""

    def __call__(
        self, where: str, of: Mapping[str, TensorSpec], settings: Settings
    ) -> tuple[TensorSpec, ...]: ...


@dataclass(frozen=True, slots=True)
class Operator:
    """inputs: their names; any_number: any number of tensors instead, by their place. settings:
    their defaults."""

    made: Made
    run: Callable[[Arrays, Settings], dict[str, np.ndarray]]
    inputs: Sequence[str] = ()
    any_number: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    def bytes(self, of: Arrays, settings: Settings) -> int:
        """How many bytes a run on these makes: no more than it is given, but for pictures of a size
        that is set."""
        size = settings.get("size")
        if size is None:
            return sum(array.nbytes for array in of.values())
        image = of[self.inputs[0]]
        count = len(of["boxes"]) if "boxes" in of else len(image)
        return int(count * math.prod((image.shape[1], *size)) * image.itemsize)

    def with_defaults(self, given: Settings, where: str) -> dict[str, Any]:
        """The settings, complete and of the right types. Raises CompositionError."""
        found = {**self.settings, **given}
        for name, value in found.items():
            if value is REQUIRED:
                raise CompositionError(where, f"it needs `{name}`")
            if wrong := _CHECKS[name](value):
                raise CompositionError(where, f"`{name}` {wrong}, not {value!r:.80}")
        return found


def _rank(where: str, spec: TensorSpec, rank: int) -> None:
    if spec.any_rank or len(spec.shape) != rank:
        raise CompositionError(where, f"{spec.name} has {rank} axes here, and is {spec}")


def _float(where: str, spec: TensorSpec) -> None:
    if spec.datatype not in FLOATS:
        raise CompositionError(where, f"{spec.name} is a float here, and is {spec}")


# --- pictures -----------------------------------------------------------------------------------


def _crop_made(
    where: str, of: Mapping[str, TensorSpec], settings: Settings
) -> tuple[TensorSpec, ...]:
    image, boxes = of["image"], of["boxes"]
    _rank(where, image, 4)
    _rank(where, boxes, 2)
    _float(where, boxes)
    if image.shape[0] not in (1, -1) or boxes.shape[1] not in (4, -1):
        raise CompositionError(where, f"boxes of 4 in one picture, not {boxes} in {image}")
    if image.datatype not in FLOATS | {"UINT8"}:
        raise CompositionError(where, f"a picture is of floats or UINT8, and is {image}")
    return (TensorSpec("crops", image.datatype, (-1, image.shape[1], *settings["size"])),)


def _crop(of: Arrays, settings: Settings) -> dict[str, np.ndarray]:
    """Corners x1, y1, x2, y2 as shares of the picture's sides; each crop is sampled bilinearly."""
    boxes = of["boxes"]
    _one(of["image"])
    return {"crops": sampled(of["image"], boxes.reshape(-1, 4), settings["size"])}


def _one(array: np.ndarray) -> None:
    if len(array) != 1:
        raise ValueError(f"there are {len(array)} pictures, and one is taken")


def _resize_made(
    where: str, of: Mapping[str, TensorSpec], settings: Settings
) -> tuple[TensorSpec, ...]:
    image = of["of"]
    _rank(where, image, 4)
    if image.datatype not in FLOATS | {"UINT8"}:
        raise CompositionError(where, f"a picture is of floats or UINT8, and is {image}")
    return (TensorSpec("resized", image.datatype, (*image.shape[:2], *settings["size"])),)


def _resize(of: Arrays, settings: Settings) -> dict[str, np.ndarray]:
    image, size = of["of"], settings["size"]
    whole = np.array([[0.0, 0.0, 1.0, 1.0]])
    each = [sampled(row[None], whole, size) for row in image]
    empty = np.zeros((0, image.shape[1], *size), image.dtype)
    return {"resized": np.concatenate(each) if each else empty}


def sampled(image: np.ndarray, boxes: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """image: [1, channels, height, width]. boxes: [n, 4], corners as shares. Returns [n, channels,
    *size] of its datatype. Points are the centres of pixels; outside of the picture its edge goes
    on; a corner that is no number is 0."""
    _, channels, height, width = image.shape
    plane = image[0]
    made = np.zeros((len(boxes), channels, *size), image.dtype)
    for number, box in enumerate(np.nan_to_num(boxes.astype(np.float64)).clip(-1.0, 2.0)):
        rows, lower, down = _points(box[1], box[3], size[0], height)
        columns, right, along = _points(box[0], box[2], size[1], width)
        top = _between(plane[:, rows[:, None], columns], plane[:, rows[:, None], right], along)
        under = _between(plane[:, lower[:, None], columns], plane[:, lower[:, None], right], along)
        value = _between(top, under, down[:, None])
        made[number] = np.rint(value) if image.dtype.kind in "ui" else value
    return made


def _points(
    low: float, high: float, count: int, side: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pixels before and behind each of `count` points, and the share of the one behind."""
    at = (low + (np.arange(count) + 0.5) / count * (high - low)) * side - 0.5
    at = at.clip(0, side - 1)
    before = np.floor(at).astype(np.intp)
    return before, np.minimum(before + 1, side - 1), at - before


def _between(one: np.ndarray, other: np.ndarray, share: np.ndarray) -> np.ndarray:
    mixed: np.ndarray = one * (1 - share) + other * share
    return mixed


def _nms_made(
    where: str, of: Mapping[str, TensorSpec], settings: Settings
) -> tuple[TensorSpec, ...]:
    boxes, scores = of["boxes"], of["scores"]
    for spec in (boxes, scores):
        _rank(where, spec, 3)
        _float(where, spec)
    if boxes.shape[0] not in (1, -1) or boxes.shape[2] not in (4, -1):
        raise CompositionError(where, f"boxes are [1, n, 4], and {boxes.name} is {boxes}")
    if -1 not in (boxes.shape[1], scores.shape[1]) and boxes.shape[1] != scores.shape[1]:
        raise CompositionError(where, f"as many boxes as scores, not {boxes} and {scores}")
    if scores.shape[2] != -1 and settings["class"] >= scores.shape[2]:
        raise CompositionError(where, f"there is no class {settings['class']} in {scores}")
    return (
        TensorSpec("boxes", boxes.datatype, (-1, 4)),
        TensorSpec("scores", scores.datatype, (-1,)),
    )


def _nms(of: Arrays, settings: Settings) -> dict[str, np.ndarray]:
    """Greedy, by falling score of one class; of equal ones the earlier box is the better one."""
    _one(of["boxes"])
    boxes, scores = of["boxes"][0], of["scores"][0, :, settings["class"]]
    if len(boxes) != len(scores):
        raise ValueError(f"{len(boxes)} boxes have {len(scores)} scores")
    # Areas in pixels are more than FP16 holds.
    corners = boxes.astype(np.promote_types(boxes.dtype, np.float32), copy=False)
    order = np.argsort(-scores, kind="stable")
    order = order[scores[order] > settings["above"]]
    kept: list[int] = []
    while len(order) and len(kept) < settings["most"]:
        best, order = int(order[0]), order[1:]
        kept.append(best)
        order = order[~(_overlap(corners[best], corners[order]) > settings["iou"])]
    return {"boxes": boxes[kept], "scores": scores[kept]}


def _overlap(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Intersection over union of corners."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    both = (high - low).clip(0).prod(axis=1)
    areas = (others[:, 2:] - others[:, :2]).prod(axis=1) + (box[2:] - box[:2]).prod() - both
    share: np.ndarray = np.divide(both, areas, out=np.zeros_like(both), where=areas > 0)
    return share


# --- tensors ------------------------------------------------------------------------------------


def _axis(where: str, spec: TensorSpec, axis: int) -> int:
    if spec.any_rank or not -len(spec.shape) <= axis < len(spec.shape):
        raise CompositionError(where, f"{spec.name} is {spec}: it has no axis {axis}")
    return axis % len(spec.shape)


def _select_made(
    where: str, of: Mapping[str, TensorSpec], settings: Settings
) -> tuple[TensorSpec, ...]:
    spec = of["of"]
    axis = _axis(where, spec, settings["axis"])
    start, stop, size = settings["start"], settings["stop"], spec.shape[axis]
    if not 0 <= start < stop or (size != -1 and stop > size):
        raise CompositionError(where, f"[{start}, {stop}) is no range of axis {axis} of {spec}")
    shape = [*spec.shape]
    shape[axis] = -1 if size == -1 else stop - start
    return (TensorSpec("selected", spec.datatype, tuple(shape)),)


def _select(of: Arrays, settings: Settings) -> dict[str, np.ndarray]:
    array = of["of"]
    at: list[slice] = [slice(None)] * array.ndim
    at[settings["axis"]] = slice(settings["start"], settings["stop"])
    return {"selected": array[tuple(at)]}


def _softmax_made(
    where: str, of: Mapping[str, TensorSpec], settings: Settings
) -> tuple[TensorSpec, ...]:
    spec = of["of"]
    _float(where, spec)
    _axis(where, spec, settings["axis"])
    return (TensorSpec("scores", spec.datatype, spec.shape),)


def _softmax(of: Arrays, settings: Settings) -> dict[str, np.ndarray]:
    array, axis = of["of"], settings["axis"]
    if not array.size:
        return {"scores": array}
    powers = np.exp(array - array.max(axis=axis, keepdims=True))
    return {"scores": (powers / powers.sum(axis=axis, keepdims=True)).astype(array.dtype)}


def _alike(where: str, of: Mapping[str, TensorSpec], free: int | None = None) -> list[int]:
    """The shape that all have, -1 where they may differ. free: an axis that need not agree."""
    specs = list(of.values())
    shape = [*specs[0].shape]
    for spec in specs:
        if spec.any_rank or len(spec.shape) != len(shape) or spec.datatype != specs[0].datatype:
            raise CompositionError(where, f"{spec.name} is {spec}, {specs[0].name} {specs[0]}")
        for axis, size in enumerate(spec.shape):
            if axis != free and -1 not in (size, shape[axis]) and size != shape[axis]:
                raise CompositionError(where, f"{spec.name} is {spec}, {specs[0].name} {specs[0]}")
            shape[axis] = max(size, shape[axis])
    return shape


def _concat_made(
    where: str, of: Mapping[str, TensorSpec], settings: Settings
) -> tuple[TensorSpec, ...]:
    first = of["0"]
    axis = _axis(where, first, settings["axis"])
    shape = _alike(where, of, axis)
    sizes = [spec.shape[axis] for spec in of.values()]
    shape[axis] = -1 if -1 in sizes else sum(sizes)
    return (TensorSpec("joined", first.datatype, tuple(shape)),)


def _concat(of: Arrays, settings: Settings) -> dict[str, np.ndarray]:
    return {"joined": np.concatenate(list(of.values()), axis=settings["axis"])}


def _same_shape(of: Arrays) -> None:
    if len(shapes := {array.shape for array in of.values()}) > 1:
        raise ValueError(f"tensors of different shapes: {sorted(map(list, shapes))}")


def _mean_made(
    where: str, of: Mapping[str, TensorSpec], settings: Settings
) -> tuple[TensorSpec, ...]:
    _float(where, of["0"])
    shape, weights = _alike(where, of), settings["weights"]
    if weights and len(weights) != len(of):
        raise CompositionError(where, f"{len(of)} tensors have {len(weights)} weights")
    return (TensorSpec("mean", of["0"].datatype, tuple(shape)),)


def _mean(of: Arrays, settings: Settings) -> dict[str, np.ndarray]:
    """Of those that are there, in the order of the list, so that the sum is always the same."""
    _same_shape(of)
    weights = settings["weights"]
    each = [float(weights[int(place)]) if weights else 1.0 for place in of]
    total = np.zeros(())
    for array, weight in zip(of.values(), each, strict=True):
        total = total + array.astype(np.float64) * weight
    return {"mean": (total / sum(each)).astype(next(iter(of.values())).dtype)}


def _vote_made(
    where: str, of: Mapping[str, TensorSpec], settings: Settings
) -> tuple[TensorSpec, ...]:
    _float(where, of["0"])
    shape = _alike(where, of)
    if not shape:
        raise CompositionError(where, f"{of['0'].name} has no axis of classes")
    rows = tuple(shape[:-1])
    return (TensorSpec("label", "INT64", rows), TensorSpec("share", "FP32", rows))


def _vote(of: Arrays, settings: Settings) -> dict[str, np.ndarray]:
    """Each tensor has one vote a row, for the largest of its last axis. Of classes with as many
    votes the one with the larger sum of scores is taken, of these the first."""
    _same_shape(of)
    arrays = [array.astype(np.float64) for array in of.values()]
    votes = np.zeros(arrays[0].shape)
    for array in arrays:
        votes += np.arange(array.shape[-1]) == array.argmax(axis=-1)[..., None]
    most = votes.max(axis=-1, keepdims=True)
    voted = votes == most
    with np.errstate(invalid="ignore"):  # of infinite scores
        totals = np.where(voted, sum(arrays), -np.inf)
    # Never one that nobody voted for, where the sums are infinite or no numbers.
    label = (voted & ~(totals < totals.max(axis=-1, keepdims=True))).argmax(axis=-1)
    return {
        "label": np.asarray(label, np.int64),
        "share": np.asarray(most[..., 0] / len(arrays), np.float32),
    }


# --- settings -----------------------------------------------------------------------------------


def _size(value: Any) -> str:
    fits = isinstance(value, list) and len(value) == 2
    if fits and all(type(side) is int and 0 < side <= MOST_SIDE for side in value):
        return ""
    return f"is [height, width], of 1 to {MOST_SIDE} pixels"


def _share(value: Any) -> str:
    return "" if type(value) in (int, float) and 0 <= value <= 1 else "is from 0 to 1"


def _number(value: Any) -> str:
    return "" if type(value) in (int, float) and abs(value) < 1e30 else "is a number"


def _whole(value: Any) -> str:
    return "" if type(value) is int and abs(value) < 1 << 31 else "is a whole number"


def _count(value: Any) -> str:
    return "" if type(value) is int and 0 <= value < 1 << 31 else "is a whole number from 0 on"


def _boxes(value: Any) -> str:
    fits = type(value) is int and 1 <= value <= MOST_BOXES
    return "" if fits else f"is a count from 1 to {MOST_BOXES}"


def _weights(value: Any) -> str:
    fits = isinstance(value, list) and all(type(w) in (int, float) and 0 < w < 1e6 for w in value)
    return "" if fits else "are numbers above 0"


_CHECKS: Mapping[str, Callable[[Any], str]] = {
    "size": _size,
    "iou": _share,
    "above": _number,
    "most": _boxes,
    "class": _count,
    "axis": _whole,
    "start": _count,
    "stop": _count,
    "weights": _weights,
}
OPERATORS: Mapping[str, Operator] = {
    "crop": Operator(_crop_made, _crop, ("image", "boxes"), settings={"size": REQUIRED}),
    "resize": Operator(_resize_made, _resize, ("of",), settings={"size": REQUIRED}),
    "nms": Operator(
        _nms_made,
        _nms,
        ("boxes", "scores"),
        settings={"iou": 0.5, "above": REQUIRED, "most": REQUIRED, "class": 0},
    ),
    "select": Operator(
        _select_made, _select, ("of",), settings={"axis": 0, "start": 0, "stop": REQUIRED}
    ),
    "softmax": Operator(_softmax_made, _softmax, ("of",), settings={"axis": -1}),
    "concat": Operator(_concat_made, _concat, any_number=True, settings={"axis": 0}),
    "mean": Operator(_mean_made, _mean, any_number=True, settings={"weights": []}),
    "vote": Operator(_vote_made, _vote, any_number=True),
}
# Those that take what is there where an optional part was left out.
OF_THOSE_THERE = frozenset(("mean", "vote"))
