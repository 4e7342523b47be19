"""A table of the forms that models have: read rightly, asked for, or refused by their name.

Each graph is small, and answers with values as a trained model of its form does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from shard_graphs import chained, make, node, value

from shards.cameras import Classes, Detections, Task
from shards.cameras.wish import Wish
from shards.errors import TaskError
from shards.split.split import SplitResult, split

SIZE = 96  # 189 cells of 8, 16 and 32 pixels
CELLS = 189
RNG = np.random.default_rng(5)
IMAGE = RNG.integers(0, 255, (48, 80, 3), np.uint8)


def form(
    outputs: Mapping[str, np.ndarray], said: Mapping[str, str] | None = None, size: int = SIZE
) -> bytes:
    """A model that answers with these arrays, each [1, …], times a one that its picture makes."""
    nodes = [
        node("ReduceMean", ["image"], ["mean"], keepdims=0),
        node("Tanh", ["mean"], ["bounded"]),
        node("Mul", ["bounded", "little"], ["moved"]),
        node("Add", ["moved", "one"], ["factor"]),
    ]
    params: dict[str, np.ndarray] = {
        "little": np.array(1e-30, np.float32),
        "one": np.array(1, np.float32),
    }
    for name, array in outputs.items():
        params[f"{name}_is"] = array.astype(np.float32)
        if array.dtype == np.int64:
            nodes.append(node("Mul", [f"{name}_is", "factor"], [f"{name}_f"]))
            nodes.append(node("Cast", [f"{name}_f"], [name], to=7))
        else:
            nodes.append(node("Mul", [f"{name}_is", "factor"], [name]))
    kinds = {name: 7 if array.dtype == np.int64 else 1 for name, array in outputs.items()}
    shapes = [value(name, list(array.shape), kinds[name]) for name, array in outputs.items()]
    model = make(nodes, [value("image", [1, 3, size, size])], shapes, params)
    for key, text in (said or {}).items():
        model.metadata_props.add(key=key, value=text)
    return bytes(model.SerializeToString())


def given(model: bytes, wish: Wish) -> SplitResult:
    return split(model, name="m", stages=1, profile=False, addition=wish)


def task_of(model: bytes, wish: Wish) -> Task:
    return Task.of(given(model, wish).manifest.parts.get("task"))


def pixels(n: int = CELLS) -> np.ndarray:
    """Centre x, centre y, width, height of n boxes, [4, n]."""
    centres = RNG.uniform(0, SIZE, (2, n))
    return np.concatenate([centres, RNG.uniform(4, SIZE / 2, (2, n))])


def shares(rows: int, n: int = CELLS) -> np.ndarray:
    return RNG.uniform(0, 1, (rows, n))


def v8(*more: np.ndarray) -> dict[str, np.ndarray]:
    return {"output0": np.concatenate([pixels(), *more])[None]}


def v5(*more: np.ndarray) -> dict[str, np.ndarray]:
    return {"output0": np.concatenate([pixels(3 * CELLS), *more]).T[None]}


def rows(n: int, *more: np.ndarray) -> np.ndarray:
    """Corners in pixels and a score of n boxes, the likeliest first, a class, more: [1, n, m]."""
    low = RNG.uniform(0, SIZE / 2, (2, n))
    scores = np.sort(RNG.uniform(0, 1, (1, n)))[:, ::-1]
    classes = RNG.integers(0, 3, (1, n))
    classes[0, 0] = 2
    return np.concatenate([low, low + RNG.uniform(2, 30, (2, n)), scores, classes, *more]).T[None]


def detr(classes: int, n: int = 40, none: bool = False) -> dict[str, np.ndarray]:
    """none: the last class is no object, and wins in two of three rows."""
    logits = RNG.normal(size=(1, n, classes)) * 2
    if none:
        logits[0, :, -1] = np.where(np.arange(n) % 3, 9, -9)
    return {"logits": logits, "pred_boxes": RNG.uniform(0.05, 0.6, (1, n, 4))}


def detr_rows(n: int) -> np.ndarray:
    """Centres in shares, a score and a class each, [1, n, 6]."""
    boxes, found = detr(3, n)["pred_boxes"], rows(n)
    return np.concatenate([boxes, found[..., 4:]], axis=2)


def three(n: int) -> dict[str, np.ndarray]:
    """As RT-DETR writes them for `orig_target_sizes`."""
    found = rows(n)
    parts = {"labels": found[..., 5].astype(np.int64), "boxes": found[..., :4]}
    return parts | {"scores": found[..., 4]}


def by_cell(classes: int) -> dict[str, np.ndarray]:
    """YOLOX as its authors export it: nothing is decoded."""
    steps, sides = RNG.uniform(-0.5, 1.5, (2, CELLS)), RNG.uniform(-1, 1, (2, CELLS))
    return {"output": np.concatenate([steps, sides, shares(1 + classes)]).T[None]}


NAMES = {3: "{0: 'cat', 1: 'dog', 2: 'cow'}"}
KEYPOINTS = RNG.uniform(-4, SIZE, (51, CELLS))
ANGLE = RNG.uniform(0, 1, (1, CELLS))

RIGHT: dict[str, tuple[dict[str, np.ndarray], dict[str, str], dict[str, Any], str]] = {
    "yolo-v8, as its metadata names three classes": (
        v8(shares(3)),
        {"task": "detect", "names": NAMES[3]},
        {},
        "yolo-v8",
    ),
    "yolo-v8, as its owner names three": (v8(shares(3)), {}, {"labels": tuple("abc")}, "yolo-v8"),
    "yolo-v8 of COCO's 80 classes": (v8(shares(80)), {}, {}, "yolo-v8"),
    "yolo-v8 of one class": (v8(shares(1)), {}, {}, "yolo-v8"),
    "yolo-v8, as its owner says the head": (v8(shares(3)), {}, {"decode": "yolo-v8"}, "yolo-v8"),
    "yolo-v5 of COCO's": (v5(shares(81, 3 * CELLS)), {}, {}, "yolo-v5"),
}
RIGHT |= {
    "yolo-end2end": ({"output0": rows(50)}, {}, {}, "yolo-end2end"),
    "yolo-end2end of a file with names": (
        {"output0": rows(50)},
        {"names": NAMES[3], "task": "detect"},
        {},
        "yolo-end2end",
    ),
    "rt-detr of COCO's": (detr(80), {}, {}, "rt-detr"),
    "rt-detr, as its owner names three": (detr(3), {}, {"labels": tuple("abc")}, "rt-detr"),
    "yolox of COCO's": (by_cell(80), {}, {}, "yolox"),
    "yolox, as its owner names three": (by_cell(3), {}, {"labels": tuple("abc")}, "yolox"),
    "one decoded box a cell": (
        {"output": np.concatenate([pixels(), shares(81)]).T[None]},
        {},
        {},
        "yolo-v5",
    ),
}


PERSON = {"task": "pose", "names": "{0: 'person'}", "kpt_shape": "[17, 3]"}
PROTOS = {"protos": RNG.normal(size=(1, 4, 24, 24))}
WEIGHTS = RNG.normal(size=(4, CELLS))
RIGHT |= {
    "keypoints of a file that says so": (v8(shares(1), KEYPOINTS), PERSON, {}, "yolo-v8-pose"),
    "keypoints, as their owner says": (
        v8(shares(1), KEYPOINTS),
        {},
        {"decode": "yolo-v8-pose"},
        "yolo-v8-pose",
    ),
    "keypoints chosen by the network": (
        {"output0": rows(50, RNG.uniform(0, SIZE, (51, 50)))},
        {"task": "pose", "names": NAMES[3], "kpt_shape": "[17, 3]"},
        {},
        "yolo-end2end-pose",
    ),
    "turned boxes of a file that says so": (
        v8(shares(3), ANGLE),
        {"task": "obb", "names": NAMES[3]},
        {},
        "yolo-v8-obb",
    ),
    "turned boxes chosen by the network": (
        {"output0": rows(50, RNG.uniform(0, 1, (1, 50)))},
        {"task": "obb", "names": NAMES[3]},
        {},
        "yolo-end2end-obb",
    ),
    "masks by their parts": (v8(shares(80), WEIGHTS) | PROTOS, {}, {}, "yolo-v8-seg"),
    "masks of three classes": (
        v8(shares(3), WEIGHTS) | PROTOS,
        {"task": "segment", "names": NAMES[3]},
        {},
        "yolo-v8-seg",
    ),
    "masks chosen by the network": (
        {"output0": rows(50, RNG.normal(size=(4, 50)))} | PROTOS,
        {"task": "segment", "names": NAMES[3]},
        {},
        "yolo-end2end-seg",
    ),
    "four scales from 4 pixels on": (
        {"output0": np.concatenate([pixels(765), shares(80, 765)])[None]},
        {"stride": "32"},
        {},
        "yolo-v8",
    ),
    "Ultralytics' RT-DETR": (
        {"output0": detr_rows(40)},
        {"task": "detect", "names": NAMES[3], "head": "RTDETRDecoder"},
        {},
        "rt-detr-rows",
    ),
    "Ultralytics' RT-DETR, of which nothing is said": (
        {"output0": detr_rows(40)},
        {},
        {},
        "rt-detr-rows",
    ),
    "Ultralytics' older RT-DETR": (
        {"output0": np.concatenate([detr(80)["pred_boxes"], shares(80, 40).T[None]], axis=2)},
        {},
        {},
        "rt-detr-scores",
    ),
    "DETR, whose last class wins nearly everywhere": (
        detr(4, none=True),
        {"names": NAMES[3]},
        {},
        "detr",
    ),
    "boxes, scores and classes": (three(40), {}, {}, "boxes-scores-classes"),
    "a map of text": (
        {"map": shares(1, 24 * 24).reshape(1, 1, 24, 24)},
        {},
        {"decode": "db"},
        "db",
    ),
}


@pytest.mark.parametrize("title", RIGHT)
def test_a_form_that_one_head_claims_is_read_by_it(title: str) -> None:
    outputs, said, more, decode = RIGHT[title]
    assert task_of(form(outputs, said), Wish("detect", **more)).postprocess.decode == decode


ASKED: dict[str, tuple[str, dict[str, np.ndarray], dict[str, str], dict[str, Any], str]] = {
    "keypoints": ("detect", v8(shares(1), KEYPOINTS), {}, {}, "keypoints .yolo-v8-pose."),
    "keypoints, though labels fit by chance": (
        "detect",
        v8(shares(1), KEYPOINTS),
        {},
        {"labels": tuple(str(i) for i in range(52))},
        "keypoints .yolo-v8-pose.",
    ),
    "keypoints of a file that says so, read as classes": (
        "detect",
        v8(shares(1), KEYPOINTS),
        {"task": "pose", "names": "{0: 'person'}", "kpt_shape": "[17, 3]"},
        {"decode": "yolo-v8"},
        "is for pose, with keypoints beside a box, and --decode yolo-v8 reads none",
    ),
    "keypoints of a file whose names do not fit": (
        "detect",
        v8(shares(1), KEYPOINTS),
        {"task": "pose", "names": NAMES[3], "kpt_shape": "[17, 3]"},
        {},
        "3 labels for 1 classes",
    ),
    "keypoints that do not fit the values": (
        "detect",
        v8(shares(1), KEYPOINTS),
        {},
        {"decode": "yolo-v8-pose", "labels": tuple("abcde")},
        "47 values behind the scores are no keypoints",
    ),
    "oriented boxes": ("detect", v8(shares(15), ANGLE), {}, {}, "16 classes, or one of"),
    "oriented boxes of a file with names": (
        "detect",
        v8(shares(3), ANGLE),
        {"names": NAMES[3]},
        {},
        "3 labels for 4 classes",
    ),
    "oriented boxes of a file that says so": (
        "detect",
        v8(shares(3), ANGLE),
        {"task": "obb"},
        {"decode": "yolo-v8"},
        "is for obb, with the angles of turned boxes beside a box, and --decode yolo-v8 reads none",
    ),
    "masks of single objects": (
        "detect",
        v8(shares(80), RNG.normal(size=(32, CELLS))) | {"protos": np.zeros((1, 32, 16, 16))},
        {},
        {"outputs": ("output0",)},
        "a head with masks reads 2 of output0, protos",
    ),
    "faces with landmarks": ("detect", v5(shares(12, 3 * CELLS)), {}, {}, "11 classes, or one of"),
    "raw scores": ("detect", v8(RNG.normal(size=(3, CELLS)) * 3), {}, {}, "not all scores"),
    "boxes in shares": (
        "detect",
        {"output0": shares(84)[None]},
        {},
        {},
        "yolo-v8 reads pixels",
    ),
    "labels that fit no way of reading it": (
        "detect",
        {"output0": shares(85).T[None]},
        {},
        {"labels": ("cat", "dog")},
        "2 labels fit no way of reading it: 185 as yolo-v8, 80 as yolo-v5, 80 as yolox",
    ),
    "labels that are too few": (
        "detect",
        v8(shares(3)),
        {},
        {"labels": ("cat", "dog")},
        r"2 labels for 3 classes: output0 FP32\[1,7,189\]",
    ),
    "another task than the file's": (
        "classify",
        {"output0": shares(1, 4)},
        {"task": "detect"},
        {},
        "says that it is for detect",
    ),
    "probabilities by no Softmax": (
        "classify",
        {"scores": np.array([[0.2, 0.5, 0.3]])},
        {},
        {},
        "sum to one",
    ),
    "one raw score": ("classify", {"score": np.array([[2.5]])}, {}, {}, "one value is always 1"),
    "a text recogniser": (
        "classify",
        {"rows": RNG.normal(size=(1, 25, 97))},
        {},
        {},
        "text recognisers",
    ),
    "a depth map": ("segment", {"depth": RNG.normal(size=(1, 1, 32, 32))}, {}, {}, "depth map"),
    "a flat depth map": ("segment", {"depth": RNG.normal(size=(1, 32, 32))}, {}, {}, "depth map"),
    "a text recogniser for a depth map": (
        "depth",
        {"rows": RNG.dirichlet(np.ones(97), (1, 25))},
        {},
        {},
        "sum to one",
    ),
    "a segmentation with labels that fit no axis": (
        "segment",
        {"map": RNG.normal(size=(1, 21, 32, 32))},
        {},
        {"labels": ("cat", "dog")},
        "2 labels fit no way of reading it: 21 as argmax, 32 as argmax-last",
    ),
}
ASKED |= {
    "keypoints, chosen by the network": (
        "detect",
        {"output0": rows(50, RNG.uniform(0, SIZE, (51, 50)))},
        {},
        {},
        "51 more values",
    ),
    "a class that has no label": (
        "detect",
        {"output0": rows(50)},
        {},
        {"labels": ("cat", "dog")},
        "2 labels, but output0 .* answers class 2",
    ),
    "DETR, which has a class for no object": ("detect", detr(92), {}, {}, "beside logits"),
    "boxes and scores in one output of shares": (
        "detect",
        {"output0": shares(6, 50).T[None]},
        {},
        {},
        "pixels have 189 cells",
    ),
    "an overlap for a network that suppresses itself": (
        "detect",
        {"output0": rows(50)},
        {},
        {"iou": 0.5},
        "have been chosen already",
    ),
}


@pytest.mark.parametrize("title", ASKED)
def test_a_form_that_no_head_or_more_than_one_claims_is_never_misread(title: str) -> None:
    kind, outputs, said, more, why = ASKED[title]
    with pytest.raises(TaskError, match=why):
        given(form(outputs, said), Wish(kind, **more))


# --- the arithmetic ---------------------------------------------------------------------------


def by_a_loop(decode: str, outputs: Mapping[str, np.ndarray]) -> list[tuple[float, int, Any]]:
    """Score, class and corners in pixels of the boxes above a half, without suppression, as the
    pages of each network say it."""
    found: list[tuple[float, int, Any]] = []
    if decode == "yolo-end2end":
        for *box, score, kind in outputs["output0"][0]:
            found.append((score, int(kind), box))
    if decode == "rt-detr":
        for logits, (x, y, w, h) in zip(
            outputs["logits"][0], outputs["pred_boxes"][0], strict=True
        ):
            box = [v * SIZE for v in (x - w / 2, y - h / 2, x + w / 2, y + h / 2)]
            found += [(1 / (1 + np.exp(-raw)), at, box) for at, raw in enumerate(logits)]
    if decode == "yolox":
        places = [
            (s, i, j) for s in (8, 16, 32) for j in range(SIZE // s) for i in range(SIZE // s)
        ]
        for (s, i, j), (x, y, w, h, sure, *scores) in zip(
            places, outputs["output"][0], strict=True
        ):
            x, y, w, h = (x + i) * s, (y + j) * s, np.exp(w) * s, np.exp(h) * s
            box = [x - w / 2, y - h / 2, x + w / 2, y + h / 2]
            found.append((sure * max(scores), int(np.argmax(scores)), box))
    return sorted((each for each in found if each[0] > 0.5), key=lambda each: -each[0])


@pytest.mark.parametrize("bake", [True, False])
@pytest.mark.parametrize(
    ("decode", "outputs"),
    [("yolo-end2end", {"output0": rows(50)}), ("rt-detr", detr(3)), ("yolox", by_cell(3))],
)
def test_a_plain_loop_over_all_boxes_finds_the_same(
    decode: str, outputs: dict[str, np.ndarray], bake: bool
) -> None:
    labels = ("cat", "dog", "cow")
    iou = None if decode == "yolo-end2end" else 1.0
    wish = Wish("detect", labels=labels, threshold=0.5, iou=iou, fit="stretch", bake=bake)
    result = given(form(outputs), wish)
    task = Task.of(result.manifest.parts.get("task"))
    assert (task.postprocess.decode, task.baked) == (decode, bake)
    found = task.read(chained(result, task.prepare(IMAGE), bare=True), IMAGE.shape)
    assert isinstance(found, Detections)
    expected = by_a_loop(decode, outputs)
    assert len(found) == len(expected) > 2
    np.testing.assert_allclose(found.scores, [score for score, *_ in expected], atol=1e-5)
    assert found.classes.tolist() == [kind for _, kind, _ in expected]
    boxes = np.clip([box for *_, box in expected], 0, SIZE)
    np.testing.assert_allclose(found.boxes * SIZE, boxes, atol=1e-3)


# --- classification: what makes the output ----------------------------------------------------

BEHIND: dict[str, Callable[[str, str], list[Any]]] = {
    "nothing": lambda a, b: [node("Identity", [a], [b])],
    "Identity twice": lambda a, b: [node("Identity", [a], ["i"]), node("Identity", ["i"], [b])],
    "Cast": lambda a, b: [node("Cast", [a], ["h"], to=10), node("Cast", ["h"], [b], to=1)],
    "Reshape": lambda a, b: [node("Reshape", [a, "flat"], [b])],
    "Squeeze": lambda a, b: [
        node("Unsqueeze", [a, "two"], ["u"]),
        node("Squeeze", ["u", "two"], [b]),
    ],
    "Transpose": lambda a, b: [
        node("Transpose", [a], ["t"], perm=[1, 0]),
        node("Transpose", ["t"], [b], perm=[1, 0]),
    ],
    "QDQ": lambda a, b: [
        node("QuantizeLinear", [a, "step", "zero"], ["q"]),
        node("DequantizeLinear", ["q", "step", "zero"], [b]),
    ],
}
CONSTANTS = {
    "flat": np.array([1, 4], np.int64),
    "two": np.array([2], np.int64),
    "step": np.array(1 / 255, np.float32),
    "zero": np.array(0, np.uint8),
}


def classifier(end: list[Any]) -> bytes:
    rng = np.random.default_rng(3)
    params = {"w": rng.standard_normal((4, 3, 8, 8)).astype(np.float32)} | CONSTANTS
    nodes = [
        node("Conv", ["image", "w"], ["c"], strides=[8, 8]),
        node("GlobalAveragePool", ["c"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        *end,
    ]
    picture = value("image", [1, 3, 16, 16])
    return bytes(make(nodes, [picture], [value("out", [1, 4])], params).SerializeToString())


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("bake", [True, False])
def test_a_softmax_is_found_through_whatever_keeps_its_values(behind: str, bake: bool) -> None:
    model = classifier([node("Softmax", ["f"], ["s"], axis=1), *BEHIND[behind]("s", "out")])
    result = given(model, Wish("classify", top=4, bake=bake))
    task = Task.of(result.manifest.parts.get("task"))
    assert task.postprocess.decode == "probabilities"
    found = task.read(chained(result, task.prepare(IMAGE), bare=True), IMAGE.shape)
    assert isinstance(found, Classes)
    raw = given(classifier([node("Identity", ["f"], ["out"])]), Wish("classify", top=4, bake=bake))
    once = Task.of(raw.manifest.parts.get("task"))
    expected = once.read(chained(raw, once.prepare(IMAGE), bare=True), IMAGE.shape)
    assert isinstance(expected, Classes)
    assert once.postprocess.decode == "logits"
    np.testing.assert_allclose(found.scores, expected.scores, atol=3e-3)  # halves, and 255 steps


def test_a_softmax_that_is_written_out_is_asked_for_and_the_answer_is_taken() -> None:
    end = [
        node("Exp", ["f"], ["e"]),
        node("ReduceL1", ["e"], ["sum"], axes=[1]),
        node("Div", ["e", "sum"], ["out"]),
    ]
    with pytest.raises(TaskError, match=r"sum to one.*--decode says it: logits, probabilities"):
        given(classifier(end), Wish("classify"))
    assert task_of(classifier(end), Wish("classify", decode="probabilities")).labels == ()


# --- metadata ---------------------------------------------------------------------------------


def test_names_and_size_of_the_file_are_used_and_the_owner_overrules_them() -> None:
    said = {"names": NAMES[3], "task": "detect", "imgsz": "[96, 96]"}
    result = given(form(v8(shares(3)), said), Wish("detect"))
    assert Task.of(result.manifest.parts.get("task")).labels == ("cat", "dog", "cow")
    assert any("metadata names the 3 classes" in note for note in result.notes)
    task = task_of(form(v8(shares(3)), said), Wish("detect", labels=tuple("abc")))
    assert task.labels == tuple("abc")
    free = make(
        [
            node("Conv", ["x", "w"], ["c"], strides=[4, 4]),
            node("GlobalAveragePool", ["c"], ["p"]),
            node("Flatten", ["p"], ["out"]),
        ],
        [value("x", [1, 3, "h", "w"])],
        [value("out", [1, 3])],
        {"w": RNG.normal(size=(3, 3, 4, 4)).astype(np.float32)},
    )
    metadata = {"imgsz": "[24, 40]", "task": "classify", "author": "Ultralytics"}
    for key, text in metadata.items():
        free.metadata_props.add(key=key, value=text)
    pre = task_of(free.SerializeToString(), Wish("classify")).preprocess
    assert (pre.width, pre.height) == (40, 24)
    assert (pre.mean, pre.std) == ((0.0,), (1.0,))  # as this exporter's classifiers take pixels


@pytest.mark.parametrize("names", ["{0: 'a', 2: 'b'}", "[", "7", "['']", "__import__('os')"])
def test_metadata_that_is_not_understood_is_left_out_with_a_note(names: str) -> None:
    result = given(form(v8(shares(1)), {"names": names}), Wish("detect"))
    assert Task.of(result.manifest.parts.get("task")).labels == ()
    assert any("not understood" in note for note in result.notes)
