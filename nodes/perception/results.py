"""A frame's result as the JSON document that a sink gets."""

from __future__ import annotations

from typing import Any

import numpy as np

from shards.task.results import Classes, Detections, Embedding, Segments

# Values of an answer that are told where its model declares no task: 4 KB as text. A larger answer
# is asked for by name: `swarm.connect`.
MOST_VALUES = 512


def told(found: Any, outputs: dict[str, np.ndarray]) -> dict[str, Any]:
    """The fields of a result. found: as the model's task reads it, None where it has none."""
    match found:
        case Detections():
            return {"detections": detections(found)}
        case Classes():
            rows = zip(found.classes.tolist(), found.scores.tolist(), strict=True)
            return {
                "classes": [
                    {"class": number, "label": _label(found.labels, number), "score": _round(score)}
                    for number, score in rows
                ]
            }
        case Segments():
            numbers, counts = np.unique(found.classes, return_counts=True)
            size = max(1, found.classes.size)
            shares = zip(numbers.tolist(), counts.tolist(), strict=True)
            return {
                "segments": [
                    {"class": n, "label": _label(found.labels, n), "share": _round(count / size)}
                    for n, count in shares
                ]
            }
        case Embedding():
            return {"embedding": [_round(value) for value in found.vector.tolist()]}
    shapes = {name: list(array.shape) for name, array in outputs.items()}
    if sum(array.size for array in outputs.values()) > MOST_VALUES:
        return {"shapes": shapes}
    return {"outputs": {name: array.tolist() for name, array in outputs.items()}}


def detections(found: Detections) -> list[dict[str, Any]]:
    """Each object: `box` as shares of the picture: left, top, right, bottom."""
    rows = []
    for at in range(len(found)):
        number = int(found.classes[at])
        row: dict[str, Any] = {
            "box": [_round(value) for value in found.boxes[at].tolist()],
            "score": _round(float(found.scores[at])),
            "class": number,
        }
        if label := _label(found.labels, number):
            row["label"] = label
        if found.ids is not None:
            row["id"] = int(found.ids[at])
        rows.append(row)
    return rows


def _label(labels: tuple[str, ...], number: int) -> str:
    return labels[number] if 0 <= number < len(labels) else ""


def _round(value: float) -> float:
    return round(float(value), 5)
