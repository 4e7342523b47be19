"""The zoo's promises: the shipped models are as good as documented, the built graphs are real."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from zoo import builders
from zoo.digits_net import digits_lite_network, digits_network, to_onnx
from zoo.numpy_layers import (
    BatchNormalization,
    Convolution,
    Dense,
    GlobalAveragePool,
    MaxPool,
    Relu,
)
from zoo.numpy_network import Residual, Sequential, cross_entropy
from zoo.train_digits import DATA, accuracy, shifted, split_digits, train

from shards import zoo
from shards.zoo.fresh_head import digits_with_fresh_head

Feed = dict[str, np.ndarray]


def session(model: bytes, level: str = "ORT_ENABLE_ALL", saved: str = "") -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    if saved:
        options.optimized_model_filepath = saved
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run(model: bytes, feed: Feed) -> np.ndarray:
    return session(model).run(None, feed)[0]


def operators(model: bytes) -> list[str]:
    return [node.op_type for node in onnx.load_from_string(model).graph.node]


def alive_after(model: bytes, cut: int) -> set[str]:
    """Names of the tensors produced (or fed) before node `cut` and used from there on."""
    graph = onnx.load_from_string(model).graph
    before = {each.name for each in graph.input} | {
        name for node in graph.node[:cut] for name in node.output
    }
    after = {name for node in graph.node[cut:] for name in node.input}
    return before & after


# The shipped models.


def test_the_shipped_model_labels_97_percent_of_the_held_out_digits_right():
    assert accuracy(zoo.digits_model()) >= 0.97


def test_the_lite_model_is_right_on_90_percent_and_at_least_five_times_smaller():
    assert accuracy(zoo.digits_lite_model()) >= 0.9
    assert 5 * len(zoo.digits_lite_model()) <= len(zoo.digits_model())


def test_the_shipped_files_stay_small():
    sizes = {path.name: path.stat().st_size for path in DATA.iterdir()}
    assert sum(sizes.values()) < 400_000


@pytest.mark.parametrize("model", [zoo.digits_model, zoo.digits_lite_model])
def test_both_models_share_one_contract_with_a_dynamic_batch(model: Callable[[], bytes]):
    loaded = session(model())
    assert [(i.name, i.type, i.shape) for i in loaded.get_inputs()] == [
        ("image", "tensor(float)", ["batch", 1, 8, 8])
    ]
    assert [(o.name, o.type, o.shape) for o in loaded.get_outputs()] == [
        ("logits", "tensor(float)", ["batch", 10])
    ]


@pytest.mark.parametrize("model", [zoo.digits_model, zoo.digits_lite_model])
def test_an_image_gets_the_same_logits_alone_and_in_a_batch(model: Callable[[], bytes]):
    images = zoo.digits_heldout()[0][:17]
    loaded = session(model())
    (together,) = loaded.run(None, {"image": images})
    alone = np.concatenate([loaded.run(None, {"image": image[None]})[0] for image in images])
    np.testing.assert_allclose(alone, together, rtol=1e-4, atol=1e-4)


def test_the_model_has_residual_connections():
    graph = onnx.load_from_string(zoo.digits_model()).graph
    additions = [node for node in graph.node if node.op_type == "Add"]
    uses = [name for node in graph.node for name in node.input]
    assert len(additions) == 2
    # The shortcut is read twice: by the block's first convolution and by the addition.
    assert all(any(uses.count(name) == 2 for name in node.input) for node in additions)


def test_the_model_ships_normalizations_for_the_basic_fusion_to_fold(tmp_path):
    assert operators(zoo.digits_model()).count("BatchNormalization") == 6
    saved = tmp_path / "fused.onnx"
    feed = {"image": zoo.digits_heldout()[0]}
    fused = session(zoo.digits_model(), "ORT_ENABLE_BASIC", str(saved)).run(None, feed)[0]
    plain = session(zoo.digits_model(), "ORT_DISABLE_ALL").run(None, feed)[0]
    assert "BatchNormalization" not in operators(saved.read_bytes())
    np.testing.assert_allclose(fused, plain, rtol=1e-4, atol=1e-4)


def test_the_model_offers_cuts_of_one_tensor_between_one_and_four_kibibytes():
    model = zoo.digits_model()
    graph = onnx.shape_inference.infer_shapes(onnx.load_from_string(model)).graph
    elements = {
        value.name: math.prod(d.dim_value for d in value.type.tensor_type.shape.dim[1:])
        for value in graph.value_info
    }
    cuts = [alive_after(model, cut) for cut in range(1, len(graph.node))]
    sizes = {4 * elements[next(iter(cut))] for cut in cuts if len(cut) == 1}
    assert {1024, 2048, 4096} <= sizes


def test_the_held_out_digits_were_never_trained_on():
    images, _, held_images, held_labels = split_digits()
    shipped_images, shipped_labels = zoo.digits_heldout()
    np.testing.assert_array_equal(shipped_images, held_images.astype(np.float32) / 16)
    np.testing.assert_array_equal(shipped_labels, held_labels)
    trained_on = {image.tobytes() for image in images}
    assert len(images) + len(held_images) == 1797
    assert not trained_on & {image.tobytes() for image in held_images}


def test_the_training_digits_are_all_the_others_in_their_order():
    images, labels, held_images, _ = split_digits()
    shipped_images, shipped_labels = zoo.digits_training()
    np.testing.assert_array_equal(shipped_images, images.astype(np.float32) / 16)
    np.testing.assert_array_equal(shipped_labels, labels)
    assert (shipped_images.dtype, shipped_images.shape) == (np.float32, (1257, 1, 8, 8))
    assert (shipped_labels.dtype, shipped_labels.shape) == (np.int64, (1257,))
    held = {image.tobytes() for image in held_images}
    assert not held & {(image * 16).astype(np.uint8).tobytes() for image in shipped_images}


def test_the_held_out_digits_are_scaled_to_one_and_show_every_class():
    images, labels = zoo.digits_heldout()
    assert (images.dtype, images.shape) == (np.float32, (540, 1, 8, 8))
    assert (labels.dtype, labels.shape) == (np.int64, (540,))
    assert (images.min(), images.max()) == (0.0, 1.0)
    assert np.bincount(labels).min() >= 30


def test_reading_the_shipped_models_needs_neither_onnx_nor_scikit_learn():
    code = (
        "import sys; from shards import zoo; zoo.digits_model(); zoo.digits_heldout();"
        "zoo.digits_training();"
        "sys.exit(bool({'onnx', 'onnxruntime', 'sklearn', 'swarm', 'nats'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_the_public_surface_of_the_zoo_is_pinned():
    assert zoo.__all__ == [
        "digits_heldout",
        "digits_lite_model",
        "digits_model",
        "digits_training",
    ]


# How they were trained.


def tiny_network(rng: np.random.Generator) -> Sequential:
    body = Sequential(Convolution(rng, 3, 3), BatchNormalization(3))
    return Sequential(
        Convolution(rng, 1, 3),
        BatchNormalization(3),
        Relu(),
        Residual(body),
        MaxPool(),
        GlobalAveragePool(),
        Dense(rng, 3, 4),
    )


def test_backward_is_the_gradient_of_forward():
    rng = np.random.default_rng(1)
    network = tiny_network(rng)
    for parameter in network.parameters():
        parameter.value = parameter.value.astype(np.float64)
    x, labels = rng.standard_normal((5, 4, 4, 1)), rng.integers(0, 4, 5)

    def loss() -> float:
        return cross_entropy(network.forward(x, True), labels)[0]

    network.backward(cross_entropy(network.forward(x, True), labels)[1])
    analytic = [parameter.gradient.copy() for parameter in network.parameters()]
    for parameter, gradient in zip(network.parameters(), analytic, strict=True):
        for index in np.ndindex(parameter.value.shape):
            kept, step = parameter.value[index], 1e-6
            parameter.value[index] = kept + step
            above = loss()
            parameter.value[index] = kept - step
            below = loss()
            parameter.value[index] = kept
            assert gradient[index] == pytest.approx((above - below) / (2 * step), abs=1e-5)


@pytest.mark.parametrize("network_of", [digits_network, digits_lite_network])
def test_the_exported_graph_computes_what_was_trained(network_of: Callable[[int], Sequential]):
    images, labels, held_images, _ = split_digits()
    network = network_of(3)
    train(network, images[:64], labels[:64], epochs=1, rate=0.004, augment=0.5)
    x = held_images[:20].astype(np.float32) / 16
    ours = network.forward(np.moveaxis(x, 1, -1), False)
    theirs = run(to_onnx(network, "trained"), {"image": x})
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_training_twice_gives_the_same_bytes():
    images, labels, _, _ = split_digits()

    def once() -> bytes:
        network = digits_network(5)
        train(network, images[:64], labels[:64], epochs=1, rate=0.004, augment=0.5)
        return to_onnx(network, "digits")

    assert once() == once()


def test_an_augmented_digit_is_the_digit_moved_by_at_most_one_pixel():
    x = np.zeros((50, 8, 8, 1), np.float32)
    x[:, 3, 4] = 1
    moved = shifted(x, np.random.default_rng(0))
    _, rows, columns, _ = np.nonzero(moved)
    assert moved.shape == x.shape
    assert set(rows) == {2, 3, 4}
    assert set(columns) == {3, 4, 5}


# The builders.


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("feature_bytes", [4, 1024, 1 << 20])
@pytest.mark.parametrize(("stages", "work"), [(1, 1), (4, 1), (3, 5)])
def test_a_chain_computes_its_closed_form_to_the_bit(stages: int, work: int, feature_bytes: int):
    features = normal(1, feature_bytes // 4)
    result = run(builders.chain(stages, feature_bytes, work), {"features": features})
    np.testing.assert_array_equal(result, builders.chain_expected(features, stages, work))
    assert result.nbytes == feature_bytes


@pytest.mark.parametrize("level", ["ORT_ENABLE_BASIC", "ORT_ENABLE_ALL"])
def test_no_optimizer_collapses_a_chain(level: str, tmp_path):
    saved = tmp_path / "optimized.onnx"
    session(builders.chain(5, 64, 4), level, str(saved))
    assert operators(saved.read_bytes()) == operators(builders.chain(5, 64, 4))
    outputs = {o for node in onnx.load(saved).graph.node for o in node.output}
    assert outputs >= set(builders.chain_cuts(5))


# A head to learn anew.


def test_the_fresh_head_knows_nothing_and_stands_on_the_shipped_layers():
    model = digits_with_fresh_head()
    images = zoo.digits_heldout()[0][:9]
    graph = onnx.load_from_string(model).graph
    assert [node.op_type for node in graph.node[-2:]] == ["Flatten", "Gemm"]
    shipped = operators(zoo.digits_model())
    assert operators(model)[:-2] == shipped[:-3]
    (logits,) = session(model).run(None, {"image": images})
    np.testing.assert_array_equal(logits, np.zeros((9, 10), np.float32))
