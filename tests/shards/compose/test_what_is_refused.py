"""A composition that cannot run is refused where it is declared, and the part is named."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from shards.compose.check import ModelSignature, check
from shards.compose.composition import composition_of, from_json, from_toml
from shards.compose.errors import CompositionError
from shards.specs import TensorSpec

GOOD: dict[str, Any] = {
    "inputs": {"image": {"datatype": "FP32", "shape": [1, 3, 32, 32]}},
    "part": [
        {"name": "faces", "model": "ultraface@1", "inputs": {"input": "image"}},
        {
            "name": "best",
            "nms": {"boxes": "faces.boxes", "scores": "faces.scores", "above": 0.5, "most": 8},
        },
        {"name": "crops", "crop": {"image": "image", "boxes": "best.boxes", "size": [8, 8]}},
        {"name": "kind", "map": "classes@1", "inputs": {"x": "crops.crops"}, "most": 8},
        {"name": "other", "map": "more@1", "inputs": {"x": "crops.crops"}, "most": 8},
        {
            "name": "label",
            "choose": {"by": "kind.scores", "measure": "margin", "below": 0.1},
            "then": "other",
            "otherwise": "kind",
        },
    ],
    "outputs": {"boxes": "best.boxes", "scores": "label.scores"},
}
CROP = TensorSpec("x", "FP32", (-1, 3, 8, 8))
SCORES = TensorSpec("scores", "FP32", (-1, 5))
MODELS = {
    "faces": ModelSignature(
        (TensorSpec("input", "FP32", (1, 3, 32, 32)),),
        (TensorSpec("boxes", "FP32", (1, 50, 4)), TensorSpec("scores", "FP32", (1, 50, 2))),
    ),
    "kind": ModelSignature((CROP,), (SCORES,), True),
    "other": ModelSignature((CROP,), (SCORES,), True),
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """GOOD with one field set, by a path such as `part.3.most`; None removes it."""
    document = copy.deepcopy(GOOD)
    at: Any = document
    *way, last = [int(word) if word.isdigit() else word for word in path.split(".")]
    for word in way:
        at = at[word]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return document


def test_what_a_good_one_gives_is_told() -> None:
    checked = check(composition_of(GOOD), MODELS)
    told = {spec.name: str(spec) for spec in checked.outputs}
    assert told == {"boxes": "FP32[?,4]", "scores": "FP32[?,5]"}
    assert checked.rows["crops"] == 8


WRONG = [
    ("part.0.inputs", {"input": "picture"}, "faces", "has no 'picture'"),
    ("part.0.inputs", {"inputs": "image"}, "faces", "'input' is missing"),
    ("part.0.model", "ultra face", "faces", "model"),
    ("part.0.model", "ultraface@1.2", "faces", "version"),
    ("part.0.most", 3, "faces", "'most' is unknown"),
    ("part.1.nms", {"boxes": "faces.boxes"}, "best", 'named "PART.TENSOR"'),
    ("part.1.nms.most", 10_000, "best", "`most` is a count from 1 to 1024"),
    ("part.1.nms.most", True, "best", "`most` is a count"),
    ("part.1.nms.above", float("nan"), "best", "`above` is a number"),
    ("part.1.nms.most", 9, "kind", "up to 9 rows, and at most 8"),
    ("part.1.nms.class", 2, "best", "no class 2"),
    ("part.1.nms.boxes", "kind.scores", "", "waits for itself"),
    ("part.2.crop.size", [0, 8], "crops", "`size` is [height, width]"),
    ("part.2.crop.size", [9, 9], "kind", "crops.crops is FP32[?,3,9,9]"),
    ("part.2.crop.image", "best.boxes", "crops", "has 4 axes"),
    ("part.3.most", 10_000, "kind", "`most` rows are 1 to 1024"),
    ("part.3.most", None, "kind", "`most` rows"),
    ("part.3.name", "faces", "faces", "two parts have this name"),
    ("part.3.optional", True, "label", "nothing can be chosen by it"),
    ("part.5.then", "faces", "label", "other tensors"),
    ("part.5.then", "nobody", "label", "no part 'nobody'"),
    ("part.5.then", "label", "", "label -> label"),
    ("part.5.choose.measure", "luck", "label", "`measure` is one of"),
    ("part.5.choose.above", 0.3, "label", "a finite number, `below` or `above`"),
    *(
        ("part.5.choose.below", bound, "label", "a finite number")
        for bound in (float("inf"), float("nan"), 10**400, "4", True, None)
    ),
    ("part.5.otherwise", "other", "", ""),
    ("outputs.boxes", "best.box", "", "has no 'box'"),
    ("outputs.boxes", "nobody.box", "", "output 'boxes': there is no part 'nobody'"),
    ("inputs", None, "", "needs [inputs]"),
    ("outputs.scores", None, "label", "nobody reads it"),
    ("outputs", {}, "", "needs [inputs] and [outputs]"),
    ("inputs.image.datatype", "BYTES", "inputs", "unsupported datatype"),
    ("inputs.image.datatype", "UINT8", "faces", "image is UINT8"),
    ("part", [], "", "1 to 64"),
    ("part.0", {"name": "faces"}, "faces", "one of model, map"),
    ("part.0.python", "os.remove", "faces", "'python' is unknown"),
    ("parts", [], "", "'parts' is unknown"),
    ("format", 2, "", "format 2 is unknown"),
]


@pytest.mark.parametrize(
    ("path", "value", "part", "why"), WRONG, ids=[w[0] + str(n) for n, w in enumerate(WRONG)]
)
def test_what_is_wrong_is_refused_and_its_part_is_named(
    path: str, value: Any, part: str, why: str
) -> None:
    if not why:
        check(composition_of(changed(path, value)), MODELS)
        return
    with pytest.raises(CompositionError) as refused:
        check(composition_of(changed(path, value)), MODELS)
    assert why in str(refused.value)
    if part:
        assert refused.value.part == part


@pytest.mark.parametrize("text", ["[inputs", "a" * 9, "[" * 5000, "part = 3", "[[part]]\n[part]"])
def test_what_is_no_composition_is_refused(text: str) -> None:
    with pytest.raises(CompositionError):
        from_toml(text)
    with pytest.raises(CompositionError):
        from_json(text.encode())
