"""Answers of a part that its node keeps: the same as without them, and asked for less often."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.waiting import eventually

from nodes.compose.kept import PartAnswers
from nodes.compose.telling import Recalled
from shards.cache.part import CacheBounds
from shards.compose.composition import AskPart, composition_of
from shards.compose.errors import CompositionError
from shards.compose.run import NotAnswered, Tensors
from swarm.wire.hops import Hop
from swarm.wire.messages import Result

BOUNDS = CacheBounds(1 << 20, 10.0)


class Doubling:
    """A model that doubles. weights: of its one stage."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.weights = 0
        self.now = 0.0
        self.degraded = False
        self.held: asyncio.Event | None = None
        self.fails = 0

    async def __call__(self, tensors: Tensors) -> Result:
        self.rows.append(len(tensors["x"]))
        if self.held is not None:
            await self.held.wait()
        if self.fails:
            self.fails -= 1
            raise NotAnswered("it has no nodes")
        outputs = {"y": tensors["x"] * np.float32(2 + self.weights)}
        hops = (Hop(1, "n", 0, 0, weights=self.weights),)
        return Result("id", outputs=outputs, hops=hops, degraded=self.degraded)


def made(by_row: bool = False) -> tuple[Doubling, PartAnswers]:
    model = Doubling()
    return model, PartAnswers(BOUNDS, by_row, lambda: model.now)


def x(*rows: float) -> Tensors:
    return {"x": np.array([[row] for row in rows], np.float32)}


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=5), min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_kept_rows_are_those_that_the_model_gives_and_each_is_asked_for_once(
    asked: list[list[int]],
) -> None:
    async def ask_all() -> None:
        model, part = made(by_row=True)
        seen: set[int] = set()
        for rows in asked:
            outputs, told = await part.asked(x(*rows), model, 1.0)
            assert outputs["y"].tolist() == [[2.0 * row] for row in rows]
            fresh = [row for row in rows if row not in seen]
            assert told.rows == len(rows) - len(fresh)
            seen |= set(rows)
            if fresh:
                assert model.rows[-1] == len(fresh)

    asyncio.run(ask_all())


async def test_what_is_too_old_is_asked_for_again() -> None:
    model, part = made()
    assert (await part.asked(x(1), model, 1.0))[1] == Recalled(0, 1)
    model.now = 9.9
    assert (await part.asked(x(1), model, 1.0))[1] == Recalled(1, 1, 9.9)
    model.now = 10.0
    assert (await part.asked(x(1), model, 1.0))[1] == Recalled(0, 1)


@pytest.mark.parametrize("by_row", [False, True])
async def test_newer_weights_end_all_answers_of_older_ones(by_row: bool) -> None:
    model, part = made(by_row)
    await part.asked(x(1), model, 1.0)
    await part.asked(x(2), model, 1.0)
    model.weights = 1
    await part.asked(x(3), model, 1.0)
    outputs, told = await part.asked(x(1), model, 1.0)
    assert outputs["y"].tolist() == [[3.0]]
    assert told.rows == 0
    model.weights = 0  # a node that lags: its answers are not kept
    await part.asked(x(4), model, 1.0)
    assert (await part.asked(x(4), model, 1.0))[1].rows == 0


async def test_degraded_answers_and_failures_are_not_kept() -> None:
    model, part = made()
    model.degraded = True
    await part.asked(x(1), model, 1.0)
    assert (await part.asked(x(1), model, 1.0))[1].rows == 0
    model.degraded, model.fails = False, 1
    with pytest.raises(NotAnswered):
        await part.asked(x(2), model, 1.0)
    assert (await part.asked(x(2), model, 1.0))[1].rows == 0


@pytest.mark.parametrize("how", ["answered", "failed", "cancelled", "late"])
async def test_equal_questions_at_once_are_asked_once_and_no_failure_is_shared(how: str) -> None:
    model, part = made()
    model.held, model.fails = asyncio.Event(), int(how == "failed")
    wait = 0.01 if how == "late" else 5.0
    first = asyncio.create_task(part.asked(x(1), model, 5.0))
    await asyncio.sleep(0)
    others = [asyncio.create_task(part.asked(x(1), model, wait)) for _ in range(3)]
    if how == "late":
        await eventually(lambda: len(model.rows) == 4, "the others ask themselves")
    await asyncio.sleep(0.05)
    assert len(model.rows) == (4 if how == "late" else 1)
    if how == "cancelled":
        first.cancel()
    model.held.set()
    told = await asyncio.gather(first, *others, return_exceptions=True)
    answers = [each for each in told[1:] if not isinstance(each, BaseException)]
    assert [outputs["y"].tolist() for outputs, _ in answers] == [[[2.0]]] * 3
    assert len(model.rows) == (1 if how == "answered" else 4)
    assert isinstance(told[0], BaseException) == (how in ("failed", "cancelled"))


def declared(cache: object) -> AskPart:
    part = {"name": "a", "model": "m@1", "inputs": {"x": "x"}, "cache": cache}
    inputs = {"x": {"datatype": "FP32", "shape": [1]}}
    made = composition_of({"inputs": inputs, "part": [part], "outputs": {"y": "a.y"}})
    found = made.parts["a"]
    assert isinstance(found, AskPart)
    return found


def test_a_part_says_within_which_bounds() -> None:
    assert declared({"bytes": "8MB", "age_s": 60}).cache == CacheBounds(8_000_000, 60.0)


@pytest.mark.parametrize("cache", [True, {}, {"bytes": "8", "age_s": 1}, {"bytes": 8, "age_s": -1}])
def test_bounds_that_are_none_are_refused_by_part(cache: object) -> None:
    with pytest.raises(CompositionError, match="a"):
        declared(cache)
