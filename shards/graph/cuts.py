"""Where a graph may be cut: the sensible positions, what a cut costs, a bounded choice of cuts.

A position p lies right before node p (see `shards.graph.graph`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from onnx import NodeProto

from shards.graph.graph import Graph, names_read
from shards.graph.tensor_types import TensorType

# A runtime computes one of these in the same pass as the operator before it.
_ACTIVATIONS = frozenset(
    {"Relu", "LeakyRelu", "PRelu", "ThresholdedRelu", "Clip", "Elu", "Selu", "Celu", "Gelu"}
    | {"Sigmoid", "HardSigmoid", "HardSwish", "Swish", "Mish", "Tanh", "Softplus", "Softsign"}
)
# Operators that a runtime fuses with the activation that follows.
_FUSED_WITH_ACTIVATION = frozenset(
    {"Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Sum", "Mul", "ConvInteger"}
    | {"MatMulInteger", "QLinearConv", "QLinearMatMul"}
    | {"BatchNormalization", "InstanceNormalization"}
)
# Operators that a runtime fuses with the constant scale or bias that follows.
_FUSED_WITH_SCALE = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_SCALES_AND_BIASES = frozenset({"Add", "Mul", "Sub", "Div", "BatchNormalization"})


def sensible_cuts(graph: Graph, types: Mapping[str, TensorType]) -> list[int]:
    """The positions from 1 to n-1 where a cut costs little, ascending.

    A sensible cut never parts an operator from its activation, bias or scale. It never sends a
    dequantized tensor, since the 8-bit form is four times smaller. It never sends a tensor of a
    type that cannot cross the mesh.
    """
    return [p for p in range(1, len(graph)) if not _fault_of(graph, types, p)]


def why_no_cuts(graph: Graph, types: Mapping[str, TensorType]) -> str:
    """Why other positions are no sensible cuts: the reasons, each with its number of positions."""
    if len(graph) < 2:
        return "it has one layer"
    faults = Counter(_fault_of(graph, types, position) for position in range(1, len(graph)))
    del faults[""]
    places = len(graph) - 1
    return "; ".join(f"at {n} of {places} places {fault}" for fault, n in faults.most_common())


def _fault_of(graph: Graph, types: Mapping[str, TensorType], position: int) -> str:
    """Why a position is no sensible cut, "" where it is one."""
    live = graph.live[position]
    if not live:
        return "the layers behind depend on no input"  # random numbers, for example
    for name in live:
        if types[name].datatype is None:
            return f"a {types[name].ort} would be sent, which cannot cross the mesh"
    if any(_parts_a_pair(graph, name, position) for name in live):
        return "the cut would part operators that run as one"
    return ""


def _parts_a_pair(graph: Graph, name: str, position: int) -> bool:
    """Whether sending this live tensor parts its maker from a reader that belongs to it."""
    made_by = graph.producer[name]
    readers = [graph.nodes[user] for user in graph.consumers[name] if user >= position]
    if any(node.op_type == "QuantizeLinear" for node in readers):
        return True
    if made_by < 0:
        return False
    maker = graph.nodes[made_by]
    if maker.op_type == "DequantizeLinear":
        return bool(readers)
    products = [node for node in readers if node.op_type == "Mul"]
    if maker.op_type in _ACTIVATIONS and products:
        return any(_is_gate(name, maker, product) for product in products)
    if maker.op_type in _FUSED_WITH_ACTIVATION and any(
        node.op_type in _ACTIVATIONS for node in readers
    ):
        return True
    return maker.op_type in _FUSED_WITH_SCALE and any(
        node.op_type in _SCALES_AND_BIASES
        and all(graph.is_constant(other) for other in names_read(node) if other != name)
        for node in readers
    )


def _is_gate(name: str, activation: NodeProto, product: NodeProto) -> bool:
    """Whether the product is x * activation(x), as in a Swish: all its other factors are x."""
    return set(names_read(product)) - {name} <= set(names_read(activation))


def cut_bytes(graph: Graph, types: Mapping[str, TensorType], position: int) -> int:
    """Bytes that cross a cut at this position. An unknown size counts as 1."""
    return sum(_tensor_bytes(types[name]) for name in graph.live[position])


def _tensor_bytes(kind: TensorType) -> int:
    """Bytes of one tensor; 0 for a type that cannot cross the mesh."""
    return kind.spec().nbytes if kind.datatype else 0


def node_costs(graph: Graph, types: Mapping[str, TensorType]) -> list[float]:
    """A rough cost of each node in multiply-adds.

    The cost is the number of output elements. Convolutions and matrix products multiply it by the
    number of weights that each element takes. This is good enough to spread candidates evenly
    over the work; the choice among the candidates goes by measured times.
    """
    costs = []
    for node in graph.nodes:
        made = sum(_elements(types[name]) for name in node.output if name in types)
        taps = 1.0
        if node.op_type in _FUSED_WITH_SCALE and len(node.input) > 1:
            taps = _weights_per_element(graph, types, node.op_type, node.input[1])
        costs.append(made * taps + 1.0)
    return costs


def _weights_per_element(
    graph: Graph, types: Mapping[str, TensorType], op_type: str, weight: str
) -> float:
    """How many weights one output element of a convolution or a matrix product takes."""
    made_by = graph.constant_nodes.get(weight)
    if made_by is not None and made_by.op_type == "DequantizeLinear":
        weight = made_by.input[0]
    if weight in graph.initializers:
        dims = tuple(graph.initializers[weight].dims)
    elif weight in types:
        dims = tuple(dim if isinstance(dim, int) else 1 for dim in types[weight].shape)
    else:
        return 1.0
    if not dims:
        return 1.0
    outputs = dims[0] if op_type in ("Conv", "ConvTranspose") else dims[-1]
    return float(math.prod(dims) / max(1, outputs))


def _elements(kind: TensorType) -> float:
    return float(math.prod(dim if isinstance(dim, int) else 1 for dim in kind.shape))


def thin_out(
    positions: Sequence[int], bytes_at: Mapping[int, int], costs: Sequence[float], limit: int
) -> list[int]:
    """At most `limit` of the positions, ascending: the lightest one of each equal share of cost.

    `bytes_at` gives the bytes that cross each position, `costs` the cost of each node. Of two
    equally light positions the later one is taken: it is nearer to the end of the operator that
    shrank the tensors.
    """
    if len(positions) <= limit:
        return list(positions)
    done = list(accumulate(costs, initial=0.0))
    lightest: dict[int, int] = {}
    for position in positions:
        share = min(limit - 1, int(done[position] / done[-1] * limit))
        held = lightest.get(share)
        if held is None or bytes_at[position] <= bytes_at[held]:
            lightest[share] = position
    # A share without a position leaves room for the lightest position of the other shares.
    chosen = set(lightest.values())
    spare = sorted((p for p in positions if p not in chosen), key=lambda p: (bytes_at[p], p))
    return sorted(chosen | set(spare[: limit - len(chosen)]))


def nearest_position(positions: Iterable[int], wanted: int) -> int | None:
    """The position closest to `wanted`, the earlier one on a tie; None when there are none."""
    ordered = sorted(positions)
    index = bisect_left(ordered, wanted)
    return min(
        ordered[max(0, index - 1) : index + 1], key=lambda p: (abs(p - wanted), p), default=None
    )
