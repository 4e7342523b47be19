"""Models with the same first layers become a backbone and heads, which give the same bits."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from shards.compose.composition import AskPart, composition_of
from shards.compose.share import SharedLayers, share, toml_of
from shards.errors import ShardsError

WIDTH = 6
UNARY = ("Relu", "Tanh", "Sigmoid", "Neg")


class Net:
    """A model as it grows: layers over the tensors that there are, drawn by `chance`."""

    def __init__(self, prefix: str, shape: tuple[Any, ...] = ("n", WIDTH)) -> None:
        self.prefix, self.shape = prefix, shape
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.tensors = [f"{prefix}in"]

    def grow(self, chance: Random, layers: int) -> None:
        for _ in range(layers):
            kind = chance.choice(["MatMul", "Add", "Conv", "two"])
            out, read = self._name("t"), chance.choice(self.tensors)
            if kind == "MatMul":
                self.nodes.append(helper.make_node("MatMul", [read, self._weight(chance)], [out]))
            elif kind == "Add":
                self.nodes.append(helper.make_node("Add", [read, self._weight(chance, 1)], [out]))
            elif kind == "two":
                other = chance.choice(self.tensors)
                self.nodes.append(helper.make_node("Mul", [read, other], [out]))
            else:
                self.nodes.append(helper.make_node(chance.choice(UNARY), [read], [out]))
            self.tensors.append(out)

    def _name(self, kind: str) -> str:
        return f"{self.prefix}{kind}{len(self.nodes)}"

    def _weight(self, chance: Random, axes: int = 2) -> str:
        name = self._name("w")
        seeded = np.random.default_rng(chance.randrange(1 << 30))
        array = seeded.normal(size=(WIDTH,) * axes).astype(np.float32) / 2
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def file(self, shuffle: Random | None = None) -> bytes:
        """Its outputs are the tensors that no layer reads."""
        read = {name for node in self.nodes for name in node.input}
        ends = list(dict.fromkeys(n for n in self.tensors[1:] if n not in read))
        weights = list(self.weights)
        if shuffle is not None:
            shuffle.shuffle(weights)
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "net",
            [value(self.tensors[0], TensorProto.FLOAT, self.shape)],
            [value(name, TensorProto.FLOAT, self.shape) for name in ends],
            weights,
        )
        imports = [helper.make_opsetid("", 17)]
        return bytes(
            helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
        )


def nets(seed: int, count: int = 2, trunk: int = 6) -> dict[str, bytes]:
    """Models of one trunk, each with names, an order of weights, and layers of its own."""
    made = {}
    for number in range(count):
        net = Net(f"m{number}_")
        own = Random(seed * 31 + number)
        net.grow(Random(seed), trunk)
        # The activation keeps what follows from being fused into the trunk's last weights.
        net.nodes.append(helper.make_node("MatMul", [net.tensors[-1], "trunk_w"], ["last"]))
        net.nodes.append(helper.make_node("Relu", ["last"], ["trunk"]))
        array = np.random.default_rng(seed).normal(size=(WIDTH, WIDTH)).astype(np.float32)
        net.weights.append(numpy_helper.from_array(array, "trunk_w"))
        net.tensors += ["trunk", "trunk", "trunk"]
        net.grow(own, own.randint(1, 6))
        made[f"m{number}"] = net.file(own)
    return made


def run(model: bytes, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [out.name for out in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def by_composition(shared: SharedLayers, image: np.ndarray) -> dict[str, np.ndarray]:
    """What the composition answers: its parts one by one."""
    composition = composition_of(tomllib.loads(toml_of(shared.composition)))
    (given_,) = composition.inputs
    known = {given_.name: image}
    for name, part in composition.parts.items():
        assert isinstance(part, AskPart)
        file = shared.backbone if name == "backbone" else shared.heads[name]
        feeds = {tensor: known[str(ref)] for tensor, ref in part.inputs.items()}
        known |= {f"{name}.{tensor}": made for tensor, made in run(file, feeds).items()}
    return {name: known[str(ref)] for name, ref in composition.outputs.items()}


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 20), st.integers(2, 3), st.integers(1, 8))
def test_the_composition_gives_the_bits_of_the_models(seed: int, count: int, trunk: int) -> None:
    models = nets(seed, count, trunk)
    shared = share(models)
    image = np.random.default_rng(seed).normal(size=(3, WIDTH)).astype(np.float32)
    answers = by_composition(shared, image)
    asked = 0
    for name, model in models.items():
        (given_,) = onnx.load_from_string(model).graph.input
        for output, expected in run(model, {given_.name: image}).items():
            answer = answers.get(output, answers.get(f"{name}_{output}"))
            assert answer is not None
            assert answer.tobytes() == expected.tobytes()
            asked += 1
    assert asked == len(answers)


def test_names_and_the_order_of_weights_count_for_nothing() -> None:
    models = nets(5, trunk=4)
    shared = share(models)
    assert shared.layers >= 2
    again = {name: onnx.load_from_string(model) for name, model in models.items()}
    for model in again.values():
        weights = list(model.graph.initializer)
        del model.graph.initializer[:]
        model.graph.initializer.extend(reversed(weights))
    files = {name: model.SerializeToString() for name, model in again.items()}
    assert share(files).layers == shared.layers


def test_a_model_that_is_a_part_of_another_has_no_head() -> None:
    trunk = Net("a_")
    trunk.grow(Random(3), 1)
    trunk.nodes.append(helper.make_node("MatMul", [trunk.tensors[-1], "w"], ["y"]))
    trunk.weights.append(numpy_helper.from_array(np.eye(WIDTH, dtype=np.float32) * 3, "w"))
    trunk.tensors.append("y")
    short = trunk.file()
    trunk.nodes.append(helper.make_node("Softmax", ["y"], ["z"]))
    trunk.tensors.append("z")
    shared = share({"short": short, "long": trunk.file()})
    assert list(shared.heads) == ["long"]
    assert shared.composition["outputs"] == {"y": "backbone.y", "z": "long.z"}


def other(seed: int, **more: Any) -> bytes:
    net = Net("m_", **more)
    net.nodes.append(helper.make_node("MatMul", ["m_in", "w"], ["y"]))
    weights = np.random.default_rng(seed).normal(size=(net.shape[-1], WIDTH)).astype(np.float32)
    net.weights.append(numpy_helper.from_array(weights, "w"))
    net.tensors.append("y")
    return net.file()


REFUSED = {
    "one model": ({"a": other(1)}, "2 to 16"),
    "other weights": ({"a": other(1), "b": other(2)}, "no first layers"),
    "other shapes": ({"a": other(1), "b": other(1, shape=(1, WIDTH))}, "same inputs"),
    "open axes": (dict.fromkeys("ab", other(1, shape=("n", "k", WIDTH))), "leaves axes open"),
    "no model": ({"a": other(1), "b": b"nothing"}, "no ONNX|not an ONNX"),
    "a taken name": ({"backbone": other(1), "b": other(1)}, "--backbone"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_shared_is_refused(name: str) -> None:
    models, why = REFUSED[name]
    with pytest.raises(ShardsError) as refused:
        share(models)
    assert re.search(why, str(refused.value))


def test_layers_with_a_subgraph_are_shared_by_nobody(tmp_path: Path) -> None:
    def branch(name: str, factor: float) -> onnx.GraphProto:
        node = helper.make_node("Constant", [], [name], value_float=factor)
        out = helper.make_tensor_value_info(name, TensorProto.FLOAT, [])
        return helper.make_graph([node], name, [], [out])

    files = {}
    for name in "ab":
        net = Net(f"{name}_", (1, WIDTH))
        net.nodes.append(helper.make_node("MatMul", [f"{name}_in", "w"], ["h"]))
        net.weights.append(numpy_helper.from_array(np.eye(WIDTH, dtype=np.float32) * 2, "w"))
        net.nodes.append(helper.make_node("ReduceSum", ["h"], ["s"], keepdims=0))
        net.nodes.append(helper.make_node("Cast", ["s"], ["c"], to=TensorProto.BOOL))
        branches = {"then_branch": branch("p", 1.0), "else_branch": branch("q", 2.0)}
        net.nodes.append(helper.make_node("If", ["c"], ["f"], **branches))
        net.nodes.append(helper.make_node("Mul", ["h", "f"], ["y"]))
        net.tensors.append("y")
        files[name] = net.file()
    shared = share(files)
    assert sorted(shared.heads) == ["a", "b"]
    assert shared.layers < min(shared.of.values())
