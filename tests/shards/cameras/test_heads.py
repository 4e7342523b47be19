"""Which head a model has is told from shapes; where they do not tell, the error names choices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from shards.cameras.heads import picture_input, tell
from shards.cameras.seen import SeenGraph
from shards.cameras.wish import Wish, settle
from shards.errors import TaskError
from shards.specs import TensorSpec


def spec(name: str, *shape: int, datatype: str = "FP32") -> TensorSpec:
    return TensorSpec(name, datatype, shape)


@pytest.mark.parametrize(
    ("size", "shapes", "decode"),
    [
        ((640, 640), [(1, 84, 8400)], "yolo-v8"),
        ((320, 320), [(1, 5, 2100)], "yolo-v8"),
        ((640, 384), [(1, 84, 5040)], "yolo-v8"),
        ((1280, 1280), [(1, 84, 34000)], "yolo-v8"),
        ((640, 640), [(1, 25200, 85)], "yolo-v5"),
        ((416, 416), [(1, 10647, 85)], "yolo-v5"),
        ((1280, 1280), [(1, 102000, 85)], "yolo-v5"),
        ((320, 240), [(1, 4420, 2), (1, 4420, 4)], "ultraface"),
        ((640, 480), [(1, 17640, 2), (1, 17640, 4)], "ultraface"),
        ((300, 300), [(1, 8732, 21), (1, 8732, 4), (8732, 4)], "ssd-anchors"),
    ],
)
def test_the_shapes_of_known_detectors_tell_their_heads(
    size: tuple[int, int], shapes: Sequence[tuple[int, ...]], decode: str
) -> None:
    outputs = [spec(f"o{index}", *shape) for index, shape in enumerate(shapes)]
    head = tell("detect", size, outputs)
    assert head.decode == decode
    assert decode in head.why
    if len(shapes) > 1:
        assert head.outputs[:2] == ("o1", "o0")  # boxes first, in whichever order they come


@pytest.mark.parametrize(
    ("shapes", "why"),
    [
        ([(1, 8400, 85)], "one box a cell"),
        ([(1, 300, 6)], "cells"),
        ([(1, 8732, 21), (1, 8732, 4)], "need anchors"),
        ([(1, 100, 4), (1, 100, 4)], "--outputs"),
        ([(1, 56, 8400)], "52 classes, or one of keypoints"),
        ([(1, 10, 4), (1, 10), (1, 10), (1,), (1, 2)], "shape"),
    ],
)
def test_where_shapes_do_not_tell_the_choices_are_named(
    shapes: Sequence[tuple[int, ...]], why: str
) -> None:
    outputs = [spec(f"o{index}", *shape) for index, shape in enumerate(shapes)]
    with pytest.raises(TaskError, match=why) as error:
        tell("detect", (640, 640), outputs)
    assert "yolo-v8, yolo-v5, ultraface, ssd, ssd-anchors" in str(error.value)


def test_what_the_owner_says_decides_where_shapes_do_not() -> None:
    pair = [spec("a", 1, 100, 4), spec("b", 1, 100, 4)]
    head = tell("detect", (64, 64), pair, decode="ssd", chosen=("b", "a"))
    assert (head.decode, head.outputs) == ("ssd", ("b", "a"))
    six = [spec("o", 1, 8400, 85)]
    assert tell("detect", (640, 640), six, decode="yolo-v5").decode == "yolo-v5"
    two = [spec("out", 1, 84, 8400), spec("features", 1, 256)]
    assert tell("detect", (640, 640), two, chosen=("out",)).decode == "yolo-v8"
    with pytest.raises(TaskError, match="there is no output other"):
        tell("detect", (640, 640), two, chosen=("other",))


def test_anchors_are_told_by_being_constant_though_they_look_like_boxes() -> None:
    three = [spec("anchors", 1, 50, 4), spec("loc", 1, 50, 4), spec("conf", 1, 50, 3)]
    head = tell("detect", (64, 64), three, seen=SeenGraph(constant=frozenset({"anchors"})))
    assert (head.decode, head.outputs) == ("ssd-anchors", ("loc", "conf", "anchors"))


@pytest.mark.parametrize(
    ("kind", "shape", "labels"),
    [
        ("detect", (1, 84, 8400), 79),
        ("classify", (1, 1000), 10),
        ("segment", (1, 21, 64, 64), 20),
    ],
)
def test_labels_that_are_too_many_or_too_few_are_refused(
    kind: str, shape: tuple[int, ...], labels: int
) -> None:
    names = [str(index) for index in range(labels)]
    with pytest.raises(TaskError, match=rf"{labels} |axis 1"):
        tell(kind, (640, 640), [spec("o", *shape)], labels=names)


def test_a_background_among_the_labels_is_no_class_of_its_own() -> None:
    outputs = [spec("scores", 1, 4420, 2), spec("boxes", 1, 4420, 4)]
    wish = Wish("detect", labels=("BACKGROUND", "person"))
    task, _ = settle(wish, [spec("input", 1, 3, 240, 320)], outputs)
    assert task.labels == ("person",)
    task, _ = settle(Wish("detect"), [spec("input", 1, 3, 240, 320)], outputs)
    assert task.labels == ("face",)
    assert (task.preprocess.mean, task.preprocess.std, task.preprocess.scale) == ((127,), (128,), 1)


def test_other_tasks_are_told_by_their_outputs_too() -> None:
    logits = [spec("o", -1, 1000)]
    assert tell("classify", (8, 8), logits).decode == "logits"
    assert (
        tell("classify", (8, 8), logits, seen=SeenGraph(softmax=frozenset({"o"}))).decode
        == "probabilities"
    )
    assert tell("embed", (8, 8), [spec("o", -1, 512, 1, 1)]).decode == "embedding"
    assert tell("segment", (8, 8), [spec("o", 1, 21, 60, 60)]).decode == "argmax"
    assert tell("segment", (8, 8), [spec("o", 1, 60, 60, 21)]).decode == "argmax-last"
    named = tell("segment", (8, 8), [spec("o", 1, 3, 3, 3)], decode="argmax")
    assert named.decode == "argmax"
    whole = [spec("o", 1, 60, 60, datatype="INT64")]
    assert tell("segment", (8, 8), whole).decode == "classes"
    with pytest.raises(TaskError, match="argmax"):
        tell("segment", (8, 8), [spec("o", 1, 4, 4, 4)])
    with pytest.raises(TaskError, match="--outputs names the one"):
        tell("classify", (8, 8), [spec("a", 1, 10), spec("b", 1, 10)])


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((1, 3, 48, 64), ("nchw", 64, 48, 3)),
        ((-1, 48, 64, 3), ("nhwc", 64, 48, 3)),
        ((1, 1, 28, 28), ("nchw", 28, 28, 1)),
    ],
)
def test_the_axis_of_colours_tells_the_layout(
    shape: tuple[int, ...], expected: tuple[Any, ...]
) -> None:
    got = picture_input([spec("x", *shape)])
    assert (got.layout, got.width, got.height, got.channels) == expected


def test_a_model_without_one_picture_as_its_input_has_no_such_task() -> None:
    for inputs in ([spec("x", 1, 16)], [spec("x", 1, 3, 8, 8)] * 2, [spec("x", 1, 4, 8, 8)]):
        with pytest.raises(TaskError):
            picture_input(inputs)
    free = [spec("x", -1, 3, -1, -1)]
    with pytest.raises(TaskError, match="--size"):
        picture_input(free)
    assert picture_input(free, (64, 32)).height == 32
    with pytest.raises(TaskError, match="--size 64x32"):
        picture_input([spec("x", 1, 3, 64, 64)], (64, 32))


@pytest.mark.parametrize(
    "wish",
    [
        {"kind": "juggle"},
        {"kind": "detect", "decode": "logits"},
        {"kind": "detect", "fit": "crop"},
        {"kind": "detect", "colours": "cmyk"},
    ],
)
def test_an_unknown_word_is_answered_with_the_known_ones(wish: dict[str, Any]) -> None:
    with pytest.raises(TaskError, match="it is one of"):
        Wish(**wish)


def test_pixels_are_normalised_as_is_usual_and_a_note_says_so() -> None:
    inputs, outputs = [spec("x", 1, 3, 8, 8)], [spec("o", 1, 10)]
    task, notes = settle(Wish("classify"), inputs, outputs)
    assert task.preprocess.mean == (0.485, 0.456, 0.406)
    assert any("imagenet" in note and "--normalise" in note for note in notes)
    task, notes = settle(Wish("classify", normalise="127/128"), inputs, outputs)
    pre = task.preprocess
    assert (pre.scale, pre.mean, pre.std) == (1, (127,), (128,))
    assert not any("--normalise" in note for note in notes)
    for wrong in ("often", "1/2/3", "a/b"):
        with pytest.raises(TaskError, match="MEAN/STD"):
            settle(Wish("classify", normalise=wrong), inputs, outputs)
