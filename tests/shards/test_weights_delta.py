"""Weights change only by changes that fit: others are refused as a whole, and change nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_graphs import mlp

from shards.errors import DeltaError, DeltaFault, ModelError
from shards.weights.delta import SparseTensor, WeightDelta
from shards.weights.master import MasterWeights

ARTIFACT = mlp().SerializeToString()
BASE = "ab" * 32
MASTER = MasterWeights.of(ARTIFACT, BASE)
NAME = MASTER.names[0]
SHAPE = MASTER.specs[NAME].shape
SIZE = int(np.prod(SHAPE))


def sparse(*indices: int, value: float = 1.0, dtype: type = np.float32) -> SparseTensor:
    places = np.array(indices, np.uint32)
    return SparseTensor(places, np.full(len(indices), value, dtype), SHAPE)


def delta(tensor: SparseTensor, name: str = NAME, base: str = BASE) -> WeightDelta:
    return WeightDelta(base, {name: tensor})


REFUSED: dict[str, tuple[DeltaFault, Callable[[], WeightDelta]]] = {
    "another base": (DeltaFault.BASE, lambda: delta(sparse(0), base="cd" * 32)),
    "an unknown tensor": (DeltaFault.TENSOR, lambda: delta(sparse(0), name="no such weight")),
    "another shape": (DeltaFault.SHAPE, lambda: delta(replace(sparse(0), shape=(*SHAPE, 1)))),
    "more values than indices": (
        DeltaFault.SHAPE,
        lambda: delta(replace(sparse(0), values=np.zeros(2, np.float32))),
    ),
    "signed indices": (
        DeltaFault.DATATYPE,
        lambda: delta(replace(sparse(0), indices=np.array([-1], np.int64))),
    ),
    "wide values": (
        DeltaFault.DATATYPE,
        lambda: delta(replace(sparse(0), values=np.zeros(1, np.float64))),
    ),
    "an index behind the end": (DeltaFault.OUT_OF_RANGE, lambda: delta(sparse(0, SIZE))),
    "unsorted indices": (DeltaFault.UNSORTED, lambda: delta(sparse(0, 2, 1))),
    "an index twice": (DeltaFault.DUPLICATE, lambda: delta(sparse(0, 1, 1))),
    "not a number": (DeltaFault.NOT_FINITE, lambda: delta(sparse(0, value=np.nan))),
    "infinity": (DeltaFault.NOT_FINITE, lambda: delta(sparse(0, value=np.inf, dtype=np.float16))),
    "a sum that overflows": (DeltaFault.NOT_FINITE, lambda: delta(sparse(0, value=3e38))),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_delta_that_does_not_fit_is_refused_and_changes_no_weight(what: str) -> None:
    fault, make = REFUSED[what]
    weights = MASTER.replace({NAME: np.full(SHAPE, 3e38, np.float32)})
    before = weights.digest()
    with pytest.raises(DeltaError) as refused:
        weights.apply(make())
    assert refused.value.fault is fault
    assert weights.digest() == before


@pytest.mark.parametrize(
    ("fault", "values"),
    [
        (DeltaFault.TENSOR, {"no such weight": np.zeros(SHAPE, np.float32)}),
        (DeltaFault.DATATYPE, {NAME: np.zeros(SHAPE, np.float16)}),
        (DeltaFault.SHAPE, {NAME: np.zeros((1, *SHAPE), np.float32)}),
        (DeltaFault.NOT_FINITE, {NAME: np.full(SHAPE, np.nan, np.float32)}),
    ],
)
def test_whole_tensors_that_do_not_fit_are_refused(
    fault: DeltaFault, values: dict[str, np.ndarray]
) -> None:
    before = MASTER.digest()
    with pytest.raises(DeltaError) as refused:
        MASTER.replace(values)
    assert refused.value.fault is fault
    assert MASTER.digest() == before


@given(
    indices=st.sets(st.integers(0, SIZE - 1), max_size=40),
    dtype=st.sampled_from([np.float32, np.float16]),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=50, deadline=None)
def test_a_delta_adds_its_values_at_its_places_and_nowhere_else(
    indices: set[int], dtype: type, seed: int
) -> None:
    places = np.array(sorted(indices), np.uint32)
    values = np.random.default_rng(seed).standard_normal(len(places)).astype(dtype)
    before = MASTER.digest()
    after = MASTER.apply(delta(SparseTensor(places, values, SHAPE)))
    expected = MASTER.get(NAME).copy().reshape(-1)
    for place, value in zip(places, values, strict=True):
        expected[place] += np.float32(value)
    assert np.array_equal(after.get(NAME).reshape(-1), expected)
    assert all(after.get(name) is MASTER.get(name) for name in MASTER.names if name != NAME)
    assert MASTER.digest() == before


def test_a_state_of_weights_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        MASTER.get(NAME)[...] = 0
    mine = np.zeros(SHAPE, np.float32)
    taken = MASTER.replace({NAME: mine})
    mine += 1
    assert not taken.get(NAME).any()


def test_the_digest_says_whether_two_states_are_equal() -> None:
    one = MASTER.apply(delta(sparse(1, 5)))
    again = MasterWeights.of(ARTIFACT, BASE).apply(delta(sparse(1, 5)))
    assert one.digest() == again.digest() != MASTER.digest()
    assert one.replace({NAME: MASTER.get(NAME)}).digest() == MASTER.digest()


def test_an_unknown_weight_is_an_error_that_names_it() -> None:
    with pytest.raises(DeltaError, match="no such"):
        MASTER.get("no such")


@pytest.mark.parametrize("data", [b"", b"not a model", ARTIFACT[:-7], b"\x3a\xff\xff\xff\xff\x0f"])
def test_bytes_that_are_no_model_are_refused(data: bytes) -> None:
    with pytest.raises(ModelError):
        MasterWeights.of(data, BASE)
