"""Results as JSON documents, and as lines that people read."""

from __future__ import annotations

from typing import Any

import numpy as np

from shards.task.results import Classes, Detections, Embedding, Segments
from shards.task.task import Result


def document(result: Result) -> dict[str, Any]:
    """For JSON. Boxes are left, top, right, bottom, as shares of the picture."""
    if isinstance(result, Detections):
        ids = [None] * len(result) if result.ids is None else result.ids.tolist()
        rows = zip(result.boxes, result.scores, result.classes, ids, strict=True)
        return {
            "detections": [
                {
                    "label": name_of(result.labels, each),
                    "class": int(each),
                    "score": round(float(score), 5),
                    "box": [round(float(value), 5) for value in box],
                }
                | ({} if number is None else {"id": number})
                for box, score, each, number in rows
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
    return {"embedding": [float(value) for value in result.vector]}


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
            for each, box in zip(doc["detections"], boxes, strict=True)
        ] or ["nothing found"]
    if isinstance(result, Classes):
        return [f"{each['label']} {each['score']:.3f}" for each in doc["classes"]]
    return [f"{each['label']} {each['share']:.1%} of the picture" for each in doc["segments"]]


def name_of(labels: tuple[str, ...], number: int) -> str:
    """A class's name, its number where the model has no name for it."""
    return labels[number] if 0 <= number < len(labels) else str(int(number))


def _counted(result: Segments) -> list[tuple[int, int]]:
    """Classes with their places, the most first."""
    values, counts = np.unique(result.classes, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return [(int(values[i]), int(counts[i])) for i in order]
