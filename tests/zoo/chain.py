"""A chain of cheap operators with features of an exact size, to measure hops without computing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zoo.graph_writer import GraphWriter

# The chain repeats these. Neighbours do not cancel or merge, so graph optimizers keep every
# operator. No value becomes constant, so a lost or repeated stage shows in the result.
_OPERATORS = ("Add", "Neg", "Mul")
_ADDEND = np.float32(1.0)
_FACTOR = np.float32(0.75)


def chain(stages: int, feature_bytes: int, work: int = 1, *, batch: int | None = 1) -> bytes:
    """`stages` times `work` elementwise operators.

    Input `features`, output `result` and all tensors between stages are FP32 [batch, n] with
    4 * n = `feature_bytes`. `chain_expected` computes the result, `chain_cuts` names the tensors
    between the stages.
    """
    elements = feature_bytes // 4
    writer = GraphWriter("chain", batch=batch)
    tensor = writer.input("features", [elements])
    for index in range(stages * work):
        stage, step = divmod(index, work)
        operator = _OPERATORS[index % len(_OPERATORS)]
        if index == stages * work - 1:
            name = "result"
        elif step == work - 1:
            name = _tensor_after(stage + 1)
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
    """The tensors to cut `chain(stages, ...)` after: `stages - 1` names, in order."""
    return [_tensor_after(stage) for stage in range(1, stages)]


def chain_expected(
    features: NDArray[np.float32], stages: int, work: int = 1
) -> NDArray[np.float32]:
    """The exact result of `chain(stages, ..., work)` on `features`, of equal shape."""
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


def _tensor_after(stage: int) -> str:
    """The name of the tensor between this stage and the next one."""
    return f"stage_{stage}"
