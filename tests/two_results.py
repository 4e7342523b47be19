"""A model with a result that is ready before the cut, and one behind it."""

from __future__ import annotations

import numpy as np
from zoo.graph_writer import GraphWriter

VALUES = 4096
"""Of each tensor: large enough for every codec, and for zstd behind it."""
CUT = "hidden"


def early_and_late() -> bytes:
    """Input `input`, outputs `early` and `late`, all FP32 [1, VALUES]. `CUT` is the tensor to cut
    after; `early` crosses that cut beside it."""
    writer = GraphWriter("early_and_late", batch=1)
    tensor = writer.input("input", [VALUES])
    writer.output(writer.add("Mul", [tensor, writer.scalar("half", 0.5)], "early"), [VALUES])
    hidden = writer.add("Neg", [tensor], CUT)
    writer.output(writer.add("Add", [hidden, writer.scalar("one", 1.0)], "late"), [VALUES])
    return writer.to_bytes()


def expected(values: np.ndarray) -> dict[str, np.ndarray]:
    """The exact outputs."""
    return {"early": values * np.float32(0.5), "late": np.float32(1.0) - values}
