"""A model's raw outputs as boxes, classes, segments or a vector. numpy only.

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
  a sigmoid (RT-DETR, D-FINE, RF-DETR). Neither of these two suppresses boxes that overlap.
- `yolox`: [1, n, 5 + classes]: centre as steps from its cell's corner, sides as logarithms of
  cells, then as `yolo-v5` (Z. Ge et al., YOLOX, 2021).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from shards.errors import InputError
from shards.task.boxes import chosen

DECODERS: Mapping[str, Mapping[str, int]] = {
    "detect": {"yolo-v8": 1, "yolo-v5": 1, "ultraface": 2, "ssd": 2, "ssd-anchors": 3}
    | {"yolo-end2end": 1, "rt-detr": 2, "yolox": 1},
    "classify": {"logits": 1, "probabilities": 1},
    "segment": {"argmax": 1, "argmax-last": 1, "classes": 1},
    "embed": {"embedding": 1},
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
    "logits": "a softmax makes them scores",
    "probabilities": "scores as they are",
    "argmax": "the largest along axis 1",
    "argmax-last": "the largest along axis 3",
    "classes": "classes as whole numbers",
    "embedding": "a vector, made as long as 1",
}
# Pixels of the model's picture to a cell: of YOLO's three scales, and of the four of P6 models.
STRIDES = ((8, 16, 32), (8, 16, 32, 64))
NO_SUPPRESSION = frozenset({"yolo-end2end", "rt-detr"})
CENTRE_VARIANCE = 0.1
SIZE_VARIANCE = 0.2


def read_detections(
    decode: str,
    outputs: Sequence[np.ndarray],
    size: tuple[int, int],
    threshold: float,
    iou: float,
    top: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Boxes [n, 4] in shares of the model's picture, scores [n], classes [n], the likeliest first.
    size: width and height of the model's picture. Raises InputError."""
    if decode == "yolo-end2end":
        return _end_to_end(outputs[0], size, threshold, top)
    boxes, scores = candidates(decode, outputs, size)
    return chosen(boxes, scores, threshold, iou, top)


def candidates(
    decode: str, outputs: Sequence[np.ndarray], size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """All boxes [N, 4] in shares, and their scores [N, classes], FP32. Raises InputError."""
    if decode in ("yolo-v8", "yolo-v5", "yolox"):
        head = _row(decode, outputs[0], 3).astype(np.float32)
        if decode == "yolo-v8":
            head = head.T
        first = 4 if decode == "yolo-v8" else 5
        if head.shape[1] <= first:
            raise InputError(decode, f"more than {first} values a box", str(head.shape))
        scores = head[:, first:]
        if decode != "yolo-v8":
            scores = scores * head[:, 4:5]
        if decode == "yolox":
            corner, stride = cells(size)
            if len(corner) != len(head):
                raise InputError(decode, f"{len(corner)} boxes", str(list(outputs[0].shape)))
            centres = (head[:, :2] + corner) * stride
            head = np.concatenate([centres, np.exp(head[:, 2:4]) * stride], axis=1)
        pixels = np.array([*size, *size], np.float32)
        return corners(head[:, :4]) / pixels, np.ascontiguousarray(scores)
    boxes = _row("boxes", outputs[0], 3).astype(np.float32)
    scores = _row("scores", outputs[1], 3).astype(np.float32)
    if decode == "rt-detr":
        if boxes.shape[1] != 4 or len(boxes) != len(scores):
            raise InputError(decode, "[1,n,4] and [1,n,classes]", f"{boxes.shape}, {scores.shape}")
        return corners(boxes), sigmoid(scores)
    if boxes.shape[1] != 4 or len(boxes) != len(scores) or scores.shape[1] < 2:
        raise InputError(decode, "[1,n,4] and [1,n,1+classes]", f"{boxes.shape}, {scores.shape}")
    if decode == "ssd-anchors":
        anchors = outputs[2].reshape(-1, 4).astype(np.float32)
        if anchors.shape != boxes.shape:
            raise InputError("anchors", str(boxes.shape), str(outputs[2].shape))
        centres = boxes[:, :2] * np.float32(CENTRE_VARIANCE) * anchors[:, 2:] + anchors[:, :2]
        sides = np.exp(boxes[:, 2:] * np.float32(SIZE_VARIANCE)) * anchors[:, 2:]
        boxes = corners(np.concatenate([centres, sides], axis=1))
    return boxes, np.ascontiguousarray(scores[:, 1:])


def _end_to_end(
    output: np.ndarray, size: tuple[int, int], threshold: float, top: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    head = _row("yolo-end2end", output, 3).astype(np.float32)
    if head.shape[1] != 6:
        raise InputError("yolo-end2end", "[1,n,6]", str(list(output.shape)))
    head = head[head[:, 4] > np.float32(threshold)]
    head = head[np.argsort(-head[:, 4], kind="stable")[:top]]
    pixels = np.array([*size, *size], np.float32)
    return head[:, :4] / pixels, head[:, 4], head[:, 5].astype(np.int64)


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
