"""A model's head is found, split off, trained elsewhere, and stored again as the model has it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from onnx import ModelProto
from shard_graphs import Arrays, floats, make, node, ssd_like, value
from zoo.builders import mobilenet, resnet50

from shards.errors import ModelError
from shards.runtimes.ort import make_session
from shards.split.split import split
from shards.weights.head import find_head, split_off_head
from shards.weights.onnx_file import OnnxFile
from shards.zoo import digits_heldout, digits_model

W, B = floats(6, 3), floats(3, seed=4)


def headed(*behind: str, **weights: np.ndarray) -> ModelProto:
    """x [batch, 6] ─► Relu ─► MatMul w ─► Add b ─► the layers `behind`."""
    layers = [
        node("Relu", ["x"], ["features"]),
        node("MatMul", ["features", "w"], ["product"]),
        node("Add", ["product", "b"], ["sum"]),
    ]
    last = "sum"
    for index, operator in enumerate(behind):
        layers.append(node(operator, [last], [f"behind_{index}"]))
        last = f"behind_{index}"
    return make(layers, [value("x", ["n", 6])], [value(last, None)], {"w": W, "b": B, **weights})


def gemm(weights: Arrays, **attributes: object) -> ModelProto:
    inputs = ["features", "w", "b"] if "b" in weights else ["features", "w"]
    layers = [node("Relu", ["x"], ["features"]), node("Gemm", inputs, ["y"], **attributes)]
    return make(layers, [value("x", ["n", 6])], [value("y", ["n", 3])], weights)


FORMS = {
    "a Gemm": gemm({"w": W, "b": B}),
    "a Gemm of transposed weights": gemm({"w": W.T.copy(), "b": B}, transB=1),
    "a Gemm whose bias is a row": gemm({"w": W, "b": B[None]}),
    "a MatMul and an Add": headed(),
    "a Softmax behind it": headed("Softmax", "Identity"),
}


@pytest.mark.parametrize("form", FORMS)
def test_frozen_part_and_head_together_are_the_model(form: str) -> None:
    data = FORMS[form].SerializeToString()
    frozen, head, weight, bias = split_off_head(data)
    assert (head.width, head.classes) == (6, 3)
    assert np.array_equal(weight, W)
    assert np.array_equal(bias, B)
    x = floats(5, 6, seed=9)
    features = make_session(frozen, level="basic").run(None, {"x": x})[0]
    expected = features @ weight + bias
    if "Softmax" in form:
        expected = np.exp(expected) / np.exp(expected).sum(1, keepdims=True)
    answer = make_session(data, level="basic").run(None, {"x": x})[0]
    np.testing.assert_allclose(expected, answer, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_a_trained_head_is_stored_as_the_model_has_it(form: str) -> None:
    file = OnnxFile(FORMS[form].SerializeToString())
    head = find_head(FORMS[form].SerializeToString())
    stored = head.tensors(2 * W, 2 * B)
    assert stored.keys() == set(head.names)
    for name, array in stored.items():
        assert array.shape == file.specs[name].shape
        assert array.dtype == file.specs[name].dtype
        assert np.array_equal(array, 2 * file.weight(name))


@pytest.mark.parametrize(
    "build", [digits_model, lambda: mobilenet(32, 0.25), lambda: resnet50(32, 0.25)]
)
def test_the_head_of_a_served_stage_is_its_last_layer(build: object) -> None:
    result = split(build(), name="model", stages=2, profile=False)  # type: ignore[operator]
    stage = result.manifest.shard(2)
    _, head, weight, bias = split_off_head(result.files[stage.file])
    assert head.logits == "logits"
    assert weight.shape == (head.width, head.classes)
    assert bias.shape == (head.classes,)


def test_the_frozen_digits_model_with_its_head_labels_as_before() -> None:
    images, labels = digits_heldout()
    frozen, _, weight, bias = split_off_head(digits_model())
    features = make_session(frozen).run(None, {"image": images})[0]
    assert features.shape == (len(images), len(weight))
    assert ((features @ weight + bias).argmax(1) == labels).mean() > 0.98


def test_a_model_that_is_nothing_but_a_head_has_an_empty_frozen_part() -> None:
    model = make(
        [node("Gemm", ["x", "w", "b"], ["y"])],
        [value("x", ["n", 6])],
        [value("y", ["n", 3])],
        {"w": W, "b": B},
    )
    frozen, head, _, _ = split_off_head(model.SerializeToString())
    assert frozen == b""
    assert head.features == "x"


def test_a_head_without_bias_takes_none() -> None:
    head = find_head(gemm({"w": W}).SerializeToString())
    assert head.names == ("w",)
    assert head.tensors(W, np.zeros(3, np.float32)).keys() == {"w"}
    with pytest.raises(ModelError, match="no bias"):
        head.tensors(W, B)
    with pytest.raises(ModelError, match=r"\[6, 3\]"):
        head.tensors(W.T, B)


def shared() -> ModelProto:
    model = headed()
    model.graph.node.extend([node("MatMul", ["features", "w"], ["other"])])
    model.graph.output.append(value("other", ["n", 3]))
    del model.graph.node[1:3]
    model.graph.node.insert(1, node("MatMul", ["x", "w"], ["sum"]))
    return model


def computed() -> ModelProto:
    model = headed()
    model.graph.node.insert(0, node("Relu", ["w"], ["positive"]))
    model.graph.node[2].input[1] = "positive"
    return model


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (ssd_like(), "no fully connected layer"),
        (headed("Relu"), "followed by Relu"),
        (computed(), "computed, not stored"),
        (shared(), "shares 'w'"),
        (gemm({"w": W, "b": B}, alpha=2.0), "scales its features"),
        (gemm({"w": W, "b": B}, beta=2.0), "scales its bias"),
        (gemm({"w": W, "b": B[:1].reshape(())}), "no stored row"),
    ],
)
def test_a_model_without_a_head_to_train_is_refused_with_the_reason(
    model: ModelProto, reason: str
) -> None:
    with pytest.raises(ModelError, match=reason):
        find_head(model.SerializeToString())


def test_a_device_splits_a_head_off_without_onnx() -> None:
    code = (
        "import sys; sys.modules['onnx'] = None\n"
        "from shards.weights.head import split_off_head\n"
        "from shards.zoo import digits_model\n"
        "print(split_off_head(digits_model())[1].classes)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert out.stdout == "10\n"
