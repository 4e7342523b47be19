"""When a lighter model answers in a version's place, and which model can."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import NotFound, Status
from swarm.flow.latency import LatencyWindow
from swarm.model import ModelInfo, NamedLighter, Spec, Stage, lighter_misfit
from swarm.requests.degrading import Degrading
from swarm.requests.lighter import LIGHTER_ANSWERS, is_replaced, kept_free, may_degrade
from swarm.requests.request import Ask
from swarm.wire.messages import Request, Result

X, Y = Spec("x", "FP32", (-1, 4)), Spec("y", "FP32", (-1, 2))
INFO = ModelInfo(
    "large", "3", (X,), (Y,), (Stage(1, (X,), (Y,), 1.0),), lighter=NamedLighter("small")
)
SMALL = replace(INFO, model="small", version="1", lighter=None)


@pytest.mark.parametrize("degrades", [True, False])
@pytest.mark.parametrize("allowed", [True, False, None])
def test_the_requester_decides_else_the_owner(degrades: bool, allowed: bool | None) -> None:
    info = replace(INFO, lighter=NamedLighter("small", degrades=degrades))
    assert may_degrade(info, allowed) is (degrades if allowed is None else allowed)
    assert not may_degrade(SMALL, allowed), "it names no lighter model"


@given(budget=st.floats(-1, 600), p99=st.floats(0, 1000), answers=st.integers(0, 1 << 30))
def test_never_more_than_half_of_a_budget_is_kept_free(
    budget: float, p99: float, answers: int
) -> None:
    kept = kept_free(budget, p99, answers)
    assert 0 <= kept <= max(0.0, budget / 2)
    assert kept <= kept_free(budget, p99 * 2, answers) + 1e-9, "a slower one has more"


def test_the_lighter_models_usual_time_is_kept_free_twice() -> None:
    assert kept_free(1.0, 0.05, 100) == pytest.approx(0.102)
    assert kept_free(1.0, 0.0001, 100) == 0.01
    assert kept_free(1.0, 0.05, 3) == 0.25, "nothing is known of it yet"
    assert kept_free(600.0, 0.0, 0) == 0.5


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, ""),
        ({"inputs": (replace(X, name="z"),)}, "no input 'x'"),
        ({"inputs": (X, replace(X, name="z"))}, "no input 'z'"),
        ({"inputs": (replace(X, datatype="FP16"),)}, "input 'x' is FP16"),
        ({"inputs": (replace(X, shape=(1, 4)),)}, r"input 'x' is FP32 \[1, 4\]"),
        ({"inputs": (replace(X, shape=(-1, -1)),)}, ""),
        ({"inputs": (replace(X, shape=(), any_rank=True),)}, ""),
        ({"outputs": (replace(Y, shape=(1, 2)),)}, ""),
        ({"outputs": (replace(Y, shape=(-1, 3)),)}, r"output 'y' is FP32 \[any, 3\]"),
        ({"outputs": (Y, replace(Y, name="z"))}, "no output 'z'"),
        ({"outputs": (replace(Y, name="z"),)}, "no output 'y'"),
        ({"model": "large"}, "same model"),
        ({"generates": True}, "language model"),
        ({"edge": Stage(0, (X,), (X,), 0.1)}, "an edge's"),
    ],
)  # fmt: skip
def test_a_model_that_does_not_fit_is_named_with_its_tensor(
    changes: dict[str, object], named: str
) -> None:
    misfit = lighter_misfit(INFO, replace(SMALL, **changes))
    assert bool(misfit) is bool(named)
    if named:
        with pytest.raises(AssertionError, match=named):
            raise AssertionError(misfit)


class Mesh:
    """A registry and a requester in one: both models answer with these statuses."""

    def __init__(self, large: Status, small: Status, lighter: ModelInfo | None = SMALL) -> None:
        self.large, self.small, self.lighter = large, small, lighter
        self.asked: list[tuple[str, float]] = []
        self.looked_up = 0
        self.latency = LatencyWindow()

    def known(self, model: str, *_: object) -> ModelInfo | None:
        return None

    async def look_up(self, link: object, model: str, *_: object) -> ModelInfo:
        self.looked_up += 1
        if self.lighter is None:
            raise NotFound("there is none")
        return self.lighter

    def admission(self, info: ModelInfo) -> SimpleNamespace:
        return SimpleNamespace(latency=self.latency)

    async def infer(self, ask: Ask) -> Result:
        self.asked.append((ask.info.model, ask.deadline))
        return Result(ask.id, "small", "1", self.small, message="small's")

    async def answer(self, budget: float = 1.0) -> Result:
        deadline = asyncio.get_running_loop().time() + budget

        async def ask(until: float) -> Result:
            self.asked.append(("large", deadline - until))
            return Result("r", "large", "3", self.large, message="large's")

        degrading = Degrading(self, self, self)  # type: ignore[arg-type]
        request = Request({"x": np.zeros((1, 4), np.float32)})
        return await degrading.answer(INFO, request, "", deadline, ask)


@pytest.mark.parametrize("status", list(Status))
async def test_what_another_model_could_answer_the_lighter_one_does(status: Status) -> None:
    mesh = Mesh(status, Status.OK)
    result = await mesh.answer()
    replaced = status in LIGHTER_ANSWERS
    assert result.degraded is replaced is is_replaced(status, 1.0)
    assert (result.model, result.status) == (
        ("small", Status.OK) if replaced else ("large", status)
    )
    assert [model for model, _ in mesh.asked] == (["large", "small"] if replaced else ["large"])
    if replaced:
        assert result.message == f"degraded: {status}: large's"
        assert result.id == "r"


@pytest.mark.parametrize("status", sorted(LIGHTER_ANSWERS))
async def test_where_both_fail_the_failure_is_the_versions_and_names_both(status: Status) -> None:
    result = await Mesh(status, Status.UNAVAILABLE).answer()
    assert (result.model, result.status, result.degraded) == ("large", status, False)
    assert "large's" in result.message
    assert "small@1 does not answer either: UNAVAILABLE: small's" in result.message


@pytest.mark.parametrize(
    ("lighter", "why"),
    [(None, "there is none"), (replace(SMALL, inputs=(replace(X, name="z"),)), "no input 'x'")],
)
async def test_without_a_lighter_model_that_fits_the_version_has_the_whole_budget(
    lighter: ModelInfo | None, why: str
) -> None:
    mesh = Mesh(Status.UNAVAILABLE, Status.OK, lighter)
    result = await mesh.answer()
    assert (result.status, result.degraded) == (Status.UNAVAILABLE, False)
    assert why in result.message
    assert mesh.asked == [("large", 0.0)]
