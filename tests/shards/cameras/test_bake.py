"""A task inside its graph gives what the arithmetic outside gives, also cut into stages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from detector_graphs import backbone, ssd, yolo
from shard_graphs import chained, make, node, value, weights
from skimage import data
from test_boxes import overlap

from shards.cameras import Classes, Detections, Embedding, Result, Segments, Task, document
from shards.cameras.wish import Wish
from shards.errors import SplitError
from shards.split.split import SplitResult, split

PICTURES = {
    "astronaut": data.astronaut(),
    "coffee": data.coffee(),
    "black": np.zeros((90, 120, 3), np.uint8),
}
DETECTORS = {
    "yolo-v8": (yolo("v8", 320, 6), Wish("detect", labels=tuple("abcdef"))),
    "yolo-v8 of one class": (yolo("v8", 160, 1, batch="N"), Wish("detect", threshold=0.6)),
    "yolo-v5": (yolo("v5", 160, 5), Wish("detect", labels=tuple("abcde"), threshold=0.5, top=20)),
    "yolo-v5 stretched": (
        yolo("v5", 160, 2),
        Wish("detect", labels=("a", "b"), fit="stretch", colours="bgr"),
    ),
    "ultraface": (ssd((320, 240), 4420, 1), Wish("detect")),
    "ssd": (ssd((64, 48), 300, 5), Wish("detect", decode="ssd", threshold=0.2)),
    "ssd-anchors": (
        ssd((64, 64), 200, 2, anchors="anchors"),
        Wish("detect", threshold=0.3, normalise="-1..1"),
    ),
}


def both(model: bytes, wish: Wish, **more: Any) -> tuple[SplitResult, SplitResult]:
    made = [
        split(model, name="m", stages=1, profile=False, addition=replace(wish, bake=bake), **more)
        for bake in (True, False)
    ]
    return made[0], made[1]


def asked(result: SplitResult, image: np.ndarray) -> Result:
    """A picture in, a result out, by what the manifest says alone."""
    task = Task.of(result.manifest.parts.get("task"))
    return task.read(chained(result, task.prepare(image), bare=True), image.shape)


def found(result: SplitResult, image: np.ndarray) -> Detections:
    made = asked(result, image)
    assert isinstance(made, Detections)
    return made


@pytest.mark.parametrize("head", DETECTORS)
def test_a_baked_detector_finds_what_the_arithmetic_outside_finds_to_the_bit(head: str) -> None:
    baked, outside = both(*DETECTORS[head])
    seen = 0
    for image in PICTURES.values():
        one, other = found(baked, image), found(outside, image)
        if head == "ssd-anchors":  # two libraries' exp() differ in the last bit
            np.testing.assert_allclose(one.boxes, other.boxes, atol=1e-6)
        else:
            np.testing.assert_array_equal(one.boxes, other.boxes)
        np.testing.assert_array_equal(one.scores, other.scores)
        np.testing.assert_array_equal(one.classes, other.classes)
        seen += len(one)
    assert seen > 3


@pytest.mark.parametrize("head", DETECTORS)
def test_a_plain_loop_over_all_boxes_finds_the_same(head: str) -> None:
    _, outside = both(*DETECTORS[head])
    task = Task.of(outside.manifest.parts.get("task"))
    image = PICTURES["astronaut"]
    outputs = chained(outside, task.prepare(image), bare=True)
    made = task.read(outputs, image.shape)
    assert isinstance(made, Detections)
    expected = by_a_loop(task, outputs, image)
    assert len(made) == len(expected) > 0
    for row, (score, each, box) in enumerate(expected):
        assert made.classes[row] == each
        assert made.scores[row] == pytest.approx(score, abs=1e-6)
        np.testing.assert_allclose(made.boxes[row], box, atol=2e-6)


def by_a_loop(task: Task, outputs: dict[str, np.ndarray], image: np.ndarray) -> list[Any]:
    """Score, class and box of what is found, written down once more, plainly."""
    pre, post = task.preprocess, task.postprocess
    tensors = [outputs[name] for name in post.outputs]
    every: list[tuple[float, int, list[float]]] = []
    n = tensors[0].shape[2] if post.decode == "yolo-v8" else tensors[0].shape[1]
    for index in range(n):
        if post.decode.startswith("yolo"):
            v8 = post.decode == "yolo-v8"
            row = tensors[0][0, :, index] if v8 else tensors[0][0, index]
            scores = row[4:] if v8 else row[5:] * row[4]
            x, y, w, h = (float(v) for v in row[:4])
            sides = [pre.width, pre.height] * 2
            box = [x - w / 2, y - h / 2, x + w / 2, y + h / 2]
            box = [v / side for v, side in zip(box, sides, strict=True)]
        else:
            scores = tensors[1][0, index, 1:]
            box = [float(v) for v in tensors[0][0, index]]
        if post.decode == "ssd-anchors":
            ax, ay, aw, ah = (float(v) for v in tensors[2].reshape(-1, 4)[index])
            x, y = ax + box[0] * 0.1 * aw, ay + box[1] * 0.1 * ah
            w, h = aw * np.exp(box[2] * 0.2), ah * np.exp(box[3] * 0.2)
            box = [x - w / 2, y - h / 2, x + w / 2, y + h / 2]
        box = [min(box[0], box[2]), min(box[1], box[3]), max(box[0], box[2]), max(box[1], box[3])]
        best = int(scores.argmax())
        if scores[best] > np.float32(post.threshold):
            every.append((float(scores[best]), best, box))
    every.sort(key=lambda each: -each[0])
    kept: list[tuple[float, int, list[float]]] = []
    for score, each, box in every:
        rivals = [k for k in kept if k[1] == each]
        if all(overlap(np.array(box), np.array(k[2])) <= post.iou for k in rivals):
            kept.append((score, each, box))
    scale = min(pre.width / image.shape[1], pre.height / image.shape[0])
    out = []
    for score, each, box in kept[: post.top]:
        if pre.fit == "letterbox":
            across, down = round(image.shape[1] * scale), round(image.shape[0] * scale)
            left, top = (pre.width - across) // 2, (pre.height - down) // 2
            corners = [(box[i] * pre.width - left) / across for i in (0, 2)]
            rows = [(box[i] * pre.height - top) / down for i in (1, 3)]
            box = [corners[0], rows[0], corners[1], rows[1]]
        out.append((score, each, [min(1.0, max(0.0, v)) for v in box]))
    return out


def test_a_detector_in_its_graph_answers_20_bytes_a_box_instead_of_all_its_priors() -> None:
    baked, outside = both(*DETECTORS["ultraface"])
    specs = {spec.name: str(spec) for spec in baked.manifest.outputs}
    assert specs == {"boxes": "FP32[?,4]", "scores": "FP32[?]", "classes": "UINT8[?]"}
    assert str(baked.manifest.inputs[0]) == "UINT8[1,240,320,3]"
    sizes = [spec.nbytes for spec in baked.manifest.outputs]  # of as many boxes as an example has
    assert sum(sizes) == 21 * sizes[-1]  # and a byte for the class
    assert sum(spec.nbytes for spec in outside.manifest.outputs) == 4420 * 6 * 4
    assert str(outside.manifest.inputs[0]) == "FP32[1,3,240,320]"


@pytest.mark.parametrize("stages", [2, 4])
def test_cut_into_stages_it_finds_the_same_also_when_it_finds_nothing(stages: int) -> None:
    model, wish = DETECTORS["yolo-v8"]
    whole, _ = both(model, wish)
    cut = split(model, name="m", stages=stages, profile=False, addition=wish, edge_layers=4)
    assert cut.manifest.stages == stages
    assert cut.manifest.shard(0).stage == 0
    task = Task.of(cut.manifest.parts.get("task"))
    for image in PICTURES.values():
        made = task.read(chained(cut, task.prepare(image)), image.shape)
        assert isinstance(made, Detections)
        np.testing.assert_array_equal(made.boxes, found(whole, image).boxes)
    strict = split(
        model, name="m", stages=stages, profile=False, addition=replace(wish, threshold=1)
    )
    task = Task.of(strict.manifest.parts.get("task"))
    made = task.read(chained(strict, task.prepare(PICTURES["astronaut"])), (512, 512, 3))
    assert isinstance(made, Detections)
    assert made.boxes.shape == (0, 4)


def test_a_cut_behind_the_choice_of_boxes_carries_as_many_rows_as_there_are() -> None:
    model, wish = DETECTORS["ssd"]
    whole, _ = both(model, wish)
    graph = onnx.load_model_from_string(whole.files["stage-1.onnx"]).graph
    (chosen,) = (n.output[0] for n in graph.node if n.op_type == "NonMaxSuppression")
    for threshold in (wish.threshold, 1.0):
        cut = split(
            model,
            name="m",
            cuts=[chosen],
            profile=False,
            addition=replace(wish, threshold=threshold),
        )
        assert chosen in {spec.name for spec in cut.manifest.shard(2).receives}
        task = Task.of(cut.manifest.parts.get("task"))
        image = PICTURES["coffee"]
        made = task.read(chained(cut, task.prepare(image)), image.shape)
        assert isinstance(made, Detections)
        assert len(made) == (0 if threshold == 1.0 else len(found(whole, image)))


@pytest.mark.parametrize("opset", [9, 13, 18, 21])
def test_operators_of_any_age_take_a_task(opset: int) -> None:
    params = weights(0, w=(7, 3, 8, 8)) | {"s": np.array([1, 7, 16], np.int64)}
    nodes = [
        node("Conv", ["x", "w"], ["c"], strides=[8, 8]),
        node("Reshape", ["c", "s"], ["r"]),
        node("Sigmoid", ["r"], ["out"]),
    ]
    picture, output = value("x", [1, 3, 32, 32]), value("out", [1, 7, 16])
    model = make(nodes, [picture], [output], params, opset=opset).SerializeToString()
    wish = Wish("detect", decode="yolo-v8", threshold=0.1)
    baked, outside = both(model, wish)
    assert Task.of(baked.manifest.parts.get("task")).baked
    assert baked.manifest.opset >= 13
    image = PICTURES["astronaut"]
    assert document(asked(baked, image)) == document(asked(outside, image))


def test_a_model_whose_operators_cannot_be_raised_keeps_its_task_outside_and_says_so() -> None:
    params = weights(0, w=(7, 3, 8, 8)) | {"s": np.array([1, 7, 16], np.int64)}
    nodes = [
        node("Conv", ["x", "w"], ["c"], strides=[8, 8]),
        # The library that raises operators knows none of this domain.
        node("Scaler", ["c"], ["k"], domain="ai.onnx.ml", offset=[0.0], scale=[1.0]),
        node("Reshape", ["c", "s"], ["r"]),
        node("Upsample", ["r", "one"], ["u"]),
    ]
    params["one"] = np.ones(3, np.float32)
    graph = make(nodes, [value("x", [1, 3, 32, 32])], [value("u", [1, 7, 16])], params, opset=9)
    graph.opset_import.append(onnx.helper.make_opsetid("ai.onnx.ml", 2))
    result = split(
        graph.SerializeToString(),
        name="m",
        stages=1,
        profile=False,
        addition=Wish("detect", decode="yolo-v8"),
    )
    task = Task.of(result.manifest.parts.get("task"))
    if task.baked:  # a later library may
        return
    assert any("not baked" in note for note in result.notes)
    assert isinstance(asked(result, PICTURES["astronaut"]), Detections)


@pytest.mark.parametrize(
    ("kind", "output", "labels"),
    [
        ("classify", "logits", ("a", "b", "c", "d")),
        ("classify", "probabilities", ()),
        ("embed", "vector", ()),
        ("segment", "map", ("a", "b", "c", "d")),
        ("segment", "map-last", ()),
        ("segment", "map-classes", ()),
    ],
)
def test_other_tasks_in_their_graphs_answer_the_same(
    kind: str, output: str, labels: tuple[str, ...]
) -> None:
    baked, outside = both(backbone([output]), Wish(kind, labels=labels, top=3))
    assert Task.of(baked.manifest.parts.get("task")).baked
    for image in PICTURES.values():
        one, other = asked(baked, image), asked(outside, image)
        assert type(one) is type(other)
        if isinstance(one, Classes):
            assert isinstance(other, Classes)
            np.testing.assert_array_equal(one.classes, other.classes)
            np.testing.assert_allclose(one.scores, other.scores, rtol=1e-5)
            assert len(one.classes) == 3
        if isinstance(one, Segments):
            assert isinstance(other, Segments)
            np.testing.assert_array_equal(one.classes, other.classes)
        if isinstance(one, Embedding):
            assert isinstance(other, Embedding)
            np.testing.assert_allclose(one.vector, other.vector, atol=1e-6)


def test_a_classifier_keeps_its_batch_axis_and_a_detector_takes_one_picture() -> None:
    baked, _ = both(backbone(["logits"]), Wish("classify", labels=tuple("abcd")))
    assert baked.manifest.batchable
    assert baked.manifest.inputs[0].shape == (-1, 32, 32, 3)
    baked, outside = both(*DETECTORS["yolo-v8 of one class"])
    assert baked.manifest.inputs[0].shape == (1, 160, 160, 3)
    assert outside.manifest.inputs[0].shape == (1, 3, 160, 160)


def test_a_lighter_model_gets_the_same_task_or_is_refused() -> None:
    model, wish = DETECTORS["yolo-v8"]
    light = yolo("v8", 320, 6, seed=9)
    result = split(model, name="m", stages=1, profile=False, addition=wish, lighter=light)
    assert result.manifest.lighter is not None
    lighter = onnx.load_model_from_string(result.files["lighter.onnx"]).graph
    assert [output.name for output in lighter.output] == ["boxes", "scores", "classes"]
    other = yolo("v8", 160, 6)
    with pytest.raises(SplitError, match="lighter"):
        split(model, name="m", stages=1, profile=False, addition=wish, lighter=other)


def test_a_picture_of_free_size_gets_the_one_that_is_asked_for() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"], strides=[4, 4]),
        node("GlobalAveragePool", ["c"], ["p"]),
        node("Flatten", ["p"], ["out"]),
    ]
    picture = value("x", ["N", 3, "H", "W"])
    graph = make(nodes, [picture], [value("out", ["N", 4])], weights(0, w=(4, 3, 4, 4)))
    model = graph.SerializeToString()
    baked, outside = both(model, Wish("embed", size=(40, 24)))
    assert baked.manifest.inputs[0].shape == (-1, 24, 40, 3)
    assert outside.manifest.inputs[0].shape == (-1, 3, 24, 40)
