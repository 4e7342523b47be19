"""What a model is timed and proved with: sizes as a person would choose, values that it runs on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper
from shard_graphs import floats, make, node, value, weights, whole

from nodes.cli.model_split import example_lines
from nodes.cli.options import Exemplified
from shards.errors import ModelError
from shards.manifest import Manifest
from shards.runtimes.load import load_stage
from shards.runtimes.synthetic import random_feeds
from shards.specs import Example, spec_of
from shards.split.split import SplitResult, split
from swarm.errors import InvalidArgument

I64 = TensorProto.INT64


def convolutions(depth: int, channels: int = 3, stride: int = 2) -> tuple[list[NodeProto], str]:
    nodes, at = [], "x"
    for index in range(depth):
        step = {"strides": [stride, stride], "pads": [1, 1, 1, 1]}
        nodes.append(node("Conv", [at, f"w{index}"], [f"c{index}"], **step))
        nodes.append(node("Relu", [f"c{index}"], [f"r{index}"]))
        at = f"r{index}"
    return nodes, at


def filters(depth: int, channels: int = 3) -> dict[str, np.ndarray]:
    shapes = {f"w{i}": (4, channels if i == 0 else 4, 3, 3) for i in range(depth)}
    return weights(**shapes)


def classifier(sizes: Sequence[str | int] = ("n", 3, "h", "w"), channels: int = 3) -> ModelProto:
    nodes, at = convolutions(2, channels)
    nodes += [node("GlobalAveragePool", [at], ["p"]), node("Flatten", ["p"], ["y"])]
    return make(nodes, [value("x", sizes)], [value("y", ["n", 4])], filters(2, channels))


def detector(depth: int = 4, side: str = "") -> ModelProto:
    nodes, at = convolutions(depth)
    nodes.append(node("Sigmoid", [at], ["y"]))
    out = [value("y", ["n", 4, "a", "b"])]
    model = make(nodes, [value("x", ["n", 3, "h", "w"])], out, filters(depth))
    if side:
        model.metadata_props.add(key="imgsz", value=side)
    return model


def reader_of_lines() -> ModelProto:
    """It takes lines of 48 pixels: higher ones do not fit what it adds."""
    nodes, at = convolutions(1)
    nodes += [node("Add", [at, "rows"], ["s"]), node("Tanh", ["s"], ["y"])]
    stored = filters(1) | {"rows": floats(1, 4, 24, 1)}
    return make(nodes, [value("x", ["n", 3, "h", "w"])], [value("y", None)], stored)


def listener(shape: Sequence[str | int] = ("n", "t")) -> ModelProto:
    nodes = [
        node("Unsqueeze", ["x", "one"], ["u"]),
        node("Conv", ["u", "w"], ["c"], strides=[160]),
        node("Relu", ["c"], ["r"]),
        node("Abs", ["r"], ["y"]),
    ]
    stored = {"w": floats(8, 1, 400), "one": np.array([1])}
    return make(nodes, [value("x", shape)], [value("y", None)], stored)


def detector_of_speech() -> ModelProto:
    """As silero-vad: chunks of 512 samples, a state with its rows along axis 1, a rate that it
    compares. For another rate it does not run."""

    def branch(name: str, width: str) -> object:
        made = node("Reshape", ["a", width], [name])
        return helper.make_graph([made], name, [], [value(name, None)])

    nodes = [
        node("Abs", ["x"], ["a"]),
        node("Equal", ["sr", "rate"], ["is_usual"]),
        node(
            "If",
            ["is_usual"],
            ["rows"],
            then_branch=branch("then", "usual"),
            else_branch=branch("else", "other"),
        ),
        node("MatMul", ["rows", "w"], ["m"]),
        node("ReduceMean", ["state"], ["mean"], axes=[0], keepdims=0),
        node("Add", ["m", "mean"], ["y"]),
        node("Exp", ["state"], ["next"]),
    ]
    stored = {
        "rate": np.array(16000),
        "usual": np.array([1, 512]),
        "other": np.array([1, 7]),
        "w": floats(512, 16),
    }
    inputs = [value("x", ["n", "t"]), value("state", [2, "n", 16]), value("sr", [], I64)]
    return make(nodes, inputs, [value("y", None), value("next", [2, "n", 16])], stored)


def encoder() -> ModelProto:
    nodes = [
        node("Gather", ["table", "ids"], ["e"]),
        node("Unsqueeze", ["mask", "two"], ["m"]),
        node("Cast", ["m"], ["f"], to=TensorProto.FLOAT),
        node("Mul", ["e", "f"], ["h"]),
        node("Tanh", ["h"], ["y"]),
    ]
    stored = {"table": floats(9, 8), "two": np.array([2])}
    inputs = [value("ids", ["n", "s"], I64), value("mask", ["n", "s"], I64)]
    return make(nodes, inputs, [value("y", ["n", "s", 8])], stored)


def logarithm() -> ModelProto:
    nodes = [
        node("Log", ["x"], ["l"]),
        node("Sqrt", ["l"], ["s"]),
        node("ReduceSum", ["s"], ["r"], keepdims=1),
        node("Tanh", ["r"], ["y"]),
    ]
    return make(nodes, [value("x", ["n", 8])], [value("y", None)])


def measured_by_a_length() -> ModelProto:
    """The rows up to `length` are kept: of all of them something is left, of none nothing."""
    nodes = [
        node("Slice", ["x", "zero", "length", "one"], ["cut"]),
        node("ReduceMax", ["cut"], ["top"], axes=[1], keepdims=1),
        node("Tanh", ["top"], ["y"]),
    ]
    stored = {"zero": np.array([0]), "one": np.array([1])}
    inputs = [value("x", ["n", "s", 4]), value("length", [1], I64)]
    return make(nodes, inputs, [value("y", None)], stored)


def cut(model: ModelProto, **more: object) -> SplitResult:
    options = {"stages": 2, "profile": False} | more
    return split(model.SerializeToString(), name="m", **options)  # type: ignore[arg-type]


def sizes(result: SplitResult) -> dict[str, list[int]]:
    shapes = result.manifest.extra["examples"]
    return {spec.name: shapes[spec.name] for spec in result.manifest.inputs}


@pytest.mark.parametrize(
    ("model", "chosen"),
    [
        (classifier(), {"x": [1, 3, 224, 224]}),
        (classifier(["n", "c", "h", "w"], channels=1), {"x": [1, 1, 224, 224]}),
        (detector(), {"x": [1, 3, 640, 640]}),
        (detector(depth=1), {"x": [1, 3, 320, 320]}),
        (detector(side="[96, 160]"), {"x": [1, 3, 96, 160]}),
        (reader_of_lines(), {"x": [1, 3, 48, 320]}),
        (listener(), {"x": [1, 16000]}),
        (detector_of_speech(), {"x": [1, 512], "state": [2, 1, 16], "sr": []}),
        (encoder(), {"ids": [1, 128], "mask": [1, 128]}),
        (measured_by_a_length(), {"x": [1, 128, 4], "length": [1]}),
    ],
)
def test_open_sizes_are_those_that_a_person_would_choose(
    model: ModelProto, chosen: Mapping[str, list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    result = cut(model)
    assert sizes(result) == chosen
    shown = ", ".join(f"{n} {s}" for n, s in chosen.items() if len(s) > 1)
    assert result.manifest.extra["example"].startswith(f"timed and proved with {shown} (")
    assert not [note for note in result.notes if "not proved" in note]
    # Each stage tests itself, and runs, on input like that of the split.
    with caplog.at_level(logging.WARNING):
        for shard in result.manifest.shards:
            stage = load_stage(result.manifest, shard.stage, result.files.__getitem__)
            assert stage.compute_ms > 0
    assert not caplog.messages


def test_the_owner_says_a_shape_or_an_example_and_the_manifest_remembers_it() -> None:
    asked = cut(classifier(), shapes={"x": (1, 3, 32, 48)})
    assert sizes(asked) == {"x": [1, 3, 32, 48]}
    assert "as --shape says" in asked.manifest.extra["example"]
    many = floats(5, 3, 64, 64) * 10 + 100
    given = cut(detector(), example={"x": many})
    assert sizes(given) == {"x": [1, 3, 64, 64]}
    again = Manifest.from_json(given.manifest.to_json())
    drawn = random_feeds(again.inputs, seed=4)["x"]
    assert drawn.shape == (1, 3, 64, 64)
    assert 95 < drawn.mean() < 105
    assert 8 < drawn.std() < 12
    crossing = again.shards[1].receives
    assert sum(spec.nbytes for spec in crossing) >= 256  # no open size counts as 1


@pytest.mark.parametrize(
    ("shapes", "told"),
    [
        ({"picture": (1, 3, 8, 8)}, "--shape picture: the inputs are x"),
        ({"x": (1, 8, 8)}, r"--shape x=1x8x8: the input is FP32\[\?,3,\?,\?\]"),
        ({"x": (1, 4, 8, 8)}, "--shape x=1x4x8x8"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(
    shapes: Mapping[str, tuple[int, ...]], told: str
) -> None:
    with pytest.raises(ModelError, match=told):
        cut(classifier(), shapes=shapes)


def test_values_are_sought_that_give_numbers() -> None:
    result = cut(logarithm())
    low, high, *_ = result.manifest.inputs[0].example.values  # type: ignore[union-attr]
    drawn = random_feeds(result.manifest.inputs)
    assert np.isfinite(whole(logarithm().SerializeToString(), drawn)["y"]).all(), (low, high)


def test_a_model_that_runs_on_nothing_asks_for_an_example_and_its_stages_say_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes = [
        node("Gather", ["table", "at"], ["g"], axis=0),
        node("Exp", ["g"], ["e"]),
        node("Tanh", ["e"], ["y"]),
    ]
    inputs = [value("table", [4, 4]), value("at", [3, 3], TensorProto.INT32)]
    nodes.insert(0, node("Sub", ["seen", "many"], ["at"]))
    inputs[1] = value("seen", [3, 3], I64)
    model = make(nodes, inputs, [value("y", None)], {"many": np.array(7000)})
    result = cut(model, stages=1)
    assert "not proved" in result.notes[0]
    assert "--example FILE.npz" in result.notes[0]
    with caplog.at_level(logging.WARNING):
        load_stage(result.manifest, 1, result.files.__getitem__)
    assert "no self-test" in caplog.text
    proved = cut(model, stages=1, example={"table": floats(4, 4), "seen": np.full((3, 3), 7002)})
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        load_stage(proved.manifest, 1, proved.files.__getitem__)
    assert not caplog.messages


@pytest.mark.parametrize(
    "raw",
    [
        None,
        [],
        {"shape": [-1]},
        {"shape": ["a"]},
        {"shape": [2], "values": [2, 1]},
        {"shape": [2], "values": [0, float("nan")]},
        {"shape": [2], "values": ["a", "b"]},
        {"shape": [2], "values": [0, 1, 2]},
    ],
)
def test_an_example_that_cannot_be_read_is_no_example(raw: object) -> None:
    assert Example.from_dict(raw) is None


@pytest.mark.parametrize(
    "array",
    [
        np.array([True, True]),
        np.array([-(1 << 63), (1 << 63) - 1]),
        np.array([250, 255], np.uint8),
        np.array(7),
        np.array([1e30, -np.inf, np.nan], np.float32),
        np.array([0.5, 65504], np.float16),
    ],
)
def test_synthetic_input_keeps_to_the_range_of_the_example(array: np.ndarray) -> None:
    seen = Example.of(array)
    [drawn] = random_feeds([replace(spec_of("x", array), example=seen)]).values()
    assert drawn.shape == array.shape
    assert drawn.dtype == array.dtype
    low, high = seen.values[:2]
    # A value of an example has six digits.
    assert np.logical_and(drawn >= low - abs(low) * 1e-5, drawn <= high + abs(high) * 1e-5).all()


def cancelling() -> ModelProto:
    """Its answer to any input is what rounding leaves of large numbers."""
    pads = {"pads": [1, 1, 1, 1]}
    nodes = [
        node("Split", ["x"], ["left", "right"], axis=1),
        node("Conv", ["left", "a"], ["l"], **pads),
        node("Conv", ["right", "b"], ["r"], **pads),
        node("Add", ["l", "r"], ["m"]),
        node("Conv", ["x", "ab"], ["n"], **pads),
        node("Sub", ["m", "n"], ["y"]),
    ]
    both = floats(64, 64, 3, 3) * 30
    stored = {"a": both[:, :32], "b": both[:, 32:], "ab": both}
    return make(nodes, [value("x", ["n", 64, 8, 8])], [value("y", ["n", 64, 8, 8])], stored)


def choosing() -> ModelProto:
    """The largest of numbers that differ in their last bits, and the numbers."""
    model = cancelling()
    model.graph.node.append(node("ArgMax", ["y"], ["which"], axis=1))
    model.graph.node.append(node("Sigmoid", ["m"], ["sure"]))
    del model.graph.output[:]
    model.graph.output.append(value("which", ["n", 1, 8, 8], I64))
    model.graph.output.append(value("sure", ["n", 64, 8, 8]))
    return model


def int4() -> ModelProto:
    """A product whose weights have 4 bits: a runtime rounds what they are multiplied with, too."""
    nodes = [
        node("DequantizeLinear", ["q", "scale"], ["w"], axis=0, block_size=32),
        node("MatMul", ["x", "w"], ["m"]),
        node("Relu", ["m"], ["y"]),
    ]
    model = make(nodes, [value("x", ["n", 64])], [value("y", ["n", 64])], opset=21)
    model.ir_version = 10
    rng = np.random.default_rng(0)
    packed = rng.integers(0, 256, 64 * 64 // 2, dtype=np.uint8)
    model.graph.initializer.append(
        helper.make_tensor("q", TensorProto.INT4, [64, 64], packed.tobytes(), raw=True)
    )
    scale = (rng.random((2, 64)) * 0.1).astype(np.float32)
    model.graph.initializer.append(helper.make_tensor("scale", TensorProto.FLOAT, [2, 64], scale))
    return model


@pytest.mark.parametrize("model", [cancelling, choosing, int4])
def test_a_self_test_is_judged_by_the_scale_of_the_model(
    model: Callable[[], ModelProto], caplog: pytest.LogCaptureFixture
) -> None:
    result = cut(model(), stages=1)
    with caplog.at_level(logging.WARNING):
        stage = load_stage(result.manifest, 1, result.files.__getitem__)
    assert stage.runtime.level == "all"  # type: ignore[union-attr]
    assert not [text for text in caplog.messages if "falling back" in text]


def labelled() -> ModelProto:
    """As skl2onnx writes a classifier of words: scores, and the names of classes as strings."""
    nodes = [
        node("Gemm", ["x", "w"], ["raw"]),
        node("Softmax", ["raw"], ["probabilities"]),
        node("ArgMax", ["raw"], ["at"], axis=1, keepdims=0),
        node("Gather", ["names", "at"], ["label"]),
    ]
    outputs = [value("label", ["n"], TensorProto.STRING), value("probabilities", ["n", 3])]
    model = make(nodes, [value("x", ["n", 4])], outputs, {"w": floats(4, 3)})
    model.graph.initializer.append(
        helper.make_tensor("names", TensorProto.STRING, [3], [b"cat", b"dog", b"owl"])
    )
    return model


def test_outputs_that_cannot_cross_are_dropped_by_name() -> None:
    with pytest.raises(ModelError, match=r"'label' is a tensor\(string\).*--outputs probabilities"):
        cut(labelled())
    for names in (["probabilities"], ["raw", "probabilities"]):
        result = cut(labelled(), outputs=names)
        assert [spec.name for spec in result.manifest.outputs] == names
        assert result.manifest.batchable
    with pytest.raises(ModelError, match="--outputs scores: no such tensor; the outputs are label"):
        cut(labelled(), outputs=["scores"])


def test_a_map_of_classes_names_the_tensor_that_it_is_made_of() -> None:
    model = labelled()
    classes = {"classlabels_strings": ["cat", "dog", "owl"], "domain": "ai.onnx.ml"}
    model.graph.node.append(node("ZipMap", ["probabilities"], ["by_name"], **classes))
    model.opset_import.add(domain="ai.onnx.ml", version=1)
    of_one = helper.make_map_type_proto(
        TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    )
    del model.graph.output[1]
    by_name = helper.make_sequence_type_proto(of_one)
    model.graph.output.append(helper.make_value_info("by_name", by_name))
    with pytest.raises(ModelError, match="--outputs probabilities leaves it out"):
        cut(model)
    assert cut(model, outputs=["probabilities"]).manifest.outputs[0].name == "probabilities"


def test_uneven_stages_are_told() -> None:
    even = cut(detector(), stages=2).manifest
    for times, told in (((1.0, 1.2), False), ((1.0, 2.0), True), ((0.0, 5.0), False)):
        shards = tuple(
            replace(shard, compute_ms=ms) for shard, ms in zip(even.shards, times, strict=True)
        )
        lines = example_lines(replace(even, shards=shards))
        assert lines[0].startswith("timed and proved with x [1, 3, 640, 640]")
        assert [
            line.startswith("uneven: stage 2 takes 1.33 of the mean") for line in lines[1:]
        ] == ([True] if told else [])


@pytest.mark.parametrize("text", ["x", "=1x3", "x=1x-3", "x=1xa", "x=", "x=0x3", "x=99999999999"])
def test_a_shape_that_is_none_is_an_invalid_argument(text: str) -> None:
    with pytest.raises(InvalidArgument, match="--shape"):
        Exemplified(shape=text).shapes()


def test_shapes_are_read_for_each_input() -> None:
    asked = Exemplified(shape="x=1x3x32x32,model/in:0=7")
    assert asked.shapes() == {"x": (1, 3, 32, 32), "model/in:0": (7,)}
    with pytest.raises(InvalidArgument, match="either --example or --shape"):
        Exemplified(shape="x=1", example="x.npz").shapes()
