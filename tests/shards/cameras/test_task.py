"""What a model is for, as a document; a picture to inputs, outputs to results."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.cameras import (
    Classes,
    Detections,
    Embedding,
    Postprocess,
    Preprocess,
    Segments,
    Task,
    document,
    lines,
)
from shards.cameras.part import PART
from shards.cameras.pixels import on_grid, resized, resized_by_numpy, to_gray
from shards.cameras.placement import place
from shards.errors import InputError, ManifestError

PRE = Preprocess("images", 64, 48, fit="letterbox")
DETECT = Task("detect", PRE, Postprocess("yolo-v8", ("head",)), labels=("cat", "dog"))
BAKED = replace(DETECT, baked=True)
IMAGE = np.random.default_rng(5).integers(0, 256, (120, 200, 3), np.uint8)


def of_kind(kind: str, decode: str, **post: Any) -> Task:
    return Task(kind, PRE, Postprocess(decode, ("out",), **post), labels=("cat", "dog", "cow"))


def with_field(doc: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    copy = json.loads(json.dumps(doc))
    *parts, last = path.split(".")
    inner = copy
    for part in parts:
        inner = inner[part]
    inner[last] = value
    return copy


@pytest.mark.parametrize("task", [DETECT, BAKED, of_kind("segment", "argmax", top=7)])
def test_a_task_survives_json_and_fields_of_later_versions_are_ignored(task: Task) -> None:
    doc = json.loads(json.dumps(task.to_doc()))
    assert Task.of(doc) == task
    assert Task.of(with_field(with_field(doc, "later", 1), "preprocess.later", {})) == task


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("kind", "juggle"),
        ("preprocess", None),
        ("preprocess.width", 0),
        ("preprocess.height", 1e9),
        ("preprocess.fit", "crop"),
        ("preprocess.mean", [1, 2]),
        ("preprocess.scale", 0),
        ("preprocess.std", [1.0, float("nan"), 1.0]),
        ("postprocess.decode", "logits"),
        ("postprocess.outputs", ["a", "b"]),
        ("postprocess.threshold", 2),
        ("postprocess.top", True),
        ("labels", [1]),
        ("labels", "cat"),
    ],
)
def test_a_task_that_is_none_is_refused_by_its_field(path: str, value: object) -> None:
    with pytest.raises(ManifestError, match=path.rpartition(".")[2]):
        Task.of(with_field(DETECT.to_doc(), path, value))


def test_a_model_without_a_task_says_how_to_give_it_one() -> None:
    with pytest.raises(ManifestError, match="--task"):
        Task.of(None)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
paths = ["kind", "labels", "baked", "preprocess", "postprocess"]
paths += [f"preprocess.{name}" for name in DETECT.to_doc()["preprocess"]]
paths += [f"postprocess.{name}" for name in DETECT.to_doc()["postprocess"]]


@given(st.sampled_from(paths), json_values)
def test_whatever_a_document_holds_it_is_read_or_refused(path: str, value: object) -> None:
    with contextlib.suppress(ManifestError):
        made = Task.of(with_field(DETECT.to_doc(), path, value)).prepare(IMAGE)
        assert [array.ndim for array in made.values()] == [4]


def test_a_picture_becomes_what_the_model_takes() -> None:
    pre = replace(PRE, fit="stretch", width=200, height=120, colours="bgr")
    pre = replace(pre, mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.5))
    made = replace(DETECT, preprocess=pre).prepare(IMAGE)["images"]
    assert made.dtype == np.float32
    assert made.shape == (1, 3, 120, 200)
    assert made.flags.c_contiguous
    for channel in range(3):
        expected = (IMAGE[:, :, 2 - channel] / 255 - pre.mean[channel]) / pre.std[channel]
        np.testing.assert_allclose(made[0, channel], expected, atol=1e-5)
    last = replace(DETECT, preprocess=replace(pre, layout="nhwc", datatype="FP16")).prepare(IMAGE)
    assert last["images"].shape == (1, 120, 200, 3)
    np.testing.assert_array_equal(last["images"], made.transpose(0, 2, 3, 1).astype(np.float16))
    raw = replace(DETECT, preprocess=replace(pre, colours="gray", datatype="UINT8", mean=(0,)))
    raw = replace(raw, preprocess=replace(raw.preprocess, std=(1,)))
    assert raw.prepare(IMAGE)["images"].shape == (1, 1, 120, 200)


def test_a_baked_model_takes_the_resized_pixels_as_they_are() -> None:
    made = replace(BAKED, preprocess=replace(PRE, colours="bgr")).prepare(IMAGE)["images"]
    assert made.dtype == np.uint8
    assert made.shape == (1, 48, 64, 3)
    np.testing.assert_array_equal(made, BAKED.prepare(IMAGE)["images"])


@pytest.mark.parametrize(
    "image",
    [
        IMAGE.astype(np.float32),
        IMAGE[:, :, 0],
        IMAGE[:, :, :2],
        IMAGE[:0],
        IMAGE[:, :0],
        "picture.jpg",
    ],
)
def test_anything_but_a_picture_is_refused_with_what_is_expected(image: Any) -> None:
    with pytest.raises(InputError, match="UINT8"):
        DETECT.prepare(image)


def test_boxes_are_shares_of_the_whole_picture_whatever_the_letterbox() -> None:
    # 200 x 120 onto 64 x 48: 64 x 38 pixels, 5 rows from the top. The box is the picture's left
    # upper quarter.
    head = np.zeros((1, 6, 3), np.float32)
    head[0, :, 1] = [16, 5 + 9.5, 32, 19, 0.1, 0.9]
    found = DETECT.read({"head": head}, IMAGE.shape)
    assert isinstance(found, Detections)
    np.testing.assert_allclose(found.boxes, [[0, 0, 0.5, 0.5]], atol=1e-6)
    assert found.boxes.dtype == np.float32
    assert list(found.classes) == [1]
    assert document(found)["detections"][0]["label"] == "dog"
    assert lines(found, IMAGE.shape) == ["dog 0.900 at 0,0 to 100,60"]


def test_nothing_found_is_a_result_too() -> None:
    none = {
        "boxes": np.zeros((0, 4), np.float32),
        "scores": np.zeros(0, np.float32),
        "classes": np.zeros(0, np.uint8),
    }
    for found in (
        BAKED.read(none, IMAGE.shape),
        DETECT.read({"head": np.zeros((1, 6, 9), np.float32)}, IMAGE.shape),
    ):
        assert isinstance(found, Detections)
        assert len(found) == 0
        assert found.boxes.shape == (0, 4)
        assert found.classes.dtype == np.int64
        assert document(found) == {"detections": []}
        assert lines(found, IMAGE.shape) == ["nothing found"]


def test_outputs_of_another_model_are_refused_by_name_and_shape() -> None:
    with pytest.raises(InputError, match="'head'"):
        DETECT.read({"other": np.zeros((1, 6, 9), np.float32)}, IMAGE.shape)
    with pytest.raises(InputError, match=r"\[2, 6, 9\]"):
        DETECT.read({"head": np.zeros((2, 6, 9), np.float32)}, IMAGE.shape)
    wrong = dict.fromkeys(("boxes", "scores", "classes"), np.zeros((3, 4), np.float32))
    with pytest.raises(InputError, match=r"\[n,4\]"):
        BAKED.read(wrong, IMAGE.shape)


def test_the_likeliest_classes_come_first() -> None:
    values = np.float32([[1.0, 3.0, 2.0]])
    found = of_kind("classify", "logits", top=2).read({"out": values}, IMAGE.shape)
    assert isinstance(found, Classes)
    assert list(found.classes) == [1, 2]
    shares = np.exp(values[0]) / np.exp(values[0]).sum()
    np.testing.assert_allclose(found.scores, shares[[1, 2]], rtol=1e-6)
    as_they_are = of_kind("classify", "probabilities").read({"out": values}, IMAGE.shape)
    assert isinstance(as_they_are, Classes)
    np.testing.assert_array_equal(as_they_are.scores, np.float32([3, 2, 1]))
    assert lines(found, IMAGE.shape)[0].startswith("dog 0.665")


def test_a_segment_has_a_class_at_each_place() -> None:
    scores = np.random.default_rng(1).random((1, 3, 4, 5)).astype(np.float32)
    for decode, values in (("argmax", scores), ("argmax-last", scores.transpose(0, 2, 3, 1))):
        found = of_kind("segment", decode).read({"out": values}, IMAGE.shape)
        assert isinstance(found, Segments)
        np.testing.assert_array_equal(found.classes, scores[0].argmax(0))
        assert found.classes.dtype == np.uint8
    total = sum(each["share"] for each in document(found)["segments"])
    assert total == pytest.approx(1)


def test_a_vector_has_length_one_and_zero_stays_zero() -> None:
    values = np.float32([[3, 4]])
    found = of_kind("embed", "embedding").read({"out": values}, IMAGE.shape)
    assert isinstance(found, Embedding)
    np.testing.assert_allclose(found.vector, [0.6, 0.8])
    nothing = of_kind("embed", "embedding").read({"out": values * 0}, IMAGE.shape)
    assert isinstance(nothing, Embedding)
    np.testing.assert_array_equal(nothing.vector, [0, 0])


def test_a_manifest_keeps_a_task_that_only_a_later_version_knows_and_no_other_value() -> None:
    PART.check({"kind": "juggle", "balls": [3]}, ())
    with pytest.raises(ManifestError, match="task"):
        PART.check("detect", ())


sides = st.integers(8, 3000)
grids = st.integers(8, 700)
corners = st.lists(st.floats(0, 1), min_size=4, max_size=4)


@given(sides, sides, grids, grids, st.sampled_from(["stretch", "letterbox"]), corners)
def test_a_box_comes_back_to_where_it_was(
    height: int, width: int, grid_width: int, grid_height: int, fit: str, at: list[float]
) -> None:
    box = np.array([at])
    placed = place((height, width, 3), grid_width, grid_height, fit)
    # FP32 on the way; a picture of one pixel's height on the grid magnifies its rounding.
    worst = 1e-6 * max(grid_width / placed.width, grid_height / placed.height)
    np.testing.assert_allclose(placed.back(placed.forward(box)), box, atol=worst)


@given(sides, sides, grids, grids, st.lists(st.floats(-2, 3), min_size=4, max_size=4))
def test_no_box_reaches_out_of_the_picture(
    height: int, width: int, grid_width: int, grid_height: int, at: list[float]
) -> None:
    for fit in ("stretch", "letterbox"):
        back = place((height, width), grid_width, grid_height, fit).back(np.float32([at]))
        assert back.dtype == np.float32
        assert (back >= 0).all()
        assert (back <= 1).all()


@given(sides, sides, grids, grids)
def test_a_letterbox_lies_within_its_grid_and_keeps_proportions_to_a_pixel(
    height: int, width: int, grid_width: int, grid_height: int
) -> None:
    at = place((height, width), grid_width, grid_height, "letterbox")
    assert at.left >= 0
    assert at.top >= 0
    assert at.left + at.width <= grid_width
    assert at.top + at.height <= grid_height
    assert at.width == grid_width or at.height == grid_height
    scale = min(grid_width / width, grid_height / height)
    assert abs(at.width - width * scale) <= 1
    assert abs(at.height - height * scale) <= 1


def test_a_wide_picture_stands_in_the_middle_between_two_stripes_of_the_fill() -> None:
    image = np.full((100, 200, 3), 7, np.uint8)
    grid = on_grid(image, 64, 64, "letterbox", 114)
    assert grid.shape == (64, 64, 3)
    assert (grid[16:48] == 7).all()
    assert (grid[:16] == 114).all()
    assert (grid[48:] == 114).all()


@pytest.mark.parametrize("size", [(64, 48), (320, 240), (33, 200)])
def test_without_opencv_a_resized_picture_differs_by_one_at_most(size: tuple[int, int]) -> None:
    pytest.importorskip("cv2", reason="opencv-python-headless is not installed")
    data = pytest.importorskip("skimage.data")
    image = data.astronaut()
    one, other = resized(image, *size), resized_by_numpy(image, *size)
    assert one.shape == other.shape == (size[1], size[0], 3)
    assert np.abs(one.astype(int) - other).max() <= 1


def test_gray_is_the_luma_that_opencv_computes() -> None:
    cv2 = pytest.importorskip("cv2", reason="opencv-python-headless is not installed")
    image = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
    expected = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    assert np.abs(to_gray(image)[:, :, 0].astype(int) - expected).max() <= 1
