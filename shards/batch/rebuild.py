"""Shapes that do not cross a cut: a shard makes them anew from the sizes of what it receives.

An exporter computes a shape once, and every layer of a transformer reads it. Sent along with the
features it would be a tensor without rows, which requests that share a run cannot have in common.
So a shard computes it from its own inputs' sizes, where the formulas are known. What depends on
shapes alone, such as a table of positions, is computed anew by the nodes that made it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from onnx import NodeProto, helper, numpy_helper

from shards.batch.follow import FollowedTensors
from shards.batch.sizes import Size, Symbol
from shards.graph.graph import RANDOM, Graph, names_read
from shards.graph.source import subgraphs
from shards.graph.tensor_types import TensorType

# The work of these is not done again in each shard.
_HEAVY = frozenset(
    {"Conv", "ConvTranspose", "MatMul", "Gemm", "Einsum", "Attention", "LSTM", "GRU", "RNN"}
)
_MOST_NODES = 64  # that are computed again for one tensor
_INTEGERS = ("INT64", "INT32", "BOOL")


def rebuilding(graph: Graph, followed: FollowedTensors, types: Mapping[str, TensorType]) -> Graph:
    """The graph whose shards make shapes anew."""
    return replace(graph, rebuilds=_Shapes(graph, followed, types))


class _Shapes:
    """`shards.graph.graph.Rebuilds`, by the formulas of sizes."""

    def __init__(
        self, graph: Graph, followed: FollowedTensors, types: Mapping[str, TensorType]
    ) -> None:
        self._graph = graph
        self._values = followed.values
        self._types = types
        self._needs: dict[str, frozenset[Symbol] | None] = {}
        self._work: dict[str, int] = {}
        self._places: dict[tuple[str, ...], dict[Symbol, tuple[str, int]]] = {}

    def reads(self, name: str, alive: Sequence[str]) -> tuple[str, ...] | None:
        """See `Rebuilds`."""
        needs = self._need(name)
        if needs is None:
            return None
        places = self._sizes_of(alive)
        if not needs <= places.keys():
            return None
        return tuple(sorted({places[symbol][0] for symbol in needs}))

    def nodes(self, name: str, alive: Sequence[str]) -> list[NodeProto]:
        """See `Rebuilds`."""
        made: list[NodeProto] = []
        self._make(name, self._sizes_of(alive), made, set())
        return made

    def _need(self, name: str) -> frozenset[Symbol] | None:
        """The symbols whose sizes tell the tensor; None where it depends on more than sizes."""
        if name not in self._needs:
            self._needs[name] = None  # in case of a long chain that comes back here
            self._needs[name] = self._found_need(name)
        return self._needs[name]

    def _found_need(self, name: str) -> frozenset[Symbol] | None:
        value = self._values[name]
        index = self._graph.producer.get(name, -1)
        if value.mixed or index < 0 or name in self._graph.outputs:
            return None
        self._work[name] = 1
        if value.elements is not None and self._types[name].datatype in _INTEGERS:
            return frozenset().union(*(size.symbols for size in value.elements))
        node = self._graph.nodes[index]
        if value.rows is not None and value.rows.number is None:
            return None
        if not _is_light(node):
            return None
        found: frozenset[Symbol] = frozenset()
        for each in names_read(node):
            if self._graph.is_constant(each):
                continue
            needs = self._need(each)
            if needs is None:
                return None
            found |= needs
            self._work[name] += self._work[each]
        return found if self._work[name] <= _MOST_NODES else None

    def _sizes_of(self, alive: Sequence[str]) -> dict[Symbol, tuple[str, int]]:
        """Where the sizes are found, among tensors that are not made anew themselves."""
        key = tuple(alive)
        if key not in self._places:
            places: dict[Symbol, tuple[str, int]] = {}
            for name in alive:
                value = self._values[name]
                if self._need(name) is not None:
                    continue
                for axis, size in enumerate(value.dims or ()):
                    if size.symbol is not None:
                        places.setdefault(size.symbol, (name, axis))
            self._places[key] = places
        return self._places[key]

    def _make(
        self,
        name: str,
        places: Mapping[Symbol, tuple[str, int]],
        made: list[NodeProto],
        done: set[str],
    ) -> None:
        """Add the nodes that make a tensor, behind those that make what they read."""
        if name in done or self._graph.is_constant(name):
            return
        done.add(name)
        value = self._values[name]
        if value.elements is not None and self._types[name].datatype in _INTEGERS:
            shape = [size.number or 0 for size in value.known]
            writer = _Writer(made, done, places)
            writer.tensor(name, value.elements, shape, str(self._types[name].datatype))
            return
        node = self._graph.nodes[self._graph.producer[name]]
        for each in names_read(node):
            self._make(each, places, made, done)
        made.append(node)


class _Writer:
    """Writes formulas as nodes."""

    def __init__(
        self, made: list[NodeProto], done: set[str], places: Mapping[Symbol, tuple[str, int]]
    ) -> None:
        self._made = made
        self._done = done
        self._places = places

    def tensor(
        self, name: str, elements: Sequence[Size], shape: Sequence[int], datatype: str
    ) -> None:
        """A tensor of formulas."""
        if all(size.number is not None for size in elements):
            kind = {"INT64": np.int64, "INT32": np.int32, "BOOL": np.bool_}[datatype]
            stored: np.ndarray = np.array([size.number for size in elements], kind)
            self._constant(name, stored.reshape(shape))
            return
        parts = [self._formula(size) for size in elements]
        flat = self._node("Concat", parts, f"{name}/flat", axis=0)
        target = self._constant(f"{name}/shape", np.array(shape, np.int64))
        if datatype == "INT64":
            self._node("Reshape", [flat, target], name)
            return
        wide = self._node("Reshape", [flat, target], f"{name}/wide")
        to = helper.np_dtype_to_tensor_dtype(
            np.dtype(np.int32 if datatype == "INT32" else np.bool_)
        )
        self._node("Cast", [wide], name, to=to)

    def _formula(self, size: Size) -> str:
        """A tensor [1] with the value of a formula."""
        total = ""
        for number, (term, count) in enumerate(size.terms):
            at = f"swarm/({size})/{number}"
            parts = [self._size(symbol) for symbol in term]
            if count != 1 or not parts:
                parts.append(self._constant(f"swarm/{count}", np.array([count], np.int64)))
            product = parts[0]
            for index, part in enumerate(parts[1:]):
                product = self._node("Mul", [product, part], f"{at}/{index}")
            total = self._node("Add", [total, product], f"{at}/sum") if total else product
        return total or self._constant("swarm/0", np.array([0], np.int64))

    def _size(self, symbol: Symbol) -> str:
        """A tensor [1] with the size of an axis of a tensor that arrives."""
        tensor, axis = self._places[symbol]
        shape = self._node("Shape", [tensor], f"swarm/shape of {tensor}")
        index = self._constant(f"swarm/{axis}", np.array([axis], np.int64))
        return self._node("Gather", [shape, index], f"swarm/size {axis} of {tensor}", axis=0)

    def _constant(self, name: str, array: np.ndarray) -> str:
        return self._node("Constant", [], name, value=numpy_helper.from_array(array))

    def _node(self, op: str, inputs: list[str], output: str, **attributes: object) -> str:
        """A node, once."""
        if output not in self._done or not any(output in node.output for node in self._made):
            self._done.add(output)
            self._made.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output


def _is_light(node: NodeProto) -> bool:
    """Whether a node may be computed again in each shard."""
    plain = node.domain in ("", "ai.onnx") and node.op_type not in _HEAVY | RANDOM
    return plain and not any(subgraphs(attribute) for attribute in node.attribute)
