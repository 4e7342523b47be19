"""Labelled samples by both ways of a choice; and a composition's text with another number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.compose.both_ways import both_ways, choice, judged_output
from shards.compose.bound_text import with_bound
from shards.compose.check import ModelSignature
from shards.compose.composition import AskPart, Composition, from_toml
from shards.compose.errors import CompositionError
from shards.compose.fit import ChoiceScores
from shards.compose.run import NotAnswered, Tensors
from shards.samples import Samples
from shards.specs import TensorSpec

CASCADE = """\
# below = 4 is a guess
[inputs]
x = { datatype = "FP32", shape = [1, 2] }
[[part]]
name = "small"
model = "m@1"
inputs = { x = "x" }
[[part]]
name = "large"
model = "m@1"
inputs = { x = "x" }
[[part]]
name = "label"  # below = 4
CHOOSE
then = "large"
otherwise = "small"
[[part]]
name = "other"
choose = { by = "small.y", measure = "margin", below = 4 }
then = "large"
otherwise = "small"
[outputs]
y = "label.y"
z = "other.y"
"""
FORMS = [
    'choose = { by = "small.y", measure = "margin", below = 4 }',
    'choose = {below=+4.0e0,by = "small.y", measure = "largest"}',
    'choose = { by = "small.y", measure = "margin", "above" = 4_0 } # above = 3',
    'choose.by = "small.y"\nchoose.measure = "margin"\nchoose.below = 0x4',
    "choose.by = 'small.y'\nchoose.measure = 'margin'\nchoose.below = 1e90",
]
SIGNATURE = ModelSignature((TensorSpec("x", "FP32", (1, 2)),), (TensorSpec("y", "FP32", (-1, 2)),))


def text(form: str = FORMS[0]) -> str:
    return CASCADE.replace("CHOOSE", form)


@pytest.mark.parametrize("form", FORMS)
@given(bound=st.floats(allow_nan=False, allow_infinity=False))
def test_only_the_number_changes_in_the_text(form: str, bound: float) -> None:
    before = text(form)
    after = with_bound(before, "label", bound)
    condition = choice(from_toml(after), "label").condition
    assert condition.bound == bound
    assert condition.measure == choice(from_toml(before), "label").condition.measure
    assert choice(from_toml(after), "other") == choice(from_toml(before), "other")
    assert after.split("\n")[0] == before.split("\n")[0]
    assert len(after.split("\n")) == len(before.split("\n"))


class Models:
    """large doubles, small does not; each call is noted."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fails = ""

    async def __call__(self, part: AskPart, tensors: Tensors) -> Tensors:
        self.asked.append(part.name)
        if part.name == self.fails:
            raise NotAnswered(f"{part.name} is gone")
        return {"y": tensors["x"][:, ::-1] if part.name == "large" else tensors["x"]}


def samples() -> Samples:
    x = np.array([[0, 1], [3, 0], [np.nan, 1]], np.float32)
    return Samples({"x": x}, np.array([1, 1, 0]))


async def judged(
    models: Models, composition: Composition | None = None, **more: Any
) -> ChoiceScores:
    composition = composition or from_toml(text())
    signatures = {part.name: SIGNATURE for part in composition.asks()}
    more = {"part": choice(composition, "label"), "output": "y", **more}
    return await both_ways(composition, signatures, samples(), models, **more)


async def test_each_sample_is_judged_by_each_way() -> None:
    models = Models()
    seen: list[int] = []
    scores = await judged(models, progress=seen.append)
    assert scores.measured[:2].tolist() == [1.0, 3.0]
    assert np.isnan(scores.measured[2])
    assert scores.otherwise.tolist() == [True, False, True]  # numpy takes NaN for the largest
    assert scores.then.tolist() == [False, True, False]
    assert min(scores.then_ms, scores.otherwise_ms) > 0
    assert seen == [1, 2, 3]
    # `otherwise` alone does not ask `large`: output z asks it where its own choice says so.
    assert models.asked.count("small") == 2 * 3 + 2


async def test_who_does_not_answer_ends_the_fit() -> None:
    models = Models()
    models.fails = "large"
    with pytest.raises(NotAnswered, match="large is gone"):
        await judged(models)


async def test_an_answer_without_an_optional_part_is_not_judged() -> None:
    whole = text().replace('name = "large"\n', 'name = "large"\noptional = true\n')
    models = Models()
    models.fails = "large"
    with pytest.raises(CompositionError, match="large"):
        await judged(models, from_toml(whole))


async def test_an_output_that_says_no_class_is_refused() -> None:
    class Many(Models):
        async def __call__(self, part: AskPart, tensors: Tensors) -> Tensors:
            return {"y": np.zeros((3, 2), np.float32)}

    with pytest.raises(CompositionError, match="no class of one sample"):
        await judged(Many())


def test_a_choice_and_an_output_are_named_where_there_are_several() -> None:
    composition = from_toml(text())
    for wrong in ("", "small", "nobody"):
        with pytest.raises(CompositionError, match="label, other"):
            choice(composition, wrong)
        with pytest.raises(CompositionError, match="y, z"):
            judged_output(composition, wrong)
    assert judged_output(composition, "z") == "z"
