"""Cut a range of layers out of a graph, as a model of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onnx import ModelProto, NodeProto

from shards.errors import SplitError
from shards.graph.graph import Graph, names_read
from shards.graph.source import PROTOBUF_LIMIT, subgraphs, weight_bytes
from shards.graph.tensor_types import TensorType


@dataclass(frozen=True, slots=True)
class LayerRange:
    """Which tensors enter, leave and bypass the layers `[start, end)`, by name, in graph order."""

    start: int
    end: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    carries: tuple[str, ...]
    receives: tuple[str, ...]
    sends: tuple[str, ...]


def layer_range(
    graph: Graph, start: int, end: int, *, first: bool = False, last: bool = False
) -> LayerRange:
    """The flow through the layers `[start, end)`.

    The `first` stage takes every model input, needed or not; the `last` one gives the model's
    outputs in the model's order, those that are constants included.
    """
    receives = graph.live[start]
    sends = graph.outputs if last else graph.live[end]
    arriving = set(receives)
    carries = tuple(name for name in sends if name in arriving)
    needed = {name for node in graph.nodes[start:end] for name in names_read(node)}
    inputs = tuple(name for name in receives if name in needed)
    if first:
        idle = arriving - needed - set(carries)
        inputs = tuple(name for name in receives if name in needed or name in idle)
    outputs = tuple(name for name in sends if name not in arriving)
    return LayerRange(start, end, inputs, outputs, carries, receives, sends)


def extract(
    graph: Graph, part: LayerRange, types: Mapping[str, TensorType], *, limit: int = PROTOBUF_LIMIT
) -> bytes | None:
    """The serialized model of one part, the same bytes for the same graph; None without layers.

    Constants are cloned into it. Raises SplitError when it would be `limit` bytes or more.
    """
    if not part.outputs:
        return None
    source = graph.model
    nodes = graph.nodes[part.start : part.end]
    wanted, clones = _constants(
        graph, [*(n for node in nodes for n in names_read(node)), *part.outputs]
    )
    model = ModelProto(ir_version=source.ir_version, producer_name="swarm")
    model.graph.name = "shard"
    model.graph.node.extend(clones)
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(
        tensor for name, tensor in graph.initializers.items() if name in wanted
    )
    model.graph.sparse_initializer.extend(
        tensor for name, tensor in graph.sparse.items() if name in wanted
    )
    model.graph.input.extend(types[name].value_info() for name in part.inputs)
    model.graph.output.extend(types[name].value_info() for name in part.outputs)
    # An older runtime may not know all the domains that the fusing one lists.
    domains = _domains((*clones, *nodes)) | {""}
    model.opset_import.extend(
        opset for opset in source.opset_import if _canonical(opset.domain) in domains
    )
    if weight_bytes(model) >= limit:
        raise SplitError(
            f"layers [{part.start}, {part.end}) hold {weight_bytes(model) / 2**30:.1f} GiB of weights, "
            "more than one file can (2 GiB): ask for more stages"
        )
    return bytes(model.SerializeToString(deterministic=True))


def _constants(graph: Graph, names: Iterable[str]) -> tuple[set[str], list[NodeProto]]:
    """The constants behind `names`, and the nodes that compute them, in graph order."""
    wanted: set[str] = set()
    makers: set[int] = set()
    stack = list(names)
    while stack:
        name = stack.pop()
        if name in wanted or not graph.is_constant(name):
            continue
        wanted.add(name)
        node = graph.constant_nodes.get(name)
        if node is not None:
            makers.add(id(node))
            stack.extend(names_read(node))
    clones: dict[int, NodeProto] = {}
    for node in graph.constant_nodes.values():
        if id(node) in makers:
            clones.setdefault(id(node), node)
    return wanted, list(clones.values())


def _domains(nodes: Iterable[NodeProto]) -> set[str]:
    found: set[str] = set()
    for node in nodes:
        found.add(_canonical(node.domain))
        for attribute in node.attribute:
            for body in subgraphs(attribute):
                found |= _domains(body.node)
    return found


def _canonical(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain
