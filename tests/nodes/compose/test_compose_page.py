"""The page of compositions says what the code takes."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from support.commands import ROOT

from shards.compose.check import ModelSignature, check
from shards.compose.composition import from_toml
from shards.compose.measures import MEASURES
from shards.compose.nearest import IndexAbout
from shards.compose.operators import OPERATORS
from shards.specs import TensorSpec

PAGE = (ROOT / "nodes/compose/README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"(?:```toml\n|<<'END'\n)(.*?)(?:```|\nEND\n)", PAGE, re.DOTALL)
FILES = [block for block in BLOCKS if "[inputs]" in block]  # others are parts alone
DIGITS = ModelSignature(
    (TensorSpec("image", "FP32", (-1, 1, 8, 8)),), (TensorSpec("logits", "FP32", (-1, 10)),), True
)
MODELS = {
    "small": DIGITS,
    "large": DIGITS,
    "faces": ModelSignature(
        (TensorSpec("input", "FP32", (1, 3, 240, 320)),),
        (
            TensorSpec("scores", "FP32", (1, 4420, 2)),
            TensorSpec("boxes", "FP32", (1, 4420, 4)),
        ),
    ),
    "kind": ModelSignature(
        (TensorSpec("x", "FP32", (-1, 3, 64, 64)),), (TensorSpec("scores", "FP32", (-1, 5)),), True
    ),
}
GALLERY = IndexAbout("cos", 10, 100, {"logits": ("FP32", (10,))})


@pytest.mark.parametrize("text", FILES)
def test_each_composition_of_the_page_is_one(text: str) -> None:
    composition = replace(from_toml(text), indexes={"gallery": GALLERY})
    check(composition, {part.name: MODELS[part.name] for part in composition.asks()})


def test_the_page_tells_each_operator_with_its_settings_and_outputs() -> None:
    rows = dict(re.findall(r"^\| `(\w+) = ([{\[].*)$", PAGE, re.MULTILINE))
    assert rows.keys() >= OPERATORS.keys()
    for name, operator in OPERATORS.items():
        told = [key for key in [*operator.inputs, *operator.settings] if key not in rows[name]]
        assert not told, name


def test_the_page_tells_each_measure() -> None:
    assert {name for name in MEASURES if f"| `{name}` | " in PAGE} == MEASURES.keys()
