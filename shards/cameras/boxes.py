"""Boxes: how much two overlap, and which of many stay. Pure.

The arithmetic is that of ONNX's NonMaxSuppression in FP32, so that a graph which holds it gives the
same boxes, in the same order.
"""

from __future__ import annotations

import numpy as np


def upright(boxes: np.ndarray) -> np.ndarray:
    """Boxes [n, 4] of any two opposite corners, as left, top, right, bottom."""
    one, other = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([np.minimum(one, other), np.maximum(one, other)], axis=1)


def overlaps(box: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Intersection over union of one box [4] with others [n, 4] (left, top, right, bottom), as
    [n], 0 for a box without an area. [m, 1, 4] with [n, 4]: of each with each, as [m, n]."""
    sides = np.minimum(box[..., 2:], boxes[..., 2:]) - np.maximum(box[..., :2], boxes[..., :2])
    sides = np.maximum(sides, 0)
    both = sides[..., 0] * sides[..., 1]
    area = (box[..., 2] - box[..., 0]) * (box[..., 3] - box[..., 1])
    areas = (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
    union = area + areas - both
    there = (both > 0) & (area > 0) & (areas > 0) & (union > 0)
    return np.where(there, both / np.where(there, union, 1), 0)


def kept(boxes: np.ndarray, scores: np.ndarray, iou: float, most: int) -> np.ndarray:
    """Indices of the boxes that stay, the likeliest first, at most `most`: none of them overlaps
    a likelier one by more than `iou`. Of equal scores, the first box goes first. Boxes are given by
    any two opposite corners, as in ONNX."""
    order = np.argsort(-scores, kind="stable")
    boxes = upright(boxes[order])
    alive = np.ones(len(order), bool)
    found: list[int] = []
    limit = np.float32(iou)
    for index in range(len(order)):
        if not alive[index]:
            continue
        found.append(index)
        if len(found) == most:
            break
        alive[index + 1 :] &= ~(overlaps(boxes[index], boxes[index + 1 :]) > limit)
    return order[found]


def chosen(
    boxes: np.ndarray,
    scores: np.ndarray,
    threshold: float,
    iou: float,
    most: int,
    *,
    each_class: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows [n] of the boxes that count, their scores [n] and classes [n], the likeliest first.

    boxes: [N, 4], scores: [N, classes], FP32. A box counts with its likeliest class, the first of
    equal ones, where that score is above `threshold`. Boxes of different classes do not suppress
    each other. each_class: a box counts with each class whose score is above.
    """
    if each_class:
        rows, classes = np.nonzero(scores > np.float32(threshold))
    else:
        rows = np.nonzero(scores.max(axis=1, initial=0) > np.float32(threshold))[0]
        classes = scores[rows].argmax(axis=1) if len(rows) else rows
    values = scores[rows, classes]
    picks = [np.zeros(0, np.intp)]
    for each in np.unique(classes):
        mine = np.nonzero(classes == each)[0]
        picks.append(mine[kept(boxes[rows[mine]], values[mine], iou, most)])
    together = np.concatenate(picks)
    together = together[np.argsort(-values[together], kind="stable")[:most]]
    return rows[together], values[together], classes[together]
