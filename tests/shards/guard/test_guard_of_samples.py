"""A guard keeps the rate that it was calibrated for, and takes any tensor and no bad reference."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes
from support.meshes import split_digits

from shards.errors import ArtifactError, InputError, ManifestError, ModelError
from shards.guard.fit import first_stage, guarded
from shards.guard.reference import MOST_TOLD, GuardReference
from shards.guard.summary import CELLS, LEVELS, MOST_GROUPS, TensorView, view_of
from shards.guard.told import ToldGuard
from shards.manifest import Manifest
from shards.samples import Samples, read_samples
from shards.specs import DTYPES, TensorSpec
from shards.zoo import digits_heldout, digits_training

Draw = Callable[[np.random.Generator, int], np.ndarray]


def _normal(random: np.random.Generator, count: int) -> np.ndarray:
    return random.normal(0.5, 0.2, (count, 1, 8, 8))


def _heavy(random: np.random.Generator, count: int) -> np.ndarray:
    return random.standard_t(2.5, (count, 1, 8, 8))


def _of_two_kinds(random: np.random.Generator, count: int) -> np.ndarray:
    bright = random.random((count, 1, 1, 1)) < 0.1
    return np.where(bright, 5.0, 0.0) + random.normal(0, 0.1, (count, 1, 8, 8))


def _digits_with_noise(random: np.random.Generator, count: int) -> np.ndarray:
    images, _ = digits_training()
    return images[random.integers(0, len(images), count)] + random.normal(0, 0.1, (count, 1, 8, 8))


def made(images: np.ndarray, **options: Any) -> tuple[Manifest, GuardReference]:
    result = split_digits(stages=2)
    samples = Samples({"image": images.astype(np.float32)})
    return guarded(result.manifest, lambda name: result.files[name], samples, **options)


def scores(reference: GuardReference, images: np.ndarray) -> np.ndarray:
    result = split_digits(stages=2)
    run = first_stage(result.manifest, lambda name: result.files[name])
    return reference.scores(run({"image": images.astype(np.float32)}))


@pytest.mark.parametrize("draw", [_normal, _heavy, _of_two_kinds, _digits_with_noise])
@pytest.mark.parametrize("rate", [0.02, 0.1])
def test_fresh_samples_of_any_kind_are_unfamiliar_as_often_as_calibrated(
    draw: Draw, rate: float
) -> None:
    """Split conformal prediction: of n held-out samples the rate is drawn from a beta distribution
    around it, and counted in m fresh ones it is binomial: 4 standard deviations of both."""
    random = np.random.default_rng(7)
    calibrated, fresh = 2000, 5000
    _, reference = made(draw(random, calibrated), false_alarms=rate)
    found = float((scores(reference, draw(random, fresh)) > 1).mean())
    deviation = sqrt(rate * (1 - rate) * (4 / calibrated + 1 / fresh))
    assert abs(found - rate) < 4 * deviation


def _shuffled(images: np.ndarray) -> np.ndarray:
    random = np.random.default_rng(1)
    return random.permuted(images.reshape(len(images), -1), axis=1).reshape(images.shape)


SPOILT: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "noise": (lambda x: x + np.random.default_rng(2).normal(0, 0.3, x.shape), 0.95),
    "inverted": (lambda x: 1 - x, 0.95),
    "rotated": (lambda x: np.rot90(x, 1, (2, 3)), 0.95),
    "shuffled": (_shuffled, 0.95),
    "in 0..255": (lambda x: x * 255, 1.0),
    "black": (lambda x: x * 0, 1.0),
}


@pytest.mark.parametrize("how", SPOILT)
def test_spoilt_digits_are_unfamiliar_and_held_out_ones_are_not(how: str) -> None:
    train, _ = digits_training()
    held, _ = digits_heldout()
    _, reference = made(train)
    spoil, least = SPOILT[how]
    assert (scores(reference, spoil(held)) > 1).mean() >= least
    assert (scores(reference, held) > 1).mean() <= 0.03


def test_a_reference_says_the_same_after_it_was_written_and_read() -> None:
    train, _ = digits_training()
    manifest, reference = made(train, refuse=True)
    again = Manifest.from_json(manifest.to_json())
    told = ToldGuard.of(again.parts["guard"])
    assert told.file in again.files()
    assert (told.refuse, told.samples, told.false_alarms) == (True, len(train), 0.01)
    read = GuardReference.from_bytes(reference.to_bytes(), told.views)
    assert np.array_equal(scores(read, train[:50]), scores(reference, train[:50]))


def _changed(place: int, value: float) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        numbers = np.frombuffer(data, "<f8").copy()
        numbers[place] = value
        return numbers.tobytes()

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"",
        lambda data: data[:-8],
        lambda data: data + data,
        _changed(0, 0.0),
        _changed(0, -1.0),
        _changed(0, np.nan),
        _changed(1, np.nan),
        _changed(-1, np.inf),
    ],
)
def test_a_bad_artifact_is_refused(change: Callable[[bytes], bytes]) -> None:
    train, _ = digits_training()
    manifest, reference = made(train, false_alarms=0.05)
    views = ToldGuard.of(manifest.parts["guard"]).views
    with pytest.raises(ArtifactError, match="make it again"):
        GuardReference.from_bytes(change(reference.to_bytes()), views)


VIEW = {"tensor": "image", "way": "cells", "rows": True, "channels": 0, "size": 64}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("views", []),
        ("views", "all"),
        ("views", [{}]),
        ("views", [VIEW | {"way": "x"}]),
        ("views", [VIEW | {"size": 0}]),
        ("views", [VIEW | {"rows": 1}]),
        ("views", [VIEW | {"size": 10**9}]),
        ("views", [VIEW | {"tensor": "other"}]),
        ("false_alarms", 0),
        ("false_alarms", float("nan")),
        ("samples", -1),
        ("refuse", "yes"),
        ("files", []),
        ("files", [{"file": "../guard", "sha256": "0" * 64, "bytes": 1}]),
    ],
)
def test_a_manifest_whose_guard_is_malformed_is_refused(field: str, value: object) -> None:
    train, _ = digits_training()
    manifest, _ = made(train, false_alarms=0.05)
    part = {**manifest.parts["guard"], field: value}
    with pytest.raises(ManifestError):
        Manifest.from_json(replace(manifest, parts={"guard": part}).to_json())


@pytest.mark.parametrize(
    ("samples", "match"),
    [
        (np.zeros((1, 1, 8, 8)), "1 samples cannot calibrate"),
        (np.zeros((399, 1, 8, 8)), "it takes 400"),
        (np.ones((400, 1, 8, 8)), "all samples are alike"),
    ],
)
def test_samples_that_do_not_do_make_no_guard(samples: np.ndarray, match: str) -> None:
    with pytest.raises(ModelError, match=match):
        made(samples)


@pytest.mark.parametrize(
    "images",
    [
        np.full((400, 1, 8, 8), np.nan, np.float32),
        np.full((400, 1, 8, 8), np.inf, np.float32),
        np.zeros((400, 1, 9, 9), np.float32),
        np.zeros((400, 1, 8, 8), np.int64),
    ],
)
def test_a_file_of_samples_that_the_model_does_not_take_is_refused(
    images: np.ndarray, tmp_path: Any
) -> None:
    np.savez(tmp_path / "s.npz", image=images)
    with pytest.raises(InputError):
        read_samples(tmp_path / "s.npz", split_digits(stages=2).manifest.inputs)


def test_a_number_that_never_changes_is_no_reason_and_its_change_is_one() -> None:
    train, _ = digits_training()
    held, _ = digits_heldout()
    _, reference = made(train)  # the first column of digits is black in nearly all of them
    lit = held.copy()
    lit[:, 0, 0, 0] = 1.0
    assert (scores(reference, lit) > 1).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, -3e38])
@pytest.mark.parametrize("share", [1, 64])
def test_numbers_that_are_none_are_unfamiliar_and_have_a_score(value: float, share: int) -> None:
    train, _ = digits_training()
    _, reference = made(train)
    images = train[:2].copy()
    images[1].reshape(-1)[:share] = value
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second = scores(reference, images)
    assert first == scores(reference, train[:1])[0]
    assert 1 < second <= MOST_TOLD


def test_no_rows_have_no_scores() -> None:
    train, _ = digits_training()
    _, reference = made(train)
    views = {each.view.tensor: each.view for each in reference.views}
    empty = {"image": np.zeros((0, 1, 8, 8), np.float32)}
    empty |= {name: np.zeros((0, 32, 4, 4), np.float32) for name in views if name != "image"}
    assert len(reference.scores(empty)) == 0


@given(
    shape=array_shapes(min_dims=0, max_dims=5, min_side=1, max_side=9),
    way=st.sampled_from([LEVELS, CELLS]),
    datatype=st.sampled_from(sorted(DTYPES)),
    dynamic=st.integers(0, 5),
)
def test_any_tensor_is_a_few_finite_numbers_a_row(
    shape: tuple[int, ...], way: str, datatype: str, dynamic: int
) -> None:
    """Whatever its shape and datatype, and whichever of its axes may have any size."""
    spec = TensorSpec(
        "x", datatype, tuple(-1 if axis == dynamic else size for axis, size in enumerate(shape))
    )
    array = np.ones(shape, spec.dtype)
    view = view_of(spec, way, False, array)
    summary = view.summary(array)
    assert summary.shape == (1, view.size)
    assert 0 < view.size <= 2 * MOST_GROUPS
    assert np.isfinite(summary).all()
    assert TensorView.from_dict(view.to_dict()) == view


@given(rows=st.integers(1, 5), channels=st.integers(1, 100), side=st.integers(1, 40))
def test_a_row_says_the_same_alone_and_among_others(rows: int, channels: int, side: int) -> None:
    array = np.random.default_rng(rows).normal(size=(rows, channels, side)).astype(np.float32)
    spec = TensorSpec("x", "FP32", (-1, channels, side), batch=True)
    for way in (LEVELS, CELLS):
        view = view_of(spec, way, True, array[:1])
        together = view.summary(array)
        for row in range(rows):
            assert np.allclose(together[row], view.summary(array[row : row + 1])[0])
