"""A chain of trivially cheap operators with features of an exact size: it measures hops alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shards.zoo.graph_writer import GraphWriter

# In turn over the whole chain. No neighbours cancel or merge, so that graph optimizers keep every
# operator, and no value dies, so that a lost or repeated stage shows in the result.
_OPERATORS = ("Add", "Neg", "Mul")
_ADDEND = np.float32(1.0)
_FACTOR = np.float32(0.75)


def chain(stages: int, feature_bytes: int, work: int = 1, *, batch: int | None = 1) -> bytes:
    """`stages` times `work` elementwise operators.

    Input `features` and output `result`: FP32 [batch, n] with 4 * n = `feature_bytes`, the size of
    every tensor between stages too (per batch row). `chain_expected` computes the result,
    `chain_cuts` names the tensors between the stages.
    """
    elements, rest = divmod(feature_bytes, 4)
    if stages < 1 or work < 1:
        raise ValueError(f"stages and work are at least 1: {stages}, {work}")
    if elements < 1 or rest:
        raise ValueError(f"feature_bytes is a positive multiple of 4 (FP32): {feature_bytes}")
    writer = GraphWriter("chain", batch=batch)
    tensor = writer.input("features", [elements])
    for index in range(stages * work):
        stage, step = divmod(index, work)
        operator = _OPERATORS[index % len(_OPERATORS)]
        if index == stages * work - 1:
            name = "result"
        elif step == work - 1:
            name = _cut(stage + 1)
        else:
            name = f"stage_{stage + 1}.{step}"
        inputs = [tensor]
        if operator == "Add":
            inputs.append(writer.scalar("addend", float(_ADDEND)))
        elif operator == "Mul":
            inputs.append(writer.scalar("factor", float(_FACTOR)))
        tensor = writer.add(operator, inputs, name)
    writer.output(tensor, [elements])
    return writer.to_bytes()


def chain_cuts(stages: int) -> list[str]:
    """The `stages - 1` tensors of `chain(stages, ...)` to cut after, in order, one per cut."""
    return [_cut(stage) for stage in range(1, stages)]


def chain_expected(
    features: NDArray[np.float32], stages: int, work: int = 1
) -> NDArray[np.float32]:
    """What `chain(stages, ..., work)` makes of `features`, to the bit, same shape."""
    x = features
    for index in range(stages * work):
        match _OPERATORS[index % len(_OPERATORS)]:
            case "Add":
                x = x + _ADDEND
            case "Neg":
                x = -x
            case _:
                x = x * _FACTOR
    return x


def _cut(stage: int) -> str:
    return f"stage_{stage}"
