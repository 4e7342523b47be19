"""Results as JSON documents, and as lines that people read."""

from __future__ import annotations

from typing import Any

import numpy as np

from shards.cameras.results import Classes, DepthGrid, Detections, Embedding, Segments, Text
from shards.cameras.task import Result

MOST_DEPTHS = 32  # places along a side, of a document: the whole map is in the outputs


def document(result: Result) -> dict[str, Any]:
    """For JSON. Boxes are left, top, right, bottom, as shares of the picture; keypoints x, y and
    how likely each is seen; corners of turned boxes x and y; masks are COCO's uncompressed runs."""
    if isinstance(result, Detections):
        ids = [None] * len(result) if result.ids is None else result.ids.tolist()
        more = [_beside(result, at) for at in range(len(result))]
        rows = zip(result.boxes, result.scores, result.classes, ids, more, strict=True)
        return {
            "detections": [
                {
                    "label": name_of(result.labels, each),
                    "class": int(each),
                    "score": round(float(score), 5),
                    "box": [round(float(value), 5) for value in box],
                }
                | ({} if number is None else {"id": number})
                | beside
                for box, score, each, number, beside in rows
            ]
        }
    if isinstance(result, Classes):
        return {
            "classes": [
                {
                    "label": name_of(result.labels, each),
                    "class": int(each),
                    "score": round(float(score), 5),
                }
                for each, score in zip(result.classes, result.scores, strict=True)
            ]
        }
    if isinstance(result, Segments):
        return {
            "segments": [
                {
                    "label": name_of(result.labels, each),
                    "class": int(each),
                    "share": round(count / result.classes.size, 5),
                }
                for each, count in _counted(result)
            ],
            "shape": list(result.classes.shape),
        }
    if isinstance(result, DepthGrid):
        values = result.values
        height, width = (min(MOST_DEPTHS, side) for side in values.shape)
        down = np.linspace(0, values.shape[0], height, endpoint=False).astype(int)
        across = np.linspace(0, values.shape[1], width, endpoint=False).astype(int)
        few = values[down][:, across]
        return {
            "depth": {
                "shape": list(values.shape),
                "least": round(float(values.min()), 5),
                "largest": round(float(values.max()), 5),
                "grid": [[round(float(value), 5) for value in row] for row in few],
            }
        }
    if isinstance(result, Text):
        return {"text": result.text, "score": round(result.score, 5)}
    return {"embedding": [float(value) for value in result.vector]}


def _beside(result: Detections, at: int) -> dict[str, Any]:
    """What a head tells of an object beside its box."""
    found: dict[str, Any] = {}
    for name, values in (("points", result.points), ("corners", result.corners)):
        if values is not None:
            found[name] = [[round(float(value), 5) for value in point] for point in values[at]]
    if result.masks is not None:
        counts = result.masks.counts[at].tolist()
        found["mask"] = {"size": list(result.masks.shape), "counts": counts}
    return found


def lines(result: Result, shape: tuple[int, ...] = ()) -> list[str]:
    """For people. shape: the picture's `image.shape`; boxes are in its pixels, and without it in
    thousandths of the picture."""
    if isinstance(result, Embedding):
        first = " ".join(f"{value:.4f}" for value in result.vector[:8])
        return [f"a vector of {len(result.vector)} numbers: {first} …"]
    doc = document(result)
    if isinstance(result, Detections):
        height, width = shape[:2] or (1000, 1000)
        sides = np.array([width, height, width, height])
        boxes = np.rint(result.boxes * sides).astype(int)
        return [
            f"{each['label']} {each['score']:.3f} at {box[0]},{box[1]} to {box[2]},{box[3]}"
            + (f" ({each['id']})" if "id" in each else "")
            + _shown_beside(each, sides)
            for each, box in zip(doc["detections"], boxes, strict=True)
        ] or ["nothing found"]
    if isinstance(result, Classes):
        return [f"{each['label']} {each['score']:.3f}" for each in doc["classes"]]
    if isinstance(result, Text):
        return [f"{result.text} ({result.score:.3f})" if result.text else "nothing read"]
    if isinstance(result, DepthGrid):
        told = doc["depth"]
        high, wide = told["shape"]
        return [f"{wide}x{high} places, from {told['least']:.3f} to {told['largest']:.3f}"]
    return [f"{each['label']} {each['share']:.1%} of the picture" for each in doc["segments"]]


def _shown_beside(each: dict[str, Any], sides: np.ndarray) -> str:
    if "mask" in each:
        size, counts = each["mask"]["size"], each["mask"]["counts"]
        return f", {sum(counts[1::2]) / (size[0] * size[1]):.1%} of the picture"
    if "points" in each:
        return f", {sum(point[2] >= 0.5 for point in each['points'])} points seen"
    if "corners" in each:
        corners = np.rint(np.array(each["corners"]) * sides[:2]).astype(int)
        return ", corners " + " ".join(f"{x},{y}" for x, y in corners)
    return ""


def name_of(labels: tuple[str, ...], number: int) -> str:
    """A class's name, its number where the model has no name for it."""
    return labels[number] if 0 <= number < len(labels) else str(int(number))


def _counted(result: Segments) -> list[tuple[int, int]]:
    """Classes with their places, the most first."""
    values, counts = np.unique(result.classes, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return [(int(values[i]), int(counts[i])) for i in order]
