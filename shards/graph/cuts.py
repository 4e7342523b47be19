"""Where a graph may be cut: which positions are sensible, and a bounded choice among them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from shards.graph.graph import Graph, names_read
from shards.graph.tensor_types import TensorType

# A runtime computes these in the same pass as the operator before them.
_ACTIVATIONS = frozenset(
    {"Relu", "LeakyRelu", "PRelu", "ThresholdedRelu", "Clip", "Elu", "Selu", "Celu", "Gelu"}
    | {"Sigmoid", "HardSigmoid", "HardSwish", "Swish", "Mish", "Tanh", "Softplus", "Softsign"}
)
_HEAVY = frozenset(
    {"Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Sum", "Mul", "ConvInteger"}
    | {"MatMulInteger", "QLinearConv", "QLinearMatMul"}
    | {"BatchNormalization", "InstanceNormalization"}
)
_AFFINE = frozenset({"Add", "Mul", "Sub", "Div", "BatchNormalization"})
_MULTIPLY = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


def sensible_cuts(graph: Graph, types: Mapping[str, TensorType]) -> list[int]:
    """Positions 1..n-1 where a cut costs little: no pair that belongs together is torn apart.

    Never between an operator and its activation, bias or scale; never at a dequantized tensor
    whose 8-bit form is four times smaller; never at a tensor that cannot cross the mesh.
    """
    good = []
    for position in range(1, len(graph)):
        live = graph.live[position]
        # Nothing live at all: what follows depends on no input (random numbers, say).
        if live and all(
            types[name].datatype is not None and not _torn(graph, name, position) for name in live
        ):
            good.append(position)
    return good


def _torn(graph: Graph, name: str, position: int) -> bool:
    made_by = graph.producer[name]
    after = [graph.nodes[user] for user in graph.consumers[name] if user >= position]
    if any(node.op_type == "QuantizeLinear" for node in after):
        return True
    if made_by < 0:
        return False
    maker = graph.nodes[made_by]
    if maker.op_type == "DequantizeLinear":
        return bool(after)
    if maker.op_type in _ACTIVATIONS and any(node.op_type == "Mul" for node in after):
        # x * sigmoid(x): the gate and its argument are both alive in between.
        return any(
            set(names_read(node)) - {name} <= set(names_read(maker))
            for node in after
            if node.op_type == "Mul"
        )
    if maker.op_type in _HEAVY and any(node.op_type in _ACTIVATIONS for node in after):
        return True
    return maker.op_type in _MULTIPLY and any(
        node.op_type in _AFFINE
        and all(graph.is_constant(other) for other in names_read(node) if other != name)
        for node in after
    )


def cut_bytes(graph: Graph, types: Mapping[str, TensorType], position: int) -> int:
    """Bytes of the live set at a position; an unknown size counts as 1."""
    return sum(nbytes(types[name]) for name in graph.live[position])


def nbytes(kind: TensorType) -> int:
    """Bytes of one tensor, an unknown size counting as 1; 0 for what cannot cross the mesh."""
    return kind.spec().nbytes if kind.datatype else 0


def node_costs(graph: Graph, types: Mapping[str, TensorType]) -> list[float]:
    """A rough cost of each node in multiply-adds: output size, times taps for the heavy ones.

    Good enough to spread candidates over the work; the balance itself is measured.
    """
    costs = []
    for node in graph.nodes:
        made = sum(_elements(types[name]) for name in node.output if name in types)
        taps = 1.0
        if node.op_type in _MULTIPLY and len(node.input) > 1:
            taps = _taps(graph, types, node.op_type, node.input[1])
        costs.append(made * taps + 1.0)
    return costs


def _taps(graph: Graph, types: Mapping[str, TensorType], op_type: str, weight: str) -> float:
    if weight in graph.initializers:
        dims = tuple(graph.initializers[weight].dims)
    elif weight in types:
        dims = tuple(dim if isinstance(dim, int) else 1 for dim in types[weight].shape)
    else:
        return 1.0
    if not dims:
        return 1.0
    outer = dims[0] if op_type in ("Conv", "ConvTranspose") else dims[-1]
    return float(math.prod(dims) / max(1, outer))


def _elements(kind: TensorType) -> float:
    return float(math.prod(dim if isinstance(dim, int) else 1 for dim in kind.shape))


def thin_out(
    positions: Sequence[int], bytes_at: Mapping[int, int], costs: Sequence[float], limit: int
) -> list[int]:
    """At most `limit` positions: the lightest one of each equal share of the total cost.

    Ties go to the later position, which is nearer to the end of the operator that shrank it.
    """
    if len(positions) <= limit:
        return list(positions)
    done = list(accumulate(costs, initial=0.0))
    best: dict[int, int] = {}
    for position in positions:
        share = min(limit - 1, int(done[position] / done[-1] * limit))
        held = best.get(share)
        if held is None or bytes_at[position] <= bytes_at[held]:
            best[share] = position
    # Shares without a position leave room for the lightest of the others.
    chosen = set(best.values())
    spare = sorted((p for p in positions if p not in chosen), key=lambda p: (bytes_at[p], p))
    return sorted(chosen | set(spare[: limit - len(chosen)]))


def nearest_position(positions: Iterable[int], wanted: int) -> int | None:
    """The position closest to `wanted`, the earlier one on a tie; None when there are none."""
    ordered = sorted(positions)
    index = bisect_left(ordered, wanted)
    return min(
        ordered[max(0, index - 1) : index + 1], key=lambda p: (abs(p - wanted), p), default=None
    )
