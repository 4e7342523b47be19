"""A range of layers of a graph: the tensors at its ends, and the range as a model of its own."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnx import ModelProto, NodeProto, ValueInfoProto

from shards.errors import SplitError
from shards.graph.graph import Graph, names_read
from shards.graph.source import PROTOBUF_LIMIT, subgraphs, weight_bytes
from shards.graph.tensor_types import TensorType
from shards.runtimes.ort import Beside


@dataclass(frozen=True, slots=True)
class LayerRange:
    """The layers `[start, end)` of a graph, and the names of the tensors around them.

    `receives` is everything that arrives and `sends` everything that leaves, each in graph order.
    The layers read `inputs` and make `outputs`. `carries` are tensors that arrive and leave again
    unchanged. `rebuilt` are tensors of earlier layers that this range makes anew from the sizes of
    what arrives (see `shards.graph.graph`).
    """

    start: int
    end: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    carries: tuple[str, ...]
    receives: tuple[str, ...]
    sends: tuple[str, ...]
    rebuilt: tuple[str, ...] = ()


def layer_range(
    graph: Graph, start: int, end: int, *, first: bool = False, last: bool = False
) -> LayerRange:
    """The layers `[start, end)` with the tensors around them.

    The `first` range takes all model inputs, also those that no layer reads. The `last` range sends
    the model's outputs in the model's order, also those that are constants.
    """
    receives = graph.live[start]
    sends = graph.outputs if last else graph.live[end]
    arriving = set(receives)
    carries = tuple(name for name in sends if name in arriving)
    needed = {name for node in graph.nodes[start:end] for name in names_read(node)}
    rebuilt = _rebuilt(graph, start, end, sorted(needed.union(sends)), arriving)
    for name in rebuilt:
        needed.update((graph.rebuilds and graph.rebuilds.reads(name, receives)) or ())
    inputs = tuple(name for name in receives if name in needed)
    if first:
        idle = arriving - needed - set(carries)
        inputs = tuple(name for name in receives if name in needed or name in idle)
    outputs = tuple(name for name in sends if name not in arriving)
    return LayerRange(start, end, inputs, outputs, carries, receives, sends, rebuilt)


def _rebuilt(
    graph: Graph, start: int, end: int, needed: Iterable[str], arriving: Container[str]
) -> tuple[str, ...]:
    """Of the needed tensors those that do not arrive, although earlier layers made them."""
    return tuple(
        name
        for name in needed
        if name not in arriving and 0 <= graph.producer.get(name, end) < start
    )


def extract(
    graph: Graph, part: LayerRange, types: Mapping[str, TensorType], *, limit: int = PROTOBUF_LIMIT
) -> bytes | Beside | None:
    """The serialized model of one range; None if the range makes no tensor.

    Weights that lie outside the graph's message lie outside this one too. The constants that the
    layers need are copied into it. Equal graphs give equal bytes. Raises SplitError when the
    weights take `limit` bytes or more.
    """
    if not part.outputs:
        return None
    nodes = (*_anew(graph, part), *graph.nodes[part.start : part.end])
    model = model_of(graph, nodes, part.inputs, part.outputs, types)
    check_weights(model, f"layers [{part.start}, {part.end})", limit)
    data = bytes(model.SerializeToString(deterministic=True))
    return data if graph.folder is None else Beside(data, graph.folder)


def model_of(
    graph: Graph,
    nodes: Sequence[NodeProto],
    inputs: Sequence[str],
    outputs: Sequence[str],
    types: Mapping[str, TensorType],
) -> ModelProto:
    """A model of these nodes, with copies of the constants that they need."""
    read = [name for node in nodes for name in names_read(node)]
    wanted, copies = _constants(graph, [*read, *outputs])
    ends = ([types[name].value_info() for name in names] for names in (inputs, outputs))
    return assemble(graph, wanted, (*copies, *nodes), *ends)


def _anew(graph: Graph, part: LayerRange) -> list[NodeProto]:
    """The nodes that make what is rebuilt, each once."""
    made: dict[str, NodeProto] = {}
    for name in part.rebuilt:
        for node in graph.rebuilds.nodes(name, part.receives) if graph.rebuilds else ():
            made.setdefault(node.output[0], node)
    return list(made.values())


def assemble(
    graph: Graph,
    weights: Container[str],
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
) -> ModelProto:
    """A model of these nodes, with those of the graph's stored tensors that `weights` names."""
    source = graph.model
    model = ModelProto(ir_version=source.ir_version, producer_name="swarm")
    model.graph.name = "shard"
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(
        tensor for name, tensor in graph.initializers.items() if name in weights
    )
    model.graph.sparse_initializer.extend(
        tensor for name, tensor in graph.sparse.items() if name in weights
    )
    model.graph.input.extend(inputs)
    model.graph.output.extend(outputs)
    # The fusing runtime lists all domains that it knows; an older one may refuse an unknown domain.
    domains = _domains(nodes) | {""}
    model.opset_import.extend(
        opset for opset in source.opset_import if _canonical(opset.domain) in domains
    )
    return model


def check_weights(model: ModelProto, title: str, limit: int = PROTOBUF_LIMIT) -> None:
    """Raise SplitError where the weights of `title` take `limit` bytes or more."""
    weights = weight_bytes(model)
    if weights >= limit:
        raise SplitError(
            f"{title} hold {weights / 2**30:.1f} GiB of weights, "
            "more than one file can (2 GiB): ask for more stages"
        )


def _constants(graph: Graph, names: Iterable[str]) -> tuple[set[str], list[NodeProto]]:
    """All constants that `names` depend on, and the nodes that compute them, in graph order."""
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
    copies: dict[int, NodeProto] = {}
    for node in graph.constant_nodes.values():
        if id(node) in makers:
            copies.setdefault(id(node), node)
    return wanted, list(copies.values())


def _domains(nodes: Iterable[NodeProto]) -> set[str]:
    """The operator domains that these nodes and their subgraphs use."""
    found: set[str] = set()
    for node in nodes:
        found.add(_canonical(node.domain))
        for attribute in node.attribute:
            for subgraph in subgraphs(attribute):
                found |= _domains(subgraph.node)
    return found


def _canonical(domain: str) -> str:
    """The domain's one name: the standard domain may be written in two ways."""
    return "" if domain == "ai.onnx" else domain
