"""Whatever models answer, and whenever: a run ends, with its outputs or an error that names a part,
and leaves nothing behind."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shards.compose.check import ModelSignature, check
from shards.compose.composition import AskPart, Composition, composition_of
from shards.compose.errors import CompositionError
from shards.compose.measures import MEASURES
from shards.compose.run import MOST_BYTES, NotAnswered, Tensors, WrongAnswer, run
from shards.specs import TensorSpec

SIGNATURE = ModelSignature(
    (TensorSpec("x", "FP32", (-1, 2)),), (TensorSpec("y", "FP32", (-1, 2)),), batchable=True
)
X = np.array([[0.25, 0.75], [1, 0]], np.float32)


def of(*parts: dict[str, Any], output: str) -> Composition:
    return composition_of(
        {
            "inputs": {"x": {"datatype": "FP32", "shape": [-1, 2]}},
            "part": list(parts),
            "outputs": {"out": output},
        }
    )


def asks(name: str, of: str = "x", kind: str = "model", **more: Any) -> dict[str, Any]:
    return {"name": name, kind: f"{name}@1", "inputs": {"x": of}, **more}


WHOLE = of(
    asks("a"),
    asks("b", optional=True),
    asks("c", kind="map", most=64),
    asks("d", "c.y"),
    {"name": "first", "first": ["c", "d"]},
    {
        "name": "label",
        "choose": {"by": "a.y", "measure": "margin", "below": 0.3},
        "then": "first",
        "otherwise": "a",
    },
    {"name": "whole", "mean": ["label.y", "b.y"]},
    output="whole.mean",
)
ODD: dict[str, Any] = {
    "fine": lambda x: {"y": x + 1},
    "fails": lambda x: NotAnswered("nobody"),
    "nan": lambda x: {"y": np.full_like(x, np.nan)},
    "infinite": lambda x: {"y": np.full_like(x, np.inf)},
    "no rows": lambda x: {"y": x[:0]},
    "too many rows": lambda x: {"y": np.repeat(x, 3, axis=0)},
    "other width": lambda x: {"y": x[:, :1]},
    "other rank": lambda x: {"y": x.reshape(-1)},
    "a scalar": lambda x: {"y": np.float32(1)[()] * np.ones((), np.float32)},
    "other type": lambda x: {"y": x.astype(np.int64)},
    "other name": lambda x: {"z": x},
    "nothing": lambda x: {},
    "more": lambda x: {"y": x, "z": x},
}


async def end_of(
    made: Composition, answers: dict[str, tuple[str, int]], x: np.ndarray
) -> Tensors | Exception:
    """answers: by part its kind of answer, and after how many turns of the loop."""
    signatures = {part.name: SIGNATURE for part in made.asks()}
    check(made, signatures)

    async def ask(part: AskPart, tensors: Tensors) -> Tensors:
        kind, turns = answers[part.name]
        for _ in range(turns):
            await asyncio.sleep(0)
        answer = ODD[kind](tensors["x"])
        if isinstance(answer, Exception):
            raise answer
        found: Tensors = answer
        return found

    try:
        async with asyncio.timeout(10):
            return (await run(made, signatures, {"x": x}, ask)).outputs
    except (NotAnswered, CompositionError) as error:
        return error
    finally:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not [task for task in left if task.get_name().startswith("part ")]


@settings(max_examples=300, deadline=None)
@given(
    st.fixed_dictionaries(
        {name: st.tuples(st.sampled_from(sorted(ODD)), st.integers(0, 4)) for name in "abcd"}
    ),
    st.integers(0, 70),
)
def test_a_run_ends_with_outputs_or_with_an_error_that_names_a_part(
    answers: dict[str, tuple[str, int]], rows: int
) -> None:
    ended = asyncio.run(end_of(WHOLE, answers, np.resize(X, (rows, 2)).astype(np.float32)))
    if isinstance(ended, Exception):
        text = str(ended)
        assert "part '" in text or text == "nobody"
    else:
        assert ended["out"].shape[1] == 2
        assert ended["out"].dtype == np.float32


@pytest.mark.parametrize("kind", [k for k in ODD if k not in ("fine", "nan", "infinite", "more")])
async def test_an_odd_answer_leaves_an_optional_part_out_and_is_an_error_of_a_needed_one(
    kind: str,
) -> None:
    made = of(asks("a"), asks("b", kind="map", most=4, optional=True),
              {"name": "m", "mean": ["a.y", "b.y"]}, output="m.mean")  # fmt: skip
    ended = await end_of(made, {"a": ("fine", 0), "b": (kind, 0)}, X)
    assert isinstance(ended, dict)
    np.testing.assert_array_equal(ended["out"], X + 1)
    needed = of(asks("b", kind="map", most=4), output="b.y")
    error = await end_of(needed, {"b": (kind, 0)}, X)
    assert isinstance(error, WrongAnswer if kind != "fails" else NotAnswered)


@pytest.mark.parametrize("more", [{"kind": "map", "most": 4}, {}])
async def test_no_rows_are_asked_for_and_none_come(more: Any) -> None:
    made = of(asks("b", **more), output="b.y")
    ended = await end_of(made, {"b": ("fails", 0)}, X[:0])
    assert isinstance(ended, dict)
    assert ended["out"].shape == (0, 2)


async def test_the_failure_of_a_loser_that_comes_later_changes_nothing() -> None:
    made = of(asks("a"), asks("b"), {"name": "f", "first": ["a", "b"]}, asks("d", "f.y"),
              {"name": "m", "mean": ["d.y", "b.y"]}, output="m.mean")  # fmt: skip
    ended = await end_of(made, {"a": ("fine", 0), "b": ("fails", 3), "d": ("fine", 6)}, X)
    assert isinstance(ended, NotAnswered), "it is read beside the race, too"
    race = of(asks("a"), asks("b"), {"name": "f", "first": ["a", "b"]}, asks("d", "f.y"),
              output="d.y")  # fmt: skip
    ended = await end_of(race, {"a": ("fine", 0), "b": ("fails", 3), "d": ("fine", 6)}, X)
    assert isinstance(ended, dict)


async def test_rows_that_cannot_be_joined_are_refused_by_their_part() -> None:
    free = ModelSignature((TensorSpec("x", "FP32", (1, 2)),), (TensorSpec("y", "FP32", (1, -1)),))

    async def ask(part: AskPart, tensors: Tensors) -> Tensors:
        return {"y": tensors["x"][:, tensors["x"][0] > 0.5]}

    made = of(asks("b", kind="map", most=4), output="b.y")
    with pytest.raises(CompositionError, match=r"part 'b'.*cannot be joined"):
        await run(made, {"b": free}, {"x": np.array([[1, 1], [0, 1]], np.float32)}, ask)


@pytest.mark.parametrize("datatype", ["bool", "int8", "uint8", "int64", "float16", "float32"])
def test_a_margin_is_a_difference_in_every_datatype(datatype: str) -> None:
    scores = np.array([[1, 0]], datatype)
    assert MEASURES["margin"](scores) == 1
    if datatype == "int8":
        assert MEASURES["margin"](np.array([[127, -128]], np.int8)) == 255


def test_an_input_may_have_a_dot_in_its_name() -> None:
    """As PyTorch's exporter names the first one."""
    document = {
        "inputs": {"input.1": {"datatype": "FP32", "shape": [-1, 2]}},
        "part": [
            asks("a", "input.1"),
            {"name": "m", "mean": ["input.1", "a.y"]},
            {
                "name": "c",
                "choose": {"by": "input.1", "measure": "rows", "above": 1},
                "then": "m",
                "otherwise": "m",
            },
        ],
        "outputs": {"y": "c.mean", "same": "input.1"},
    }
    specs = check(composition_of(document), {"a": SIGNATURE}).outputs
    assert [str(spec) for spec in specs] == ["FP32[?,2]", "FP32[?,2]"]
    with pytest.raises(CompositionError, match="rename one"):
        composition_of(document | {"inputs": {"a.y": {"datatype": "FP32", "shape": [-1, 2]}}})


PICTURES = {
    "inputs": {
        "image": {"datatype": "UINT8", "shape": [-1, 3, -1, -1]},
        "boxes": {"datatype": "FP32", "shape": [-1, 4]},
    },
    "part": [{"name": "c", "crop": {"image": "image", "boxes": "boxes", "size": [512, 512]}}],
    "outputs": {"crops": "c.crops"},
}


@pytest.mark.parametrize(
    ("boxes", "pictures", "why"),
    [
        (10_000, 1, f"of {MOST_BYTES >> 20} at most"),
        (MOST_BYTES // (3 * 512 * 512) + 1, 1, f"of {MOST_BYTES >> 20} at most"),
        (2, 1, ""),
        (0, 1, ""),
        (1, 0, "0 pictures"),
        (1, 2, "2 pictures"),
    ],
)
async def test_what_would_not_fit_into_memory_is_refused_before_it_is_made(
    boxes: int, pictures: int, why: str
) -> None:
    async def ask(part: AskPart, tensors: Tensors) -> Tensors:
        raise NotImplementedError

    inputs = {
        "image": np.zeros((pictures, 3, 8, 8), np.uint8),
        "boxes": np.full((boxes, 4), np.nan, np.float32),
    }
    ran = run(composition_of(PICTURES), {}, inputs, ask)
    if not why:
        assert (await ran).outputs["crops"].shape == (boxes, 3, 512, 512)
        return
    with pytest.raises(CompositionError, match=why):
        await ran
