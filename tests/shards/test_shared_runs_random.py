"""Graphs drawn at random: batched answers equal the single ones, or the model is not batched."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from batch_graphs import SCALES, Arrays, models, row
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto

from shards.errors import SplitError
from shards.runtimes.load import load_stage
from shards.runtimes.ort import make_session
from shards.split.split import SplitResult, split

# Rows of each request of a batch, by their numbers: another scale each.
BATCHES: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((0,), (1,)),
    ((2,), (0,), (1,)),
    ((0, 3), (1,), (4, 2)),
    ((5,), (6,), (7,), (0,), (3,)),
)
TOLERANCE = 1e-5


def cut(model: ModelProto, stages: int) -> SplitResult:
    """The model in so many stages, or in one where it has no cut."""
    data = model.SerializeToString()
    try:
        return split(data, name="m", stages=stages, profile=False)
    except SplitError:
        return split(data, name="m", stages=1, profile=False)


def off_by(alone: Arrays, together: Arrays) -> float:
    """The largest difference, in parts of the row's largest value."""
    worst = 0.0
    for name, right in alone.items():
        got = together[name]
        if right.shape != got.shape:
            return float("inf")
        with np.errstate(invalid="ignore"):
            equal = (right == got) | (np.isnan(right) & np.isnan(got))
            apart = np.abs(right - got)[~equal]
        if apart.size:
            largest = np.abs(right[np.isfinite(right)]).max(initial=1e-30)
            worst = max(worst, float(np.nan_to_num(apart, nan=np.inf).max()) / float(largest))
    return worst


def served_apart(result: SplitResult, inputs: dict[str, list[int]]) -> float:
    """How far the answers of stages to batches are from those to requests alone, at worst."""
    manifest, worst = result.manifest, 0.0
    stages = [
        load_stage(manifest, shard.stage, result.files.__getitem__, self_test=False)
        for shard in manifest.shards
    ]
    for batch in BATCHES:
        requests = [joined([row(inputs, number) for number in numbers]) for numbers in batch]
        together = requests
        for stage in stages:
            together = stage.run_batch(together)
        for request, got in zip(requests, together, strict=True):
            right = request
            for stage in stages:
                right = stage.run(right)
            worst = max(worst, off_by(right, got))
    return worst


def keeps_rows_apart(model: ModelProto, inputs: dict[str, list[int]]) -> bool:
    """Whether no batch tried here shows that rows meet."""
    session = make_session(model.SerializeToString(), level="basic")
    names = [out.name for out in session.get_outputs()]

    def run(feeds: Arrays) -> Arrays:
        return dict(zip(names, session.run(names, dict(feeds)), strict=True))

    rows = [row(inputs, number) for number in range(len(SCALES))]
    try:
        alone = [run(each) for each in rows]
        together = run(joined(rows))
    except Exception as error:  # pybind raises a dozen unrelated types here
        if "ONNXRuntime" not in str(error):
            raise
        return False
    if any(array.ndim == 0 or len(array) != len(rows) for array in together.values()):
        return False
    return all(
        off_by(right, {name: array[i : i + 1] for name, array in together.items()}) < 1e-3
        for i, right in enumerate(alone)
    )


def joined(rows: Sequence[Arrays]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([each[name] for each in rows]) for name in rows[0]}


def judged(model: ModelProto, stages: int) -> str:
    """What became of a model: batched, refused rightly, or needlessly. Fails where it is wrong."""
    inputs = {
        each.name: [dim.dim_value for dim in each.type.tensor_type.shape.dim[1:]]
        for each in model.graph.input
    }
    result = cut(model, stages)
    if result.manifest.batchable:
        assert served_apart(result, inputs) <= TOLERANCE
        return "batched"
    assert result.manifest.batching.why
    return "refused needlessly" if keeps_rows_apart(model, inputs) else "refused rightly"


def drawn(examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        quiet = settings(
            max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck)
        )
        return quiet(given(models(), st.integers(1, 3))(test))

    return decorate


@pytest.fixture(autouse=True)
def no_warnings() -> None:
    logging.getLogger("shards").setLevel(logging.ERROR)


@drawn(40)
def test_batched_answers_equal_the_single_ones_or_the_model_is_not_batched(
    model: ModelProto, stages: int
) -> None:
    judged(model, stages)


@pytest.mark.benchmark
def test_of_a_thousand_models_none_is_batched_wrongly(capsys: pytest.CaptureFixture[str]) -> None:
    found: Counter[str] = Counter()

    @drawn(1000)
    def each(model: ModelProto, stages: int) -> None:
        found[judged(model, stages)] += 1

    each()
    with capsys.disabled():
        print(f"\n{dict(found)}")
    assert sum(found.values()) >= 1000
    assert found["batched"] >= 150
