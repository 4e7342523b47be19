"""Models with the same first layers, as one backbone, heads, and the composition of them.

Layers are the same where they compute the same of the same: the operator, its version and its
attributes, the values of its weights, and so on up to the model's inputs, which are told apart by
their place. Names and the order in which a file has them count for nothing. Each model is fused
before it is cut, as by a split, unless a fusion with what follows leaves nothing in common. Heads
are exact: the whole and its two parts are run on examples, and have to give the same bits.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, numpy_helper

from shards.errors import ModelError, SplitError
from shards.graph.fuse import fuse
from shards.graph.graph import Graph, is_random, names_read
from shards.graph.layer_range import check_weights, model_of
from shards.graph.source import read_model, subgraphs, tensor_bytes
from shards.graph.tensor_types import TensorType, infer_types
from shards.runtimes.ort import make_session
from shards.split.example import WantedInputs, find_example, hints_of

FEWEST, MOST = 2, 16  # models


@dataclass(frozen=True)
class SharedLayers:
    """backbone: an ONNX file. heads: ONNX files by model; a model whose layers are all in the
    backbone has none. composition: as its TOML has it. layers: of the backbone. of: layers of each
    model. weight_bytes: of the backbone, which each model had for itself. crossing: bytes of what
    the backbone gives, where sizes are known."""

    backbone: bytes
    heads: Mapping[str, bytes]
    composition: Mapping[str, Any]
    layers: int
    of: Mapping[str, int]
    weight_bytes: int
    crossing: int


def share(
    models: Mapping[str, bytes | os.PathLike[str] | str], backbone: str = "backbone"
) -> SharedLayers:
    """Find the layers that all of the models begin with, and take them apart. models: by the names
    that their parts get; the model of a head is called NAME-head. backbone: the name of its part
    and model. Raises `ModelError`, and `SplitError` where the models have nothing in common."""
    if not FEWEST <= len(models) <= MOST:
        raise SplitError(f"layers are shared by {FEWEST} to {MOST} models, not {len(models)}")
    if backbone in models or backbone in {_head(name) for name in models}:
        raise SplitError(f"a model is called {backbone}: name the backbone otherwise (--backbone)")
    sources = {name: _read(name, source) for name, source in models.items()}
    cut, common = list[_Cut](), set[bytes]()
    for is_fused in (True, False):
        cut = [_Cut(name, forms[0], forms[is_fused]) for name, forms in sources.items()]
        _check_inputs(cut)
        common = set[bytes].intersection(*(set(each.nodes) for each in cut))
        if any(each.has_weights(common) for each in cut):
            break
    else:
        opsets = ", ".join(f"{each.name}: opset {each.opset}" for each in cut)
        raise SplitError(f"the models have no first layers with weights in common ({opsets})")
    wanted = {digest for each in cut for digest in each.crossing(common)}
    first = cut[0]
    made = {first.of[name]: name for name in reversed(first.made(common))}
    outputs = [name for name in made.values() if first.of[name] in wanted]
    outputs.sort(key=first.graph.producer.__getitem__)
    whole = first.model(
        [n for n, at in first.numbered if at in common], first.graph.inputs, outputs
    )
    check_weights(whole, "the layers in common")
    names = {first.of[name]: name for name in outputs}
    heads = {each.name: head for each in cut if (head := each.head(common)) is not None}
    shared = SharedLayers(
        whole.SerializeToString(deterministic=True),
        {name: head.SerializeToString(deterministic=True) for name, head in heads.items()},
        _composition(cut, heads, names, backbone),
        len(whole.graph.node),
        {each.name: len(each.graph) for each in cut},
        sum(map(tensor_bytes, whole.graph.initializer)),
        sum(first.types[name].spec().nbytes for name in outputs),
    )
    _prove(cut, heads, shared.backbone, names)
    return shared


class _Cut:
    """A model with the hash of each tensor (`of`) and each layer (`nodes`). source: as it was
    given; model: as it is cut."""

    def __init__(self, name: str, source: ModelProto, model: ModelProto) -> None:
        self.name, self.source = name, source
        self.graph = Graph.of(model)
        self.types: dict[str, TensorType] = infer_types(self.graph)
        if any(map(is_random, self.graph.nodes)):
            raise ModelError(f"{name}: it draws random numbers, and its layers cannot be compared")
        versions = {o.domain or "ai.onnx": o.version for o in self.graph.model.opset_import}
        self._versions = versions
        self.of: dict[str, bytes] = {}
        for place, tensor in enumerate(self.graph.inputs):
            self.of[tensor] = _digest("input", place, *self.input_type(place))
        self.nodes = [self._layer(node) for node in self.graph.nodes]

    @property
    def opset(self) -> int:
        return int(self._versions.get("ai.onnx", 0))

    @property
    def numbered(self) -> Sequence[tuple[NodeProto, bytes]]:
        return list(zip(self.graph.nodes, self.nodes, strict=True))

    def input_type(self, place: int) -> tuple[str, tuple[Any, ...]]:
        """Datatype and shape, -1 for an open axis."""
        kind = self.types[self.graph.inputs[place]]
        return kind.ort, tuple(dim if isinstance(dim, int) else -1 for dim in kind.shape)

    def _layer(self, node: NodeProto) -> bytes:
        found = self._operation(node)
        self.of.update({name: _digest(found, at) for at, name in enumerate(node.output) if name})
        return found

    def _operation(self, node: NodeProto) -> bytes:
        reads = list(node.input)
        while reads and not reads[-1]:
            reads.pop()
        domain = node.domain or "ai.onnx"
        attributes = sorted(node.attribute, key=lambda each: each.name)
        return _digest(
            domain,
            self._versions.get(domain, 0),
            node.op_type,
            [bool(name) for name in node.output],
            *(self._tensor(name) if name else b"" for name in reads),
            *(self._attribute(node, each) for each in attributes),
        )

    def _attribute(self, node: NodeProto, attribute: AttributeProto) -> bytes:
        if subgraphs(attribute):  # what it captures is not followed: it is like no other
            return _digest(self.name, *node.output)
        plain = AttributeProto()
        plain.CopyFrom(attribute)
        plain.doc_string = ""
        if plain.HasField("t"):
            value = _constant(plain.t)
            plain.ClearField("t")
            return _digest(plain.SerializeToString(deterministic=True), value)
        return bytes(plain.SerializeToString(deterministic=True))

    def _tensor(self, name: str) -> bytes:
        if name not in self.of:
            if name in self.graph.initializers:
                self.of[name] = _constant(self.graph.initializers[name])
            elif name in self.graph.constant_nodes:
                self._layer(self.graph.constant_nodes[name])
            else:  # sparse: like no other
                self.of[name] = _digest(self.name, name)
        return self.of[name]

    def made(self, common: set[bytes]) -> list[str]:
        """The tensors that shared layers make."""
        shared = (node for node, at in self.numbered if at in common)
        return [name for node in shared for name in node.output if name]

    def has_weights(self, common: set[bytes]) -> bool:
        """Whether a shared layer reads weights that are more than a number or two."""
        return any(
            np.prod(self.graph.initializers[name].dims, dtype=np.int64) > 2
            for node, at in self.numbered
            if at in common
            for name in node.input
            if name in self.graph.initializers
        )

    @cached_property
    def _makes(self) -> dict[str, bytes]:
        return {name: at for node, at in self.numbered for name in node.output if name}

    def crossing(self, common: set[bytes]) -> set[bytes]:
        """The tensors that the model needs of shared layers."""
        users, ends = self.graph.consumers, set(self.graph.outputs)
        return {
            self.of[name]
            for name in self.made(common)
            if name in ends or any(self.nodes[at] not in common for at in users[name])
        }

    def own_outputs(self, common: set[bytes]) -> list[str]:
        """The outputs that the head makes: no shared layer does, and none is an input."""
        graph = self.graph
        return [
            name
            for name in graph.outputs
            if name not in graph.inputs and self._makes.get(name) not in common
        ]

    def head(self, common: set[bytes]) -> ModelProto | None:
        """The layers that are not shared; None where there are none."""
        nodes = [node for node, at in self.numbered if at not in common]
        outputs = self.own_outputs(common)
        if not outputs:
            return None
        reads = dict.fromkeys(name for node in nodes for name in names_read(node))
        made = {name for node in nodes for name in node.output}
        inputs = [n for n in reads if n not in made and not self.graph.is_constant(n)]
        if not inputs:
            raise SplitError(f"{self.name}: all its own outputs are constants")
        return self.model(nodes, inputs, outputs)

    def model(
        self, nodes: Sequence[NodeProto], inputs: Sequence[str], outputs: Sequence[str]
    ) -> ModelProto:
        return model_of(self.graph, nodes, inputs, outputs, self.types)


def _read(name: str, source: bytes | os.PathLike[str] | str) -> tuple[ModelProto, ModelProto]:
    """A model as it is, and fused."""
    try:
        model, _ = read_model(source)
        return model, fuse(model)
    except ModelError as error:
        raise ModelError(f"{name}: {error}") from None


def _head(name: str) -> str:
    return f"{name}-head"


def _digest(*parts: object) -> bytes:
    hashed = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode()
        hashed.update(len(data).to_bytes(8, "big") + data)
    return hashed.digest()


def _constant(tensor: TensorProto) -> bytes:
    """Of its values, however they are written."""
    array = numpy_helper.to_array(tensor)
    data = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
    return _digest("constant", tensor.data_type, list(tensor.dims), data)


def _check_inputs(cut: Sequence[_Cut]) -> None:
    """Raises SplitError where the models do not take the same tensors."""
    first = cut[0]
    for each in cut:
        told = [each.input_type(place) for place in range(len(each.graph.inputs))]
        if told != [first.input_type(place) for place in range(len(first.graph.inputs))]:
            shown = (
                " x ".join(map(str, c.types[n].shape))
                for c in (first, each)
                for n in c.graph.inputs
            )
            raise SplitError(
                f"{first.name} and {each.name} do not take the same inputs, in number, datatype "
                f"and shape: {'; '.join(shown)}"
            )
        for name, (_, shape) in zip(each.graph.inputs, told, strict=True):
            if not shape or -1 in shape[1:]:
                raise SplitError(
                    f"{each.name}: input {name!r} leaves axes open besides the first one: export "
                    "it with its sizes"
                )


def _composition(
    cut: Sequence[_Cut],
    heads: Mapping[str, ModelProto],
    names: Mapping[bytes, str],
    backbone: str,
) -> dict[str, Any]:
    """names: of the backbone's tensors."""
    first = cut[0]
    specs = [first.types[name].spec() for name in first.graph.inputs]
    refs = {first.of[name]: name for name in first.graph.inputs}
    refs |= {digest: f"{backbone}.{name}" for digest, name in names.items()}
    parts: list[dict[str, Any]] = [
        {"name": backbone, "model": backbone, "inputs": {s.name: s.name for s in specs}}
    ]
    outputs: dict[str, str] = {}
    asked = [name for each in cut for name in each.graph.outputs]
    for each in cut:
        head = heads.get(each.name)
        if head is not None:
            inputs = {value.name: refs[each.of[value.name]] for value in head.graph.input}
            parts.append({"name": each.name, "model": _head(each.name), "inputs": inputs})
        own = set() if head is None else {value.name for value in head.graph.output}
        for name in each.graph.outputs:
            called = name if asked.count(name) == 1 else f"{each.name}_{name}"
            outputs[called] = f"{each.name}.{name}" if name in own else refs[each.of[name]]
    return {
        "inputs": {s.name: {"datatype": s.datatype, "shape": list(s.shape)} for s in specs},
        "part": parts,
        "outputs": outputs,
    }


def toml_of(composition: Mapping[str, Any]) -> str:
    """The file of a composition."""

    def table(values: Mapping[str, Any]) -> str:
        pairs = (f"{json.dumps(key)} = {value_of(value)}" for key, value in values.items())
        return "{ " + ", ".join(pairs) + " }"

    def value_of(value: Any) -> str:
        return table(value) if isinstance(value, Mapping) else json.dumps(value)

    def lines(values: Mapping[str, Any]) -> list[str]:
        return [f"{json.dumps(key)} = {value_of(value)}" for key, value in values.items()]

    blocks = [["[inputs]", *lines(composition["inputs"])]]
    blocks += [
        ["[[part]]", *(f"{key} = {value_of(value)}" for key, value in part.items())]
        for part in composition["part"]
    ]
    blocks.append(["[outputs]", *lines(composition["outputs"])])
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _prove(
    cut: Sequence[_Cut],
    heads: Mapping[str, ModelProto],
    backbone: bytes,
    names: Mapping[bytes, str],
) -> None:
    """Run each model as a whole and in two parts. Raises ModelError where a bit is another one."""
    first = cut[0]
    kinds = [first.types[name] for name in first.graph.inputs]
    wanted = WantedInputs()
    hints = hints_of(first.graph, first.types, wanted)
    found = find_example(first.source.SerializeToString(), kinds, hints, wanted)
    if found.feeds is None:
        raise ModelError(f"no input was found that {first.name} runs on: {found.reason}")
    arrays = [found.feeds[name] for name in first.graph.inputs]
    examples = [arrays, [np.flip(array).copy() for array in arrays]]
    session = make_session(backbone, level="basic")
    wholes = [make_session(each.source.SerializeToString(), level="basic") for each in cut]
    parts = {
        name: make_session(head.SerializeToString(), level="basic") for name, head in heads.items()
    }
    for example in examples:
        feeds = dict(zip(first.graph.inputs, example, strict=True))
        made = dict(zip(names, session.run(list(names.values()), feeds), strict=True))
        made |= {first.of[name]: array for name, array in feeds.items()}
        for each, whole in zip(cut, wholes, strict=True):
            given = dict(zip(each.graph.inputs, example, strict=True))
            outputs = [out for out in each.graph.outputs if out not in each.graph.inputs]
            expected = dict(zip(outputs, whole.run(outputs, given), strict=True))
            got = {name: made[each.of[name]] for name in outputs if each.of.get(name) in made}
            if each.name in parts:
                head, own = parts[each.name], heads[each.name].graph
                asked = [value.name for value in own.output]
                fed = {value.name: made[each.of[value.name]] for value in own.input}
                got |= dict(zip(asked, head.run(asked, fed), strict=True))
            for name in outputs:
                if np.asarray(got[name]).tobytes() != np.asarray(expected[name]).tobytes():
                    raise ModelError(
                        f"{each.name}: output {name!r} is not the same behind the layers in "
                        "common: this is a defect, please report the models"
                    )
