"""A model's graph as the splitter sees it: sorted nodes, live tensors, constants.

A *constant* is a tensor that depends on no model input: an initializer, or the output of a node
that reads constants only. A constant is copied into each shard that uses it and never crosses a
cut. A *position* p in 0..n is the gap before node p. A tensor is *live* at p when it exists before
p and is needed at or after p. Model inputs exist from the start; model outputs are needed until
the end.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from onnx import GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, ValueInfoProto

from shards.errors import ModelError
from shards.graph.source import subgraphs

# A copy of one of these in each shard would draw other numbers in each, so it is no constant.
# Operators that draw random numbers: even two runs on the same inputs differ.
RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial"}
    | {"Bernoulli"}
)


class Rebuilds(Protocol):
    """Tensors that a shard makes anew instead of receiving them: shapes, and what depends on shapes
    alone. They are made from the sizes of tensors that arrive."""

    def reads(self, name: str, alive: Sequence[str]) -> tuple[str, ...] | None:
        """Of the tensors that are alive, those whose sizes are read; None if that is impossible."""
        ...

    def nodes(self, name: str, alive: Sequence[str]) -> list[NodeProto]:
        """The nodes that make the tensor, in order. They may read constants of the graph."""
        ...


@dataclass(frozen=True)
class Graph:
    """A view of one model.

    `nodes` are the nodes that are not constant, in topological order; node indices count these.
    `constant_nodes` maps each constant that a node computes to this node. `initializers` and
    `sparse` are the stored weights by name. `inputs` and `outputs` are the model's own. Tensors
    that `rebuilds` can make anew behind a cut do not cross it, and are not live there. `folder` has
    the files of weights that lie outside the message, None where all lie inside.
    """

    model: ModelProto
    nodes: tuple[NodeProto, ...]
    constant_nodes: Mapping[str, NodeProto]
    initializers: Mapping[str, TensorProto]
    sparse: Mapping[str, SparseTensorProto]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    rebuilds: Rebuilds | None = None
    folder: Path | None = None

    @classmethod
    def of(cls, model: ModelProto, folder: Path | None = None) -> Graph:
        """Sort the nodes and separate the constants.

        Raises ModelError for a cycle, for a tensor that nothing or more than one node produces.
        """
        graph = model.graph
        initializers = {tensor.name: tensor for tensor in graph.initializer}
        sparse = {tensor.values.name: tensor for tensor in graph.sparse_initializer}
        inputs = tuple(v.name for v in graph.input if v.name not in initializers)
        outputs = tuple(value.name for value in graph.output)
        known = {*inputs, *initializers, *sparse}
        ordered = _sorted(graph.node, known)
        constant: set[str] = {*initializers, *sparse}
        constant_nodes: dict[str, NodeProto] = {}
        nodes: list[NodeProto] = []
        for node in ordered:
            if constant.issuperset(names_read(node)) and not is_random(node):
                made = [name for name in node.output if name]
                constant.update(made)
                constant_nodes.update(dict.fromkeys(made, node))
            else:
                nodes.append(node)
        for name in outputs:
            if name not in known and not any(name in node.output for node in ordered):
                raise ModelError(f"model output {name!r} is produced by no node")
        return cls(
            model,
            tuple(nodes),
            constant_nodes,
            initializers,
            sparse,
            inputs,
            outputs,
            folder=folder,
        )

    def __len__(self) -> int:
        return len(self.nodes)

    def is_constant(self, name: str) -> bool:
        """Whether a tensor depends on no model input."""
        return name in self.initializers or name in self.sparse or name in self.constant_nodes

    @cached_property
    def producer(self) -> dict[str, int]:
        """From each tensor to the index of the node that makes it; -1 for a model input."""
        made = dict.fromkeys(self.inputs, -1)
        for index, node in enumerate(self.nodes):
            made.update({name: index for name in node.output if name})
        return made

    @cached_property
    def consumers(self) -> dict[str, tuple[int, ...]]:
        """From each tensor to the indices of the nodes that read it, ascending.

        A node with subgraphs also reads the tensors that these capture from outside.
        """
        found: dict[str, list[int]] = {name: [] for name in self.producer}
        for index, node in enumerate(self.nodes):
            for name in names_read(node):
                if name in found:
                    found[name].append(index)
        return {name: tuple(users) for name, users in found.items()}

    @cached_property
    def last_use(self) -> dict[str, int]:
        """From each tensor to the last position that needs it; n for a model output."""
        last = {name: (users[-1] if users else -1) for name, users in self.consumers.items()}
        last.update({name: len(self.nodes) for name in self.outputs if name in last})
        return last

    @cached_property
    def live(self) -> tuple[tuple[str, ...], ...]:
        """For every position 0..n, the live tensors, in the order in which they are made.

        At position 0 these are all model inputs, at n all model outputs that are not constant.
        """
        here = list(self.inputs)
        sets = [tuple(here)]
        for index, node in enumerate(self.nodes):
            here.extend(name for name in node.output if name)
            here = [name for name in here if self.last_use[name] > index]
            sets.append(self._without_rebuilt(here) if index + 1 < len(self) else tuple(here))
        return tuple(sets)

    def _without_rebuilt(self, names: Sequence[str]) -> tuple[str, ...]:
        rebuilds = self.rebuilds
        if rebuilds is None:
            return tuple(names)
        return tuple(name for name in names if rebuilds.reads(name, names) is None)

    def position_after(self, tensor: str) -> int:
        """The first position at which the tensor exists. Raises KeyError for an unknown tensor."""
        return self.producer[tensor] + 1


def keep_outputs(model: ModelProto, names: Sequence[str]) -> None:
    """Make these tensors the model's outputs, and leave out all that only others need, in place.

    Raises ModelError for a name of no tensor.
    """
    graph = model.graph
    declared = {value.name: value for value in graph.output}
    makers = {name: node for node in graph.node for name in node.output if name}
    for name in names:
        if name not in makers and name not in declared:
            raise ModelError(
                f"--outputs {name}: no such tensor; the outputs are {', '.join(declared)}"
            )
    needed, stack = set[str](), list(names)
    while stack:
        name = stack.pop()
        if name not in needed:
            needed.add(name)
            stack.extend(names_read(makers[name]) if name in makers else ())
    nodes = [node for node in graph.node if needed.intersection(node.output)]
    kept = [declared.get(name) or ValueInfoProto(name=name) for name in names]
    del graph.node[:], graph.output[:]
    graph.node.extend(nodes)
    graph.output.extend(kept)


def names_read(node: NodeProto) -> list[str]:
    """Names of the tensors that a node reads: its inputs, and captures of its subgraphs.

    Each name comes once.
    """
    names = dict.fromkeys(name for name in node.input if name)
    for attribute in node.attribute:
        for subgraph in subgraphs(attribute):
            names.update(dict.fromkeys(_captures(subgraph)))
    return list(names)


def _captures(graph: GraphProto) -> Iterator[str]:
    """Names of the tensors that a subgraph reads from the graphs around it."""
    inner = {value.name for value in graph.input}
    inner.update(tensor.name for tensor in graph.initializer)
    inner.update(tensor.values.name for tensor in graph.sparse_initializer)
    for node in graph.node:
        yield from (name for name in names_read(node) if name not in inner)
        inner.update(node.output)
    yield from (value.name for value in graph.output if value.name not in inner)


def is_random(node: NodeProto) -> bool:
    """Whether a node, or one in a subgraph of it, draws random numbers."""
    return node.op_type in RANDOM or any(
        is_random(inner)
        for attribute in node.attribute
        for subgraph in subgraphs(attribute)
        for inner in subgraph.node
    )


def _sorted(nodes: Sequence[NodeProto], known: Iterable[str]) -> list[NodeProto]:
    """The nodes in topological order, which keeps the given order wherever that is possible.

    `known` are the names of the tensors that exist before any node. Raises ModelError.
    """
    made_by: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.output:
            if name and made_by.setdefault(name, index) != index:
                raise ModelError(f"tensor {name!r} is produced twice")
    available = set(known)
    waits: list[int] = []
    users: dict[int, list[int]] = {}
    for index, node in enumerate(nodes):
        needed = [name for name in names_read(node) if name not in available]
        for name in needed:
            if name not in made_by:
                raise ModelError(
                    f"node {node.name or index!r} ({node.op_type}) reads {name!r}, "
                    "which nothing produces"
                )
        before = {made_by[name] for name in needed}
        waits.append(len(before))
        for producer in before:
            users.setdefault(producer, []).append(index)
    ready = [index for index, count in enumerate(waits) if count == 0]
    order: list[NodeProto] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(nodes[index])
        for user in users.get(index, ()):
            waits[user] -= 1
            if waits[user] == 0:
                heapq.heappush(ready, user)
    if len(order) != len(nodes):
        raise ModelError("the graph has a cycle")
    return order


# They move or convert values, and change none by more than a type's rounding.
_KEEPING = frozenset(
    {"Identity", "Cast", "CastLike", "Dropout", "QuantizeLinear", "DequantizeLinear"}
    | {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand"}
)
# With those of ONNX Runtime's own set, which quantized models have.
SOFTMAX = frozenset({"Softmax", "QLinearSoftmax"})
SIGMOID = frozenset({"Sigmoid", "QLinearSigmoid", "HardSigmoid"})


def made_by(graph: Graph, operators: frozenset[str]) -> frozenset[str]:
    """The outputs whose values one of these operators makes, told through what keeps values."""
    makers: dict[str, NodeProto] = {
        name: node for node in graph.model.graph.node for name in node.output
    }
    return frozenset(name for name in graph.outputs if _maker(makers, name) in operators)


def _maker(makers: Mapping[str, NodeProto], name: str) -> str:
    """The operator that makes a tensor's values, "" for an input."""
    while (node := makers.get(name)) is not None:
        if node.op_type not in _KEEPING:
            return str(node.op_type)
        name = node.input[0]
    return ""
