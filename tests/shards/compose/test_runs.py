"""What a run of a composition asks for, what it leaves out, and how it ends."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from shards.compose.check import ModelSignature, check
from shards.compose.composition import AskPart, Composition, composition_of
from shards.compose.errors import CompositionError
from shards.compose.run import NotAnswered, Ran, Tensors, run
from shards.specs import TensorSpec

X = TensorSpec("x", "FP32", (-1, 2))
SIGNATURE = ModelSignature((X,), (TensorSpec("y", "FP32", (-1, 2)),), batchable=True)
SURE, UNSURE = np.array([[0.0, 1.0]], np.float32), np.array([[0.5, 0.5]], np.float32)


def composition(*parts: dict[str, Any], output: str) -> Composition:
    return composition_of(
        {
            "inputs": {"x": {"datatype": "FP32", "shape": [-1, 2]}},
            "part": list(parts),
            "outputs": {"out": output},
        }
    )


def asks(name: str, of: str = "x", **more: Any) -> dict[str, Any]:
    return {"name": name, "model": f"{name}@1", "inputs": {"x": of}, **more}


class Models:
    """Each adds its number to what it is given, unless a test holds it or lets it fail."""

    def __init__(self, **numbers: float) -> None:
        self.numbers = numbers
        self.asked: list[str] = []
        self.cancelled: list[str] = []
        self.fail: set[str] = set()
        self.held: dict[str, asyncio.Event] = {}
        self.two_asked = asyncio.Event()

    async def __call__(self, part: AskPart, tensors: Tensors) -> Tensors:
        self.asked.append(part.name)
        if len(self.asked) == 2:
            self.two_asked.set()
        try:
            if part.name in self.held:
                await self.held[part.name].wait()
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled.append(part.name)
            raise
        if part.name in self.fail:
            raise NotAnswered(f"{part.name} has no nodes")
        return {"y": tensors["x"] + np.float32(self.numbers[part.name])}


async def ran(made: Composition, models: Models, x: np.ndarray = SURE) -> Ran:
    signatures = {part.name: SIGNATURE for part in made.asks()}
    check(made, signatures)
    async with asyncio.timeout(10):
        found = await run(made, signatures, {"x": x}, models)
    alone = [task for task in asyncio.all_tasks() if task.get_name().startswith("part ")]
    assert not alone, "a run leaves no task behind"
    return found


CASCADE = composition(
    asks("small"),
    asks("large"),
    {
        "name": "label",
        "choose": {"by": "small.y", "measure": "margin", "below": 0.2},
        "then": "large",
        "otherwise": "small",
    },
    output="label.y",
)


@pytest.mark.parametrize(("x", "asked"), [(SURE, ["small"]), (UNSURE, ["small", "large"])])
async def test_a_cascade_asks_the_large_model_only_where_the_small_one_is_unsure(
    x: np.ndarray, asked: list[str]
) -> None:
    models = Models(small=0, large=5)
    found = await ran(CASCADE, models, x)
    assert models.asked == asked
    np.testing.assert_array_equal(found.outputs["out"], x + (5 if len(asked) == 2 else 0))
    assert list(found.parts) == ["label", *asked]


async def test_parts_that_do_not_need_each_other_run_side_by_side() -> None:
    made = composition(asks("a"), asks("b"), {"name": "m", "mean": ["a.y", "b.y"]}, output="m.mean")
    models = Models(a=1, b=2)
    models.held = {"a": asyncio.Event(), "b": asyncio.Event()}
    running = asyncio.create_task(ran(made, models))
    await models.two_asked.wait()
    for held in models.held.values():
        held.set()
    np.testing.assert_allclose((await running).outputs["out"], SURE + 1.5)


async def test_a_part_that_two_read_is_asked_once() -> None:
    made = composition(
        asks("a"),
        asks("b", "a.y"),
        asks("c", "a.y"),
        {"name": "m", "mean": ["b.y", "c.y"]},
        output="m.mean",
    )
    models = Models(a=1, b=1, c=3)
    np.testing.assert_allclose((await ran(made, models)).outputs["out"], SURE + 3)
    assert sorted(models.asked) == ["a", "b", "c"]


ENSEMBLE = composition(
    asks("a"),
    asks("b", optional=True),
    {"name": "soft", "softmax": {"of": "b.y"}},
    {"name": "m", "mean": ["a.y", "soft.scores"]},
    output="m.mean",
)


async def test_an_optional_part_that_fails_is_left_out_and_named() -> None:
    models = Models(a=1, b=1)
    models.fail = {"b"}
    found = await ran(ENSEMBLE, models)
    np.testing.assert_allclose(found.outputs["out"], SURE + 1)
    left_out = {name: part.left_out for name, part in found.parts.items() if part.left_out}
    assert left_out == {"b": "b has no nodes", "soft": "a part that it reads was left out"}


async def test_the_failure_of_a_part_that_is_needed_ends_the_run_and_cancels_the_rest() -> None:
    models = Models(a=1, b=1)
    models.fail, models.held = {"a"}, {"b": asyncio.Event()}
    with pytest.raises(NotAnswered, match="a has no nodes"):
        await ran(ENSEMBLE, models)
    assert models.cancelled == ["b"]


RACE = composition(asks("a"), asks("b"), {"name": "f", "first": ["a", "b"]}, output="f.y")


async def test_of_a_race_the_first_answer_counts_and_the_other_is_cancelled() -> None:
    models = Models(a=1, b=2)
    models.held = {"a": asyncio.Event()}
    np.testing.assert_allclose((await ran(RACE, models)).outputs["out"], SURE + 2)
    assert models.cancelled == ["a"]


@pytest.mark.parametrize("failing", ["a", "b"])
async def test_of_a_race_a_failure_is_no_answer(failing: str) -> None:
    models = Models(a=1, b=1)
    models.fail = {failing}
    np.testing.assert_allclose((await ran(RACE, models)).outputs["out"], SURE + 1)


async def test_a_race_that_all_lose_fails() -> None:
    models = Models(a=1, b=1)
    models.fail = {"a", "b"}
    with pytest.raises(NotAnswered):
        await ran(RACE, models)


async def test_a_run_that_is_cancelled_cancels_what_it_has_asked() -> None:
    models = Models(a=1, b=1)
    models.held = {"a": asyncio.Event(), "b": asyncio.Event()}
    running = asyncio.create_task(ran(RACE, models))
    await models.two_asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sorted(models.cancelled) == ["a", "b"]


async def test_more_rows_than_a_map_may_ask_for_are_refused_before_any_is_asked() -> None:
    made = composition({"name": "a", "map": "a@1", "inputs": {"x": "x"}, "most": 3}, output="a.y")
    models = Models(a=1)
    with pytest.raises(CompositionError, match="4 rows are asked for, of 3"):
        await ran(made, models, np.zeros((4, 2), np.float32))
    assert models.asked == []
