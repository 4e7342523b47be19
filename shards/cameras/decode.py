"""A model's raw outputs as boxes, classes, segments, depths or a vector. numpy only.

`DECODERS` names the shapes of heads that are known, with the number of outputs that each reads:

- `yolo-v8`: [1, 4 + classes, n]: centre x, centre y, width, height in pixels of the model's
  picture, then a score for each class.
- `yolo-v5`: [1, n, 5 + classes]: the same, then the score of being an object, which multiplies
  those of the classes.
- `ultraface` and `ssd`: boxes [1, n, 4] (left, top, right, bottom in shares), scores
  [1, n, 1 + classes] after a softmax, class 0 the background.
- `ssd-anchors`: offsets [1, n, 4] and scores as above, anchors [n, 4] or [1, n, 4]: centre x,
  centre y, width, height in shares. Variances 0.1 and 0.2 (W. Liu et al., SSD, 2016).
- `yolo-end2end`: [1, n, 6]: left, top, right, bottom in pixels, score, class (YOLOv10, YOLO26).
- `rt-detr`: boxes [1, n, 4]: centre x, centre y, width, height in shares; [1, n, classes] before
  a sigmoid (RT-DETR, D-FINE, RF-DETR). `rt-detr-scores`: both in [1, n, 4 + classes], after it.
  `rt-detr-rows`: [1, n, 6]: such a box, a score, a class (both of Ultralytics).
- `detr`: as `rt-detr`, with a last class for no object, before a softmax (N. Carion et al., 2020).
- `boxes-scores-classes`: [1, n, 4], [1, n], [1, n]: left, top, right, bottom in pixels, as RT-DETR
  and D-FINE write them for `orig_target_sizes`.
- `yolox`: [1, n, 5 + classes]: centre as steps from its cell's corner, sides as logarithms of
  cells, then as `yolo-v5` (Z. Ge et al., YOLOX, 2021).
- `db`: [1, 1, height, width]: how likely a place is text (`shards.cameras.text`).

`yolo-v8` and `yolo-end2end` may have more values behind those of a box: `-seg`: the weights of its
mask, [1, weights, h, w] of which are the second output; `-pose`: keypoints, x and y in pixels, and
how visible it is; `-obb`: an angle in radians by which the box is turned around its centre, given
as centre x, centre y, width, height. See `shards.cameras.beside`.

None of `yolo-end2end`, `rt-detr`, `detr` and `boxes-scores-classes` suppresses boxes that overlap.
A box counts with its likeliest class; one of `rt-detr` with each class above the threshold, as its
authors' own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shards.cameras.boxes import chosen
from shards.errors import InputError

DECODERS: Mapping[str, Mapping[str, int]] = {
    "detect": {"yolo-v8": 1, "yolo-v5": 1, "ultraface": 2, "ssd": 2, "ssd-anchors": 3}
    | {"yolo-end2end": 1, "yolox": 1, "rt-detr": 2, "rt-detr-scores": 1, "rt-detr-rows": 1}
    | {"detr": 2, "boxes-scores-classes": 3, "db": 1}
    | {"yolo-v8-seg": 2, "yolo-v8-pose": 1, "yolo-v8-obb": 1}
    | {"yolo-end2end-seg": 2, "yolo-end2end-pose": 1, "yolo-end2end-obb": 1},
    "classify": {"logits": 1, "probabilities": 1},
    "segment": {"argmax": 1, "argmax-last": 1, "classes": 1},
    "embed": {"embedding": 1},
    "depth": {"depth": 1},
    "read": {"ctc": 1, "ctc-logits": 1},
}
# What a head's outputs are, for people.
READINGS: Mapping[str, str] = {
    "yolo-v8": "centres and sizes in pixels, a score for each class",
    "yolo-v5": "centres and sizes in pixels, a score for an object times one for each class",
    "ultraface": "corners in shares, scores after a softmax, the background first",
    "ssd": "corners in shares, scores after a softmax, the background first",
    "ssd-anchors": "offsets of anchors, scores after a softmax, the background first",
    "yolo-end2end": "corners in pixels, a score and a class each, already suppressed",
    "rt-detr": "centres and sizes in shares, logits for each class that a sigmoid makes scores",
    "yolox": "steps and logarithms in cells, a score for an object times one for each class",
    "rt-detr-scores": "centres and sizes in shares, a score for each class",
    "rt-detr-rows": "centres and sizes in shares, a score and a class each",
    "detr": "centres and sizes in shares, logits for each class and for no object, the last one",
    "boxes-scores-classes": "corners in pixels, scores, classes",
    "db": "a map of how likely each place is text; the outlines of its parts are boxes",
    "yolo-v8-seg": "as yolo-v8, with the weights of a mask's parts in the second output",
    "yolo-v8-pose": "as yolo-v8, with keypoints in pixels",
    "yolo-v8-obb": "as yolo-v8, with an angle by which each box is turned",
    "yolo-end2end-seg": "as yolo-end2end, with the weights of a mask's parts in the second output",
    "yolo-end2end-pose": "as yolo-end2end, with keypoints in pixels",
    "yolo-end2end-obb": "centres and sizes in pixels, a score, a class and an angle each",
    "logits": "a softmax makes them scores",
    "probabilities": "scores as they are",
    "argmax": "the largest along axis 1",
    "argmax-last": "the largest along axis 3",
    "classes": "classes as whole numbers",
    "embedding": "a vector, made as long as 1",
    "depth": "a number at each place, as the network means it",
    "ctc": "a score for no letter and for each letter, place by place along the line",
    "ctc-logits": "as ctc, before a softmax",
}
# Pixels of the model's picture to a cell: of YOLO's three scales, of the four of P6 and
# P2, and of the two of tiny ones.
STRIDES = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32), (16, 32))
BESIDE = ("seg", "pose", "obb")
EACH_CLASS = frozenset({"rt-detr"})  # a box counts with each of its classes above the threshold
CENTRE_VARIANCE = 0.1
SIZE_VARIANCE = 0.2


def form_of(decode: str) -> tuple[str, str]:
    """The form of a head's boxes, and which of `BESIDE` each of them has, "" for nothing."""
    form, _, beside = decode.rpartition("-")
    return (form, beside) if beside in BESIDE else (decode, "")


def is_chosen(decode: str) -> bool:
    """Whether the network has chosen its boxes itself: one row an object, with its class."""
    return form_of(decode)[0] in ("yolo-end2end", "rt-detr-rows", "boxes-scores-classes")


def suppresses(decode: str) -> bool:
    """Whether boxes that overlap are dropped."""
    return not (is_chosen(decode) or decode in ("rt-detr", "rt-detr-scores", "detr", "db"))


@dataclass(frozen=True, slots=True)
class Raw:
    """Boxes of the model's picture, the likeliest first: [n, 4] in shares, scores [n], classes [n],
    and the values [n, m] that each has beside it."""

    boxes: np.ndarray
    scores: np.ndarray
    classes: np.ndarray
    more: np.ndarray


def read_detections(
    decode: str,
    outputs: Sequence[np.ndarray],
    size: tuple[int, int],
    threshold: float,
    iou: float,
    top: int,
    more: int = 0,
) -> Raw:
    """size: width and height of the model's picture. more: values beside a box. Raises
    InputError."""
    if is_chosen(decode):
        return _end_to_end(decode, outputs, size, threshold, top, more)
    boxes, scores, beside = candidates(decode, outputs, size, more)
    if form_of(decode)[1] == "obb":
        iou, most = 1.0, len(boxes)  # what is turned overlaps otherwise: `shards.cameras.beside`
    else:
        most = top
    rows, values, classes = chosen(
        boxes, scores, threshold, iou, most, each_class=decode in EACH_CLASS
    )
    return Raw(boxes[rows], values, classes, beside[rows])


def candidates(
    decode: str, outputs: Sequence[np.ndarray], size: tuple[int, int], more: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All boxes [N, 4] in shares, their scores [N, classes], and what is beside them [N, more],
    FP32. Raises InputError."""
    form = form_of(decode)[0]
    if form in ("yolo-v8", "yolo-v5", "yolox", "rt-detr-scores"):
        head = _row(decode, outputs[0], 3).astype(np.float32)
        if form == "yolo-v8":
            head = head.T
        first = 5 if form in ("yolo-v5", "yolox") else 4
        end = head.shape[1] - more
        if end <= first:
            raise InputError(decode, f"more than {first + more} values a box", str(head.shape))
        scores, beside = head[:, first:end], head[:, end:]
        if first == 5:
            scores = np.multiply(scores, head[:, 4:5], dtype=np.float32)
        if form == "rt-detr-scores":
            return corners(head[:, :4]), np.ascontiguousarray(scores), beside
        if form == "yolox":
            corner, stride = cells(size)
            if len(corner) != len(head):
                raise InputError(decode, f"{len(corner)} boxes", str(list(outputs[0].shape)))
            centres = (head[:, :2] + corner) * stride
            head = np.concatenate([centres, np.exp(head[:, 2:4]) * stride], axis=1)
        pixels = np.array([*size, *size], np.float32)
        return corners(head[:, :4]) / pixels, np.ascontiguousarray(scores), beside
    boxes = _row("boxes", outputs[0], 3).astype(np.float32)
    scores = _row("scores", outputs[1], 3).astype(np.float32)
    least = 1 if form == "rt-detr" else 2
    if boxes.shape[1] != 4 or len(boxes) != len(scores) or scores.shape[1] < least:
        raise InputError(decode, "[1,n,4] and [1,n,classes]", f"{boxes.shape}, {scores.shape}")
    beside = np.zeros((len(boxes), 0), np.float32)
    if form == "rt-detr":
        return corners(boxes), sigmoid(scores), beside
    if form == "detr":
        return corners(boxes), softmax_of_rows(scores)[:, :-1], beside
    if form == "ssd-anchors":
        anchors = outputs[2].reshape(-1, 4).astype(np.float32)
        if anchors.shape != boxes.shape:
            raise InputError("anchors", str(boxes.shape), str(outputs[2].shape))
        centres = boxes[:, :2] * np.float32(CENTRE_VARIANCE) * anchors[:, 2:] + anchors[:, :2]
        sides = np.exp(boxes[:, 2:] * np.float32(SIZE_VARIANCE)) * anchors[:, 2:]
        boxes = corners(np.concatenate([centres, sides], axis=1))
    return boxes, np.ascontiguousarray(scores[:, 1:]), beside


def _end_to_end(
    decode: str,
    outputs: Sequence[np.ndarray],
    size: tuple[int, int],
    threshold: float,
    top: int,
    more: int,
) -> Raw:
    form, beside = form_of(decode)
    if form == "boxes-scores-classes":
        boxes = _row("boxes", outputs[0], 3).astype(np.float32)
        pair = [_row("rows", each, 2).astype(np.float32) for each in outputs[1:]]
        if boxes.shape[1:] != (4,) or any(each.shape != boxes.shape[:1] for each in pair):
            raise InputError(decode, "[1,n,4], [1,n], [1,n]", str([o.shape for o in outputs]))
        head = np.concatenate([boxes, *(each[:, None] for each in pair)], axis=1)
    else:
        head = _row(decode, outputs[0], 3).astype(np.float32)
    if head.shape[1] != 6 + more:
        raise InputError(decode, f"[1,n,{6 + more}]", str(list(outputs[0].shape)))
    head = head[head[:, 4] > np.float32(threshold)]
    head = head[np.argsort(-head[:, 4], kind="stable")[:top]]
    boxes = head[:, :4]
    if beside == "obb" or form == "rt-detr-rows":
        boxes = corners(boxes)
    if form != "rt-detr-rows":
        boxes = np.divide(boxes, np.array([*size, *size], np.float32), dtype=np.float32)
    return Raw(boxes, head[:, 4], head[:, 5].astype(np.int64), head[:, 6:])


def cells(size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The corner [n, 2] of each of a picture's cells, counted in cells, and its pixels [n, 1], of
    three scales, the smallest cells first, row by row, FP32."""
    corner, stride = [], []
    for pixels in STRIDES[0]:
        across, down = size[0] // pixels, size[1] // pixels
        corner.append(
            np.stack([np.tile(np.arange(across), down), np.repeat(np.arange(down), across)], 1)
        )
        stride.append(np.full((across * down, 1), pixels, np.float32))
    return np.concatenate(corner).astype(np.float32), np.concatenate(stride)


def sigmoid(values: np.ndarray) -> np.ndarray:
    """FP32."""
    small = np.exp(-np.abs(values))
    return np.asarray(np.where(values >= 0, 1, small) / (1 + small), np.float32)


def corners(boxes: np.ndarray) -> np.ndarray:
    """[n, 4] from centre x, centre y, width, height to left, top, right, bottom, FP32."""
    half = boxes[:, 2:] * np.float32(0.5)
    return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)


def read_classes(decode: str, output: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores [k] and classes [k], the likeliest first. output: [1, classes]. Raises InputError."""
    row = output.astype(np.float32).reshape(len(output) if output.ndim else 0, -1)
    if len(row) != 1 or not row.size:
        raise InputError("classes", "[1,classes]", str(list(output.shape)))
    scores = softmax(row[0]) if decode == "logits" else row[0]
    order = np.argsort(-scores, kind="stable")[:top]
    return scores[order], order


def softmax(values: np.ndarray) -> np.ndarray:
    """[n], FP32."""
    raised = np.exp(values - values.max())
    return np.asarray(raised / raised.sum(), np.float32)


def softmax_of_rows(values: np.ndarray) -> np.ndarray:
    """Along the last axis, FP32."""
    raised = np.exp(values - values.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True), np.float32)


def read_depth(output: np.ndarray) -> np.ndarray:
    """[height, width], FP32. output: [1, height, width], or with an axis of 1 behind the first or
    at the end. Raises InputError."""
    if output.ndim == 4 and 1 in (output.shape[1], output.shape[3]):
        output = output[:, 0] if output.shape[1] == 1 else output[..., 0]
    return _row("depth", output, 3).astype(np.float32)


def read_letters(decode: str, output: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The likeliest class [t] of each place along a line, and its score [t]. output: [1, t,
    1 + letters]. Raises InputError."""
    rows = _row("letters", output, 3).astype(np.float32)
    scores = softmax_of_rows(rows) if decode == "ctc-logits" else rows
    return scores.argmax(axis=1), scores.max(axis=1)


def read_segments(decode: str, output: np.ndarray) -> np.ndarray:
    """The class of each place, [height, width]; uint8 up to 256 classes. output: [1, classes,
    height, width], `argmax-last`: [1, height, width, classes], `classes`: [1, height, width].
    Raises InputError."""
    if decode == "classes":
        return _row("classes", output, 3)
    grid = _row("classes", output, 4)
    axis = 0 if decode == "argmax" else 2
    found = np.asarray(grid.argmax(axis))
    return found.astype(class_dtype(grid.shape[axis]))


def class_dtype(classes: int) -> type:
    """The smallest type in which classes travel."""
    return np.uint8 if classes <= 256 else np.uint16 if classes <= 65536 else np.int64


def read_embedding(output: np.ndarray) -> np.ndarray:
    """[d], FP32, of length 1; all 0 stays 0. output: [1, d] or [1, d, 1, 1]. Raises InputError."""
    if output.ndim < 2 or len(output) != 1:
        raise InputError("embedding", "[1,d]", str(list(output.shape)))
    vector = output.astype(np.float32).reshape(-1)
    length = np.sqrt((vector * vector).sum())
    return np.asarray(vector / length if length > 0 else vector)


def _row(name: str, array: np.ndarray, rank: int) -> np.ndarray:
    """The one row of a batch of one. Raises InputError."""
    if array.ndim != rank or len(array) != 1:
        raise InputError(name, f"[1,…] of rank {rank}", str(list(array.shape)))
    return np.asarray(array[0])
