"""Graphs to split, and the two ways to run them: whole, and shard by shard."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from shards.manifest import Manifest
from shards.runtimes.load import load_stage
from shards.runtimes.ort import make_session
from shards.split.split import SplitResult

Arrays = Mapping[str, np.ndarray]
F32 = TensorProto.FLOAT


def value(name: str, shape: Sequence[int | str] | None, kind: int = F32) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: object) -> NodeProto:
    return helper.make_node(op, list(inputs), list(outputs), **attributes)


def make(
    nodes: Sequence[NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Arrays | None = None,
    *,
    opset: int = 17,
) -> ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "g",
        list(inputs),
        list(outputs),
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def floats(*shape: int, seed: int = 3) -> np.ndarray:
    """Standard normal FP32 values, equal for equal seeds."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def weights(seed: int = 0, **shapes: Sequence[int]) -> dict[str, np.ndarray]:
    """He-scaled: activations neither die out nor blow up, so that a wrong split shows."""
    rng = np.random.default_rng(seed)
    return {name: he(rng, shape) for name, shape in shapes.items()}


def he(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    fan_in = shape[0] if len(shape) == 2 else math.prod(shape[1:]) or 1
    array = rng.standard_normal(tuple(shape)) * math.sqrt(2.0 / fan_in)
    return array.astype(np.float32)


def whole(model: bytes, feeds: Arrays, level: str = "basic") -> dict[str, np.ndarray]:
    """The outputs of the unsplit model."""
    session = make_session(model, level=level)  # type: ignore[arg-type]
    names = [out.name for out in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def chained(
    result: SplitResult, feeds: Arrays, level: str = "basic", *, bare: bool = False
) -> dict[str, np.ndarray]:
    """Load every stage as a device does, and pass the tensors on.

    `bare` leaves out the self-test and the warm-up.
    """
    manifest = Manifest.from_json(result.manifest.to_json())
    tensors: dict[str, np.ndarray] = dict(feeds)
    for shard in manifest.shards:
        if bare:
            made = whole(
                result.files[shard.file], {s.name: tensors[s.name] for s in shard.inputs}, level
            )
            tensors = {spec.name: {**tensors, **made}[spec.name] for spec in shard.sends}
            continue
        stage = load_stage(
            manifest,
            shard.stage,
            result.files.__getitem__,
            level=level,  # type: ignore[arg-type]
        )
        tensors = stage.run(tensors)
        assert list(tensors) == [spec.name for spec in shard.sends]
        stage.close()
    return tensors


def same(expected: Arrays, got: Arrays) -> None:
    """Assert that two results are equal to the bit, in names, order, types and values."""
    assert list(expected) == list(got)
    for name, array in expected.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_array_equal(got[name], array, err_msg=name)


def proves_exact(model: ModelProto | bytes, result: SplitResult, feeds: Arrays) -> None:
    """Assert that shards equal the whole: bit-exact at BASIC, 1e-5 relative at the best level."""
    data = model if isinstance(model, bytes) else model.SerializeToString()
    expected = whole(data, feeds)
    same(expected, chained(result, feeds))
    best = chained(result, feeds, "all")
    for name, array in whole(data, feeds, "all").items():
        if array.dtype.kind != "f":
            np.testing.assert_array_equal(best[name], array)
            continue
        scale = max(float(np.abs(array).max(initial=0.0)), 1e-30)
        tolerance = 1e-5 if array.dtype.itemsize > 2 else 1e-2
        assert float(np.abs(best[name] - array).max(initial=0.0)) <= tolerance * scale


def mlp(width: int = 16, layers: int = 6, *, batch: int | str = "N", opset: int = 17) -> ModelProto:
    nodes, params, last = [], {}, "x"
    for index in range(layers):
        params.update(weights(index, **{f"w{index}": (width, width), f"b{index}": (width,)}))
        nodes.append(node("Gemm", [last, f"w{index}", f"b{index}"], [f"g{index}"]))
        nodes.append(node("Relu", [f"g{index}"], [f"r{index}"]))
        last = f"r{index}"
    nodes.append(node("Gemm", [last, "w0", "b0"], ["y"]))
    x, y = value("x", [batch, width]), value("y", [batch, width])
    return make(nodes, [x], [y], params, opset=opset)


def ssd_like() -> ModelProto:
    """A backbone with a head at each scale: two outputs are ready long before the last."""
    params = weights(
        1, c0=(8, 3, 3, 3), c1=(8, 8, 3, 3), c2=(8, 8, 3, 3), c3=(8, 8, 3, 3), h0=(4, 8, 1, 1),
        h1=(4, 8, 1, 1), h2=(4, 8, 1, 1),
    )  # fmt: skip
    nodes, last = [], "image"
    for index in range(4):
        nodes.append(node("Conv", [last, f"c{index}"], [f"f{index}"], pads=[1] * 4, strides=[2, 2]))
        nodes.append(node("Relu", [f"f{index}"], [f"a{index}"]))
        last = f"a{index}"
        if index < 3:
            nodes.append(node("Conv", [last, f"h{index}"], [f"head{index}"]))
    nodes.append(node("GlobalAveragePool", [last], ["pooled"]))
    outputs = [value("pooled", None), *(value(f"head{i}", None) for i in (2, 0, 1))]
    return make(nodes, [value("image", ["N", 3, 32, 32])], outputs, params)


def yolo_like() -> ModelProto:
    """A backbone whose three scales meet again in a neck: several tensors at most cuts."""
    convs = {"c0": (8, 3, 3, 3), "c1": (8, 8, 3, 3), "c2": (8, 8, 3, 3), "u1": (8, 16, 3, 3)}
    params = weights(
        2, **convs, u0=(8, 16, 3, 3), o0=(6, 8, 1, 1), o1=(6, 8, 1, 1), o2=(6, 8, 1, 1)
    )
    params["scales"] = np.array([1, 1, 2, 2], np.float32)
    nodes, last = [], "image"
    for index in range(3):
        nodes.append(node("Conv", [last, f"c{index}"], [f"f{index}"], pads=[1] * 4, strides=[2, 2]))
        nodes.append(node("Sigmoid", [f"f{index}"], [f"s{index}"]))
        nodes.append(node("Mul", [f"f{index}", f"s{index}"], [f"a{index}"]))
        last = f"a{index}"
    for index in (1, 0):
        nodes.append(node("Resize", [last, "", "scales"], [f"up{index}"], mode="nearest"))
        nodes.append(node("Concat", [f"up{index}", f"a{index}"], [f"cat{index}"], axis=1))
        nodes.append(node("Conv", [f"cat{index}", f"u{index}"], [f"n{index}"], pads=[1] * 4))
        nodes.append(node("Relu", [f"n{index}"], [f"neck{index}"]))
        last = f"neck{index}"
    for index, source in enumerate(("neck0", "neck1", "a2")):
        nodes.append(node("Conv", [source, f"o{index}"], [f"out{index}"]))
    outputs = [value(f"out{index}", None) for index in range(3)]
    return make(nodes, [value("image", [1, 3, 32, 32])], outputs, params)


def with_random_weights(model: ModelProto, seed: int = 0, widest: int = 512) -> ModelProto:
    """The same graph with seeded weights that keep activations alive, from the input to the end.

    Fully connected layers of 4096 shrink to `widest`: the graph stays, the test gets faster. The
    final Softmax is dropped: it would hide differences.
    """
    rng = np.random.default_rng(seed)
    graph = model.graph
    if graph.node[-1].op_type == "Softmax":
        graph.output[0].CopyFrom(value(graph.node[-1].input[0], None))
        del graph.node[-1]
    shapes = {t.name: numpy_helper.to_array(t) for t in graph.initializer if t.data_type == 7}
    users: dict[str, list[NodeProto]] = {}
    for each in graph.node:
        for name in each.input:
            users.setdefault(name, []).append(each)
    kept = []
    for each in graph.node:
        filled = each.op_type == "ConstantOfShape" and each.input[0] in shapes
        if not filled:
            kept.append(each)
            continue
        shape = [widest if dim == 4096 else int(dim) for dim in shapes[each.input[0]]]
        array = _weight(rng, shape, each.output[0], users)
        graph.initializer.append(numpy_helper.from_array(array, each.output[0]))
    del graph.node[:]
    graph.node.extend(kept)
    used = {name for each in kept for name in each.input}
    constants = [tensor for tensor in graph.initializer if tensor.name in used]
    names = {tensor.name for tensor in constants}
    del graph.initializer[:]
    graph.initializer.extend(constants)
    inputs = [i for i in graph.input if i.name in used and i.name not in names]
    del graph.input[:]
    graph.input.extend(inputs)
    del graph.value_info[:]
    model.ir_version = 8
    return model


def _weight(
    rng: np.random.Generator, shape: list[int], name: str, users: Mapping[str, list[NodeProto]]
) -> np.ndarray:
    user, slot = users[name][0], name
    while user.op_type in ("Unsqueeze", "Reshape"):
        slot = user.output[0]
        user = users[slot][0]
    position = list(user.input).index(slot)
    if user.op_type == "Conv" and position == 1:
        return he(rng, shape)
    if user.op_type == "Gemm" and position == 1:
        return he(rng, shape[::-1]).T.copy()
    scales = user.op_type == "Mul" or (user.op_type == "BatchNormalization" and position in (1, 4))
    base = 1.0 if scales else 0.0
    return (base + 0.1 * rng.standard_normal(shape)).astype(np.float32)
