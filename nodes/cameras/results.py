"""A frame's result as the JSON document that a sink gets."""

from __future__ import annotations

from typing import Any

import numpy as np

from shards.cameras import Result, document

# Values of an answer that are told where its model declares no task: 4 KB as text. A larger answer
# is asked for by name: `swarm.connect`.
MOST_VALUES = 512


def told(found: Result | None, outputs: dict[str, np.ndarray]) -> dict[str, Any]:
    """The fields of a result. found: as the model's task reads it, None where it has none."""
    if found is not None:
        return document(found)
    shapes = {name: list(array.shape) for name, array in outputs.items()}
    if sum(array.size for array in outputs.values()) > MOST_VALUES:
        return {"shapes": shapes}
    return {"outputs": {name: array.tolist() for name, array in outputs.items()}}
