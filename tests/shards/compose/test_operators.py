"""Operators give what ONNX Runtime's operators of that name give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from onnx import TensorProto, helper

from shards.compose.operators import OPERATORS

FLOAT = np.float32


def compute(operator: str, of: Mapping[str, np.ndarray], **given: Any) -> dict[str, np.ndarray]:
    found = OPERATORS[operator]
    return found.run(of, found.with_defaults(given, "here"))


def onnx_runs(kind: str, inputs: Mapping[str, np.ndarray], **attributes: Any) -> np.ndarray:
    types = {"f": TensorProto.FLOAT, "i": TensorProto.INT64}
    names = [name if array.size else "" for name, array in inputs.items()]
    graph = helper.make_graph(
        [helper.make_node(kind, names, ["out"], **attributes)],
        "one",
        [
            helper.make_tensor_value_info(name, types[array.dtype.kind], array.shape)
            for name, array in inputs.items()
            if array.size
        ],
        [
            helper.make_tensor_value_info(
                "out", types["i" if kind == "NonMaxSuppression" else "f"], None
            )
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (made,) = session.run(None, {name: a for name, a in inputs.items() if a.size})
    found: np.ndarray = made
    return found


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (8, 8), (17, 4)])
def test_resize_is_the_linear_one_of_onnx(size: tuple[int, int]) -> None:
    image = np.random.default_rng(0).normal(size=(2, 3, 8, 6)).astype(FLOAT)
    sizes = np.array([2, 3, *size])
    nothing = np.zeros(0, FLOAT)
    wanted = onnx_runs(
        "Resize",
        {"image": image, "roi": nothing, "scales": nothing, "sizes": sizes},
        mode="linear",
        coordinate_transformation_mode="half_pixel",
    )
    made = compute("resize", {"of": image}, size=list(size))["resized"]
    np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-5)


def test_a_crop_on_the_borders_of_pixels_is_these_pixels() -> None:
    image = np.arange(2 * 4 * 8, dtype=np.uint8).reshape(1, 2, 4, 8)
    boxes = np.array([[0.25, 0.5, 0.75, 1.0], [0, 0, 1, 1]], FLOAT)
    small = compute("crop", {"image": image, "boxes": boxes[:1]}, size=[2, 4])["crops"]
    np.testing.assert_array_equal(small, image[:, :, 2:4, 2:6])
    whole = compute("crop", {"image": image, "boxes": boxes[1:]}, size=[4, 8])["crops"]
    np.testing.assert_array_equal(whole, image)


@given(arrays(FLOAT, st.tuples(st.integers(0, 3), st.just(4)), elements=st.floats(width=32)))
@settings(max_examples=60, deadline=None)
def test_no_box_makes_a_crop_fail(boxes: np.ndarray) -> None:
    image = np.ones((1, 3, 5, 7), FLOAT)
    made = compute("crop", {"image": image, "boxes": boxes}, size=[2, 3])["crops"]
    np.testing.assert_allclose(made, np.ones((len(boxes), 3, 2, 3)), rtol=1e-6)


@given(st.integers(0, 1 << 16), st.integers(0, 40), st.floats(0.1, 0.9), st.floats(0, 0.8))
@settings(max_examples=60, deadline=None)
def test_nms_is_that_of_onnx(seed: int, count: int, iou: float, above: float) -> None:
    dice = np.random.default_rng(seed)
    corners = dice.random((count, 2, 2)).astype(FLOAT)
    corners.sort(axis=1)
    boxes = corners.reshape(1, count, 4)
    scores = dice.permutation(count).astype(FLOAT)[None, :, None] / max(1, count)
    made = compute("nms", {"boxes": boxes, "scores": scores}, iou=iou, above=above, most=1024)
    if count == 0:
        assert made["boxes"].shape == (0, 4)
        return
    picked = onnx_runs(
        "NonMaxSuppression",
        {
            "boxes": boxes,
            "scores": np.swapaxes(scores, 1, 2),
            "most": np.array([1024]),
            "iou": np.array([iou], FLOAT),
            "above": np.array([above], FLOAT),
        },
    )[:, 2]
    np.testing.assert_array_equal(made["boxes"], boxes[0, picked])
    np.testing.assert_array_equal(made["scores"], scores[0, picked, 0])


def test_nms_keeps_no_more_than_it_may() -> None:
    boxes = np.array([[[i, 0, i + 0.5, 1] for i in range(20)]], FLOAT)
    scores = np.linspace(1, 0.5, 20, dtype=FLOAT)[None, :, None]
    made = compute("nms", {"boxes": boxes, "scores": scores}, above=0.1, most=3)
    np.testing.assert_array_equal(made["boxes"], boxes[0, :3])


@pytest.mark.parametrize("datatype", [np.float16, np.float32, np.float64])
def test_boxes_in_pixels_overlap_in_every_float(datatype: Any) -> None:
    boxes = np.array([[[0, 0, 640, 640], [0, 8, 640, 640], [320, 320, 640, 640]]], datatype)
    scores = np.array([[[0.5], [0.75], [0.25]]], datatype)
    made = compute("nms", {"boxes": boxes, "scores": scores}, above=0.1, most=3)
    np.testing.assert_array_equal(made["boxes"], boxes[0, [1, 2]])
    assert made["boxes"].dtype == datatype


@given(arrays(FLOAT, (2, 3, 4), elements=st.sampled_from([-np.inf, -1, 0, 2, np.inf, np.nan])))
@settings(max_examples=100, deadline=None)
def test_a_vote_goes_to_one_that_was_voted_for(scores: np.ndarray) -> None:
    label = compute("vote", {"0": scores[0], "1": scores[1]})["label"]
    assert ((label == scores[0].argmax(-1)) | (label == scores[1].argmax(-1))).all()


def test_a_vote_goes_to_most_and_between_as_many_to_the_larger_scores() -> None:
    a = np.array([[0.9, 0.1, 0.0], [0.6, 0.4, 0.0]], FLOAT)
    b = np.array([[0.8, 0.2, 0.0], [0.1, 0.9, 0.0]], FLOAT)
    c = np.array([[0.0, 1.0, 0.0], [0.0, 0.1, 0.9]], FLOAT)
    made = compute("vote", {"0": a, "1": b, "2": c})
    np.testing.assert_array_equal(made["label"], [0, 1])
    np.testing.assert_allclose(made["share"], [2 / 3, 1 / 3])


def test_a_mean_of_those_that_are_there_has_their_weights_alone() -> None:
    ones, threes = np.ones(2, FLOAT), np.full(2, 3, FLOAT)
    whole = compute("mean", {"0": ones, "1": threes}, weights=[1, 3])["mean"]
    np.testing.assert_allclose(whole, [2.5, 2.5])
    np.testing.assert_allclose(compute("mean", {"1": threes}, weights=[1, 3])["mean"], threes)
