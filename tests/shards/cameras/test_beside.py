"""What heads tell beside boxes, and heads without boxes, against plain loops: masks, keypoints,
turned boxes, depths, text. In the graph and outside of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import cv2
import numpy as np
import pytest
from shard_graphs import chained
from test_forms import (
    ANGLE,
    CELLS,
    IMAGE,
    KEYPOINTS,
    NAMES,
    RNG,
    SIZE,
    detr,
    detr_rows,
    form,
    given,
    rows,
    shares,
    three,
    v8,
)

from shards.cameras import DepthGrid, Detections, Result, Segments, Task, Text, document, lines
from shards.cameras.beside import corners_of, likeness, runs
from shards.cameras.placement import place
from shards.cameras.results import Masks
from shards.cameras.text import said_by
from shards.cameras.wish import Wish
from shards.errors import InputError, ManifestError, TaskError
from shards.split.split import SplitResult

LABELS = ("cat", "dog", "cow")
PROTOS = RNG.normal(size=(1, 4, 24, 24))
WEIGHTS = RNG.normal(size=(4, CELLS))


def read(result: SplitResult, image: np.ndarray = IMAGE) -> tuple[Task, Result]:
    task = Task.of(result.manifest.parts.get("task"))
    return task, task.read(chained(result, task.prepare(image), bare=True), image.shape)


def found_in(model: bytes, **more: Any) -> Detections:
    wish = Wish("detect", **{"labels": LABELS, "threshold": 0.5, "fit": "stretch"} | more)
    _, found = read(given(model, wish))
    assert isinstance(found, Detections)
    return found


# Row by row: a box (centre, or corners), a score, a class, and the values behind.
def rows_of(decode: str, outputs: Mapping[str, np.ndarray]) -> list[tuple[Any, float, int, Any]]:
    made = []
    if decode.startswith("yolo-v8"):
        for x, y, w, h, *more in outputs["output0"][0].T:
            made.append(([x, y, w, h], max(more[:3]), int(np.argmax(more[:3])), more[3:]))
    elif decode == "rt-detr-scores":
        for x, y, w, h, *scores in outputs["output0"][0]:
            box = [v * SIZE for v in (x, y, w, h)]
            made.append((box, max(scores), int(np.argmax(scores)), []))
    elif decode == "detr":
        for logits, box in zip(outputs["logits"][0], outputs["pred_boxes"][0], strict=True):
            scores = np.exp(logits) / np.exp(logits).sum()
            at = int(np.argmax(scores[:-1]))
            made.append(([v * SIZE for v in box], scores[at], at, []))
    elif decode == "boxes-scores-classes":
        parts = [outputs[name][0] for name in ("boxes", "scores", "labels")]
        for box, score, kind in zip(*parts, strict=True):
            made.append((_centred(box), score, int(kind), []))
    else:
        for (
            *box,
            score,
            kind,
        ) in (row[:6] for row in outputs["output0"][0]):
            made.append((box, score, int(kind), []))
        made = [
            (box, score, kind, row[6:])
            for (box, score, kind, _), row in zip(made, outputs["output0"][0], strict=True)
        ]
        if decode == "rt-detr-rows":
            made = [([v * SIZE for v in box], *rest) for box, *rest in made]
        elif not decode.endswith("-obb"):
            made = [(_centred(box), *rest) for box, *rest in made]
    kept = [each for each in made if each[1] > 0.5]
    return sorted(kept, key=lambda each: -each[1])


def _centred(box: Any) -> list[float]:
    left, top, right, bottom = box
    return [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]


def turned(box: list[float], angle: float) -> np.ndarray:
    x, y, w, h = box
    cos, sin = math.cos(angle), math.sin(angle)
    pairs = [(-w / 2, -h / 2), (w / 2, -h / 2), (w / 2, h / 2), (-w / 2, h / 2)]
    return np.array([(x + a * cos - b * sin, y + a * sin + b * cos) for a, b in pairs])


def mask_by_a_loop(box: list[float], weights: Any) -> np.ndarray:
    """Pixel by pixel, between the four places around its centre."""
    x, y, w, h = box
    mask = np.zeros((SIZE, SIZE), bool)
    side = PROTOS.shape[2]
    small = sum(weight * part for weight, part in zip(weights, PROTOS[0], strict=True))
    for row in range(SIZE):
        for column in range(SIZE):
            inside = x - w / 2 <= column < x + w / 2 and y - h / 2 <= row < y + h / 2
            if not inside:
                continue
            v, u = (min(max((p + 0.5) * side / SIZE - 0.5, 0), side - 1) for p in (row, column))
            i, j = int(v), int(u)
            k, m = min(i + 1, side - 1), min(j + 1, side - 1)
            top = small[i, j] * (1 - u + j) + small[i, m] * (u - j)
            low = small[k, j] * (1 - u + j) + small[k, m] * (u - j)
            mask[row, column] = top * (1 - v + i) + low * (v - i) > 0
    return mask


POSE = {"task": "pose", "names": NAMES[3], "kpt_shape": "[17, 3]"}
OBB, SEG = ({"task": task, "names": NAMES[3]} for task in ("obb", "segment"))
ANGLES = RNG.uniform(-1, 2, (1, 50))
FORMS: dict[str, tuple[dict[str, np.ndarray], dict[str, str]]] = {
    "yolo-v8-pose": (v8(shares(3), KEYPOINTS), POSE),
    "yolo-v8-obb": (v8(shares(3), ANGLE), OBB),
    "yolo-v8-seg": (v8(shares(3), WEIGHTS) | {"protos": PROTOS}, SEG),
    "yolo-end2end-pose": ({"output0": rows(50, RNG.uniform(-4, SIZE, (51, 50)))}, POSE),
    "yolo-end2end-obb": ({"output0": rows(50, ANGLES)}, OBB),
    "yolo-end2end-seg": (
        {"output0": rows(50, RNG.normal(size=(4, 50))), "protos": PROTOS},
        SEG,
    ),
    "rt-detr-rows": ({"output0": detr_rows(40)}, {}),
    "rt-detr-scores": (
        {"output0": np.concatenate([detr(3)["pred_boxes"], shares(3, 40).T[None]], axis=2)},
        {},
    ),
    "detr": (detr(4, none=True), {}),
    "boxes-scores-classes": (three(40), {}),
}


@pytest.mark.parametrize("bake", [True, False])
@pytest.mark.parametrize("decode", FORMS)
def test_a_plain_loop_over_all_rows_finds_the_same(decode: str, bake: bool) -> None:
    outputs, said = FORMS[decode]
    iou = 1.0 if "yolo-v8" in decode else None
    wish = Wish("detect", labels=LABELS, threshold=0.5, iou=iou, fit="stretch", bake=bake)
    result = given(form(outputs, said), wish)
    task, found = read(result)
    assert (task.postprocess.decode, task.baked) == (decode, bake)
    assert isinstance(found, Detections)
    expected = rows_of(decode, outputs)
    assert len(found) == len(expected) > 2
    np.testing.assert_allclose(found.scores, [score for _, score, *_ in expected], atol=1e-5)
    assert found.classes.tolist() == [kind for *_, kind, _ in expected]
    for at, (box, _, _, more) in enumerate(expected[:12]):
        corners = turned(box, more[0] if decode.endswith("obb") else 0.0)
        around = np.clip([*corners.min(axis=0), *corners.max(axis=0)], 0, SIZE)
        np.testing.assert_allclose(found.boxes[at] * SIZE, around, atol=2e-3)
        if found.corners is not None:
            np.testing.assert_allclose(found.corners[at] * SIZE, corners, atol=2e-3)
        if found.points is not None:
            points = np.array(more).reshape(17, 3)
            got = found.points[at] * (SIZE, SIZE, 1)
            np.testing.assert_allclose(got[:, :2], np.clip(points[:, :2], 0, SIZE), atol=1e-3)
            np.testing.assert_allclose(got[:, 2], points[:, 2], atol=1e-5)
        if found.masks is not None and at < 4:
            wrong = found.masks[at] != mask_by_a_loop(box, more)
            assert wrong.mean() < 1e-3  # where the sum is nought to FP32's rounding
    told = [found.points, found.corners, found.masks]
    beside = decode.rpartition("-")[2]
    assert [each is not None for each in told] == [beside == n for n in ("pose", "obb", "seg")]


def test_of_turned_boxes_that_are_alike_the_likelier_one_stays_in_the_graph_and_outside() -> None:
    boxes = np.array([[30, 40, 40, 10], [32, 41, 40, 10], [30, 40, 40, 10], [60, 60, 20, 20.0]])
    head = np.zeros((1, 8, CELLS))
    head[0, 2:4] = 4
    head[0, :4, :4] = boxes.T
    head[0, 4, :4] = [0.9, 0.8, 0.7, 0.6]
    head[0, 7, :4] = [0.5, 0.55, 0.5 + math.pi / 2, 0]  # the third one lies across
    for bake in (True, False):
        found = found_in(form({"output0": head}, OBB), bake=bake, iou=0.45)
        np.testing.assert_allclose(found.scores, [0.9, 0.7, 0.6], atol=1e-6)
        assert len(found_in(form({"output0": head}, OBB), bake=bake, iou=0.45, top=2)) == 2


def test_how_alike_turned_boxes_are_does_not_depend_on_the_names_of_their_sides() -> None:
    none = np.zeros((1, 2))
    wide, high = 40**2 / 12, 10**2 / 12
    one = np.array([[wide], [high], [0.0]])
    assert likeness(none, one, one)[0] == pytest.approx(1, abs=2e-3)
    assert likeness(none, one, one[[1, 0, 2]])[0] < 0.5
    assert likeness(np.array([[400.0, 0.0]]), one, one)[0] == pytest.approx(0, abs=1e-3)
    same = corners_of(np.float32([[0, 0.4, 1, 0.6]]), np.float32([math.pi]), (100, 100))
    straight = corners_of(np.float32([[0, 0.4, 1, 0.6]]), np.float32([0]), (100, 100))
    np.testing.assert_allclose(same, np.roll(straight, 2, axis=1), atol=1e-6)


def test_a_box_with_two_equally_likely_classes_counts_once() -> None:
    values = shares(3) * 0.4
    values[:, :5] = [[0.2], [0.9], [0.9]]
    for bake in (True, False):
        found = found_in(form(v8(values)), bake=bake, iou=1.0)
        assert found.classes.tolist() == [1] * 5


def test_letterboxed_masks_keypoints_and_corners_lie_on_the_picture() -> None:
    image = np.zeros((48, 96, 3), np.uint8)  # rows 24 to 72 of the model's picture
    said = FORMS["yolo-end2end-seg"][1]
    head = np.zeros((1, 1, 10))
    head[0, 0] = [0, 24, 96, 48, 0.9, 1, 1, 0, 0, 0]
    parts = {"output0": head, "protos": np.ones((1, 4, 24, 24))}
    wish = Wish("detect", labels=LABELS)
    _, found = read(given(form(parts, said), wish), image)
    assert isinstance(found, Detections)
    assert found.masks is not None
    assert found.masks.shape == (48, 96)
    np.testing.assert_array_equal(found.masks[0], np.arange(48)[:, None] < np.full(96, 24))
    head = np.zeros((1, 1, 57))
    head[0, 0, :9] = [0, 24, 96, 48, 0.9, 1, 48, 36, 0.8]
    _, found = read(given(form({"output0": head}, POSE), wish), image)
    assert isinstance(found, Detections)
    assert found.points is not None
    np.testing.assert_allclose(found.points[0, 0], [0.5, 0.25, 0.8], atol=1e-6)
    assert found.points[0, 1].tolist() == [0, 0, 0]  # above the picture: at its border


def test_what_is_beside_a_box_is_told_in_documents_and_lines() -> None:
    boxes, one = np.float32([[0.1, 0.2, 0.5, 0.6]]), np.ones(1, np.float32)
    masks = Masks((2, 2), (runs(np.array([[False, True], [False, True]])),))
    points = np.float32([[[0.25, 0.5, 0.75], [0, 0, 0.1]]])
    corners = np.float32([[[0.1, 0.2], [0.5, 0.2], [0.5, 0.6], [0.1, 0.6]]])
    found = Detections(boxes, one, np.zeros(1, np.int64), ("cat",), None, points, corners, masks)
    (told,) = document(found)["detections"]
    assert told["mask"] == {"size": [2, 2], "counts": [2, 2]}
    assert told["points"] == [[0.25, 0.5, 0.75], [0, 0, 0.1]]
    assert told["corners"][2] == [0.5, 0.6]
    shape = (100, 200, 3)
    assert lines(found, shape)[0].endswith(", 50.0% of the picture")
    at = Detections(boxes, one, np.zeros(1, np.int64), points=points)
    assert lines(at, shape)[0].endswith(", 1 points seen")
    at = Detections(boxes, one, np.zeros(1, np.int64), corners=corners)
    assert lines(at, shape)[0].endswith(", corners 20,20 100,20 100,60 20,60")


@pytest.mark.parametrize("seed", range(4))
def test_a_mask_is_what_its_runs_say(seed: int) -> None:
    mask = np.random.default_rng(seed).random((5, 7)) < seed / 3
    counts = runs(mask)
    assert counts.sum() == mask.size
    np.testing.assert_array_equal(Masks((5, 7), (counts,))[0], mask)


def test_other_values_beside_a_box_than_the_head_has_are_refused() -> None:
    doc = Task.of(
        given(form(*FORMS["yolo-v8-pose"]), Wish("detect")).manifest.parts.get("task")
    ).to_doc()
    for more, each in ((0, 3), (50, 3), (51, 0), (51, 4)):
        wrong = {**doc, "postprocess": {**doc["postprocess"], "more": more, "each": each}}
        with pytest.raises(ManifestError, match=r"more|each"):
            Task.of(wrong)
    task = Task.of({**doc, "baked": False})
    with pytest.raises(InputError, match="more than 55 values"):
        task.read({"output0": np.zeros((1, 30, CELLS), np.float32)}, IMAGE.shape)


# --- the size of a picture as a second input ---------------------------------------------------


def test_the_size_that_boxes_are_told_for_becomes_that_of_the_models_picture() -> None:
    from onnx import TensorProto, helper
    from shard_graphs import make, node, value

    size = 64
    table = {"w": np.ones((1, 3, 64, 64), np.float32), "corners": np.float32([[[0, 0, 0.5, 1]]])}
    table |= {"twice": np.array([1, 1, 4], np.int64), "nought": np.zeros((1, 1), np.float32)}
    nodes = [
        node("Conv", ["images", "w"], ["c"], strides=[64, 64]),
        node("Flatten", ["c"], ["f"]),
        node("Sigmoid", ["f"], ["s"]),
        node("Max", ["s", "nought"], ["scores"]),
        node("Cast", ["orig_target_sizes"], ["pair"], to=TensorProto.FLOAT),
        node("Concat", ["pair", "pair"], ["four"], axis=1),
        node("Mul", ["corners", "four"], ["boxes"]),
        node("Mul", ["scores", "nought"], ["zero"]),
        node("Cast", ["zero"], ["labels"], to=TensorProto.INT64),
    ]
    outputs = [value("labels", None, 7), value("boxes", None), value("scores", None)]
    inputs = [
        value("images", ["N", 3, size, size]),
        helper.make_tensor_value_info("orig_target_sizes", TensorProto.INT64, ["N", 2]),
    ]
    model = make(nodes, inputs, outputs, table).SerializeToString()
    for bake in (True, False):
        result = given(model, Wish("detect", labels=("cat",), threshold=0.1, bake=bake))
        assert any("orig_target_sizes is the size" in note for note in result.notes)
        task, found = read(result, np.full((50, 100, 3), 9, np.uint8))
        assert task.postprocess.decode == "boxes-scores-classes"
        assert isinstance(found, Detections)
        np.testing.assert_allclose(found.boxes, [[0, 0, 0.5, 1]], atol=1e-6)


# --- heads without boxes -----------------------------------------------------------------------


@pytest.mark.parametrize("bake", [True, False])
@pytest.mark.parametrize("shape", [(1, 32, 40), (1, 1, 32, 40), (1, 32, 40, 1)])
def test_a_depth_map_is_told_where_the_picture_is(shape: tuple[int, ...], bake: bool) -> None:
    values = RNG.uniform(0.5, 80, shape)
    wish = Wish("depth", fit="letterbox", bake=bake)
    result = given(form({"depth": values}), wish)
    task, found = read(result, np.zeros((48, 96, 3), np.uint8))
    assert (task.postprocess.decode, task.baked) == ("depth", bake)
    assert isinstance(found, DepthGrid)
    np.testing.assert_allclose(found.values, values.reshape(32, 40)[8:24], rtol=1e-6)
    told = document(found)["depth"]
    assert told["shape"] == [16, 40]
    assert told["least"] == pytest.approx(float(found.values.min()), abs=1e-4)
    assert np.array(told["grid"]).shape == (16, 32)
    assert lines(found)[0].startswith("40x16 places, from ")


def test_segments_are_told_where_the_picture_is() -> None:
    values = RNG.normal(size=(1, 3, 32, 40))
    result = given(form({"map": values}), Wish("segment", labels=LABELS, fit="letterbox"))
    _, found = read(result, np.zeros((48, 96, 3), np.uint8))
    assert isinstance(found, Segments)
    np.testing.assert_array_equal(found.classes, values[0].argmax(0)[8:24])


ALPHABET = "\n".join("abcd")


def line(text: str, classes: int = 6) -> np.ndarray:
    """Scores [1, 9, classes] that say this, a letter a place; "-" is none."""
    scores = np.full((1, 9, classes), 0.01)
    for at, letter in enumerate(text.ljust(9, "-")):
        scores[0, at, "-abcd ".index(letter)] = 0.5 + at / 100
    return np.asarray(scores / scores.sum(axis=2, keepdims=True))


@pytest.mark.parametrize("bake", [True, False])
@pytest.mark.parametrize("decode", ["ctc", "ctc-logits"])
def test_a_line_of_text_is_read_letter_by_letter(decode: str, bake: bool) -> None:
    scores = line("aa-ab  cc")
    values = scores if decode == "ctc" else np.log(scores) + 3
    said = {"character": ALPHABET}
    wish = Wish("read", decode=decode if decode == "ctc" else "", bake=bake)
    result = given(form({"out": values}, said), wish)
    task, found = read(result)
    assert (task.postprocess.decode, task.baked) == (decode, bake)
    assert (task.labels, task.preprocess.fit) == (tuple("abcd "), "line")
    assert isinstance(found, Text)
    assert found.text == "aab c"
    best = scores[0].max(axis=1)
    assert found.score == pytest.approx(best[[0, 3, 4, 5, 7]].mean(), abs=1e-5)
    assert document(found) == {"text": "aab c", "score": round(found.score, 5)}
    assert lines(found) == [f"aab c ({found.score:.3f})"]


def test_an_alphabet_that_does_not_fit_and_a_network_with_none_at_the_end_are_refused() -> None:
    with pytest.raises(TaskError, match="6 classes: none and 5 letters, and there are 2"):
        given(form({"out": line("a")}, {"character": "a\nb"}), Wish("read"))
    last = np.log(line("a"))[..., ::-1]
    with pytest.raises(TaskError, match="the last class is the likeliest nearly everywhere"):
        given(form({"out": last}, {"character": ALPHABET}), Wish("read"))
    with pytest.raises(TaskError, match="the scores of a place sum to one"):
        given(form({"out": line("a")}, {"character": ALPHABET}), Wish("read"))


def test_nothing_read_is_a_result_too() -> None:
    assert said_by(np.zeros(4, np.int64), np.ones(4), "ab") == ("", 0.0)
    assert said_by(np.array([1, 1, 0, 1, 9]), np.ones(5), "ab") == ("aa\ufffd", 1.0)


def test_lines_of_text_are_found_with_their_corners() -> None:
    grid = np.full((96, 96), 0.02, np.float32)
    box = ((40, 50), (50, 8), 20.0)
    cv2.fillPoly(grid, [cv2.boxPoints(box).astype(np.int32)], 0.9)
    grid[80:82, 80:82] = 0.9  # too small
    cv2.rectangle(grid, (10, 10), (30, 16), 0.4, -1)  # too unlikely
    result = given(form({"map": grid[None, None]}), Wish("detect", decode="db"))
    assert any("not baked into the graph" in note for note in result.notes)
    task, found = read(result, np.zeros((96, 96, 3), np.uint8))
    assert (task.preprocess.fit, task.preprocess.colours) == ("letterbox", "bgr")
    assert isinstance(found, Detections)
    assert len(found) == 1
    assert found.corners is not None
    grown = 50 * 8 * 1.6 / (2 * (50 + 8))
    wanted = cv2.boxPoints(((40, 50), (50 + 2 * grown, 8 + 2 * grown), 20.0))
    got = found.corners[0] * 96
    apart = min(np.abs(np.roll(wanted, by, axis=0) - got).max() for by in range(4))
    assert apart < 6  # pixels: what is text is dilated first, and grows more for it
    assert 0.6 < found.scores[0] < 0.9  # of the box around all that is dilated
    (a, b), (c, d) = got[1] - got[0], got[2] - got[1]
    assert a * d - b * c > 0  # clockwise as one sees it


# --- where a picture lies ----------------------------------------------------------------------


def test_a_picture_lies_in_the_corner_or_along_the_line_as_its_head_expects() -> None:
    at = place((48, 100, 3), 64, 64, "corner")  # as YOLOX's authors resize: int(side * scale)
    assert (at.left, at.top, at.width, at.height) == (0, 0, 64, 30)
    at = place((20, 45, 3), 320, 48, "line")
    assert (at.left, at.top, at.width, at.height) == (0, 0, 108, 48)
    at = place((20, 4000, 3), 320, 48, "line")
    assert (at.width, at.height) == (320, 48)
    back = place((48, 100, 3), 64, 64, "corner").back(np.float32([[0, 0, 0.5, 30 / 64]]))
    np.testing.assert_allclose(back, [[0, 0, 0.5, 1]], atol=1e-6)
