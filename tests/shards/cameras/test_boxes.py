"""Which boxes stay: a plain reference, ONNX's own operator, and what holds for any boxes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnxruntime as ort
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from shards.cameras.boxes import chosen, kept, overlaps


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    left, top = max(one[0], other[0]), max(one[1], other[1])
    right, bottom = min(one[2], other[2]), min(one[3], other[3])
    if right <= left or bottom <= top:
        return 0.0
    both = float(right - left) * float(bottom - top)
    areas = [float(b[2] - b[0]) * float(b[3] - b[1]) for b in (one, other)]
    return both / (sum(areas) - both)


def random_boxes(seed: int, n: int, *, turned: bool = False) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    corner, side = rng.random((n, 2)) * 0.7, 0.05 + rng.random((n, 2)) * 0.25
    boxes = np.concatenate([corner, corner + side], axis=1).astype(np.float32)
    if turned:  # any two opposite corners
        boxes[::3] = boxes[::3][:, [2, 1, 0, 3]]
    return boxes, rng.random(n).astype(np.float32)


def by_onnx(boxes: np.ndarray, scores: np.ndarray, iou: float, most: int) -> list[int]:
    """The indices of one class that ONNX Runtime's operator selects, in its order."""
    nms = helper.make_node("NonMaxSuppression", ["b", "s", "m", "i", "t"], ["y"])
    values = {"m": np.array([most], np.int64), "i": np.float32([iou]), "t": np.float32([-1])}
    kinds = {"b": 1, "s": 1, "m": TensorProto.INT64, "i": 1, "t": 1}
    inputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()]
    output = helper.make_tensor_value_info("y", TensorProto.INT64, None)
    graph = helper.make_graph([nms], "g", inputs, [output])
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (rows,) = session.run(None, {"b": boxes[None], "s": scores[None, None], **values})
    return [int(row[2]) for row in rows]


seeds = st.integers(0, 10_000)
shares = st.floats(0.05, 0.95)


@given(seeds, st.integers(0, 60), shares, st.integers(1, 70))
def test_no_box_that_stays_overlaps_a_likelier_one_and_each_that_goes_does(
    seed: int, n: int, iou: float, most: int
) -> None:
    boxes, scores = random_boxes(seed, n)
    found = list(kept(boxes, scores, iou, n or 1))
    assert all(scores[a] >= scores[b] for a, b in pairwise(found))
    near = 1e-6  # FP32 against FP64
    for place, index in enumerate(found):
        assert all(overlap(boxes[index], boxes[other]) <= iou + near for other in found[:place])
    for index in set(range(n)) - set(found):
        likelier = [other for other in found if scores[other] >= scores[index]]
        assert any(overlap(boxes[index], boxes[other]) > iou - near for other in likelier)
    assert list(kept(boxes, scores, iou, most)) == found[:most]


@given(seeds, st.integers(1, 40), shares)
def test_what_stays_stays_when_it_is_asked_again(seed: int, n: int, iou: float) -> None:
    boxes, scores = random_boxes(seed, n)
    found = kept(boxes, scores, iou, n)
    again = kept(boxes[found], scores[found], iou, n)
    assert list(again) == list(range(len(found)))


@given(seeds, st.integers(1, 60), shares, st.integers(1, 70), st.booleans())
def test_it_is_the_choice_of_the_operator_in_a_graph_to_the_last_box(
    seed: int, n: int, iou: float, most: int, equal: bool
) -> None:
    boxes, scores = random_boxes(seed, n, turned=not equal)
    if equal:
        scores = np.round(scores * 4) / np.float32(4)
    assert list(kept(boxes, scores, iou, most)) == by_onnx(boxes, scores, iou, most)


def test_a_box_overlaps_itself_wholly_and_a_box_without_area_nothing() -> None:
    box = np.float32([0.1, 0.2, 0.5, 0.6])
    others = np.float32([[0.1, 0.2, 0.5, 0.6], [0.3, 0.3, 0.3, 0.5], [0.6, 0.7, 0.8, 0.9]])
    np.testing.assert_allclose(overlaps(box, others), [1, 0, 0])
    np.testing.assert_array_equal(overlaps(others[1], others), [0, 0, 0])


def test_a_box_counts_with_its_likeliest_class_and_classes_do_not_suppress_each_other() -> None:
    box = np.float32([0.1, 0.1, 0.5, 0.5])
    boxes = np.stack([box, box, box, box])
    scores = np.float32([[0.9, 0.8, 0], [0.3, 0.6, 0], [0.7, 0.2, 0], [0.1, 0.2, 0.25]])
    _, values, classes = chosen(boxes, scores, 0.25, 0.5, 10)
    np.testing.assert_array_equal(values, np.float32([0.9, 0.6]))  # .25 is not above .25
    assert list(classes) == [0, 1]


def test_no_boxes_and_scores_that_are_no_numbers_give_nothing() -> None:
    none = chosen(np.zeros((0, 4), np.float32), np.zeros((0, 3), np.float32), 0.2, 0.5, 5)
    assert [len(part) for part in none] == [0, 0, 0]
    boxes = np.full((2, 4), np.nan, np.float32)
    assert len(chosen(boxes, np.full((2, 1), np.nan, np.float32), 0.2, 0.5, 5)[0]) == 0
