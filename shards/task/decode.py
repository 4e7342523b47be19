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
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from shards.errors import InputError
from shards.task.boxes import chosen

DECODERS: Mapping[str, Mapping[str, int]] = {
    "detect": {"yolo-v8": 1, "yolo-v5": 1, "ultraface": 2, "ssd": 2, "ssd-anchors": 3},
    "classify": {"logits": 1, "probabilities": 1},
    "segment": {"argmax": 1, "argmax-last": 1, "classes": 1},
    "embed": {"embedding": 1},
}
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
    boxes, scores = candidates(decode, outputs, size)
    return chosen(boxes, scores, threshold, iou, top)


def candidates(
    decode: str, outputs: Sequence[np.ndarray], size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """All boxes [N, 4] in shares, and their scores [N, classes], FP32. Raises InputError."""
    if decode in ("yolo-v8", "yolo-v5"):
        head = _row(decode, outputs[0], 3).astype(np.float32)
        if decode == "yolo-v8":
            head = head.T
        first = 4 if decode == "yolo-v8" else 5
        if head.shape[1] <= first:
            raise InputError(decode, f"more than {first} values a box", str(head.shape))
        scores = head[:, first:]
        if decode == "yolo-v5":
            scores = scores * head[:, 4:5]
        pixels = np.array([*size, *size], np.float32)
        return corners(head[:, :4]) / pixels, np.ascontiguousarray(scores)
    boxes = _row("boxes", outputs[0], 3).astype(np.float32)
    scores = _row("scores", outputs[1], 3).astype(np.float32)
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
