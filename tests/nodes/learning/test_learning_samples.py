"""The store of labelled samples: bounded, never mixed with those held out, and choosy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodes.learning.samples import SampleWindow
from swarm.errors import InvalidArgument

WIDTH, CLASSES = 4, 5


def some(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return (
        rng.standard_normal((count, WIDTH)).astype(np.float32),
        np.arange(count, dtype=np.int64) % CLASSES,
    )


def rows(features: np.ndarray) -> set[bytes]:
    return {row.tobytes() for row in features}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(2, 60), max_size=12), st.integers(2, 80))
def test_a_store_never_grows_beyond_its_capacity_and_never_mixes_its_sides(
    calls: list[int], capacity: int
) -> None:
    samples = SampleWindow(WIDTH, CLASSES, capacity)
    for seed, count in enumerate(calls):
        samples.add(*some(count, seed % 3))  # some are taught again
    (train, _), (held, _) = samples.training, samples.held_out
    assert len(train) + len(held) <= capacity + 1
    assert not rows(train) & rows(held)


def test_about_the_asked_share_is_held_out() -> None:
    samples = SampleWindow(WIDTH, CLASSES, held_out=0.25)
    added = samples.add(*some(2000))
    assert added.trained_on + added.held_out == 2000
    assert 0.2 < added.held_out / 2000 < 0.3


def test_a_full_store_forgets_the_oldest_of_its_largest_class() -> None:
    samples = SampleWindow(WIDTH, CLASSES, 40, 0.1)
    seldom, _ = some(200, seed=1)
    samples.add(seldom[:20], np.array([0, 1] * 10))
    for seed in range(2, 12):
        features, _ = some(40, seed)
        samples.add(features, np.full(40, 2))
    counts = np.bincount(samples.training[1], minlength=3)
    assert counts.sum() == 36
    assert min(counts[0], counts[1]) >= 5
    newest = rows(samples.training[0][samples.training[1] == 2])
    assert newest <= rows(features)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, CLASSES], "label 5 is out of range: this model has the classes 0 to 4"),
        ([-1, 0], "label -1 is out of range"),
        ([0], "1 labels for 2 inputs"),
        ([[0, 1]], "one list of whole numbers"),
        ([0.0, 1.0], "one list of whole numbers, not float64"),
        ([3, 3], "all labels are class 3, and no other class was taught here yet"),
        ([], "one list of whole numbers|0 labels for 2 inputs"),
    ],
)
def test_labels_that_cannot_be_learned_are_refused_with_the_reason_and_nothing_is_kept(
    labels: list[object], message: str
) -> None:
    samples = SampleWindow(WIDTH, CLASSES)
    with pytest.raises(InvalidArgument, match=message):
        samples.add(np.zeros((2, WIDTH), np.float32), np.array(labels))
    assert samples.seen() == []


def test_one_class_may_follow_where_another_was_taught() -> None:
    samples = SampleWindow(WIDTH, CLASSES)
    samples.add(np.eye(2, WIDTH, dtype=np.float32), np.array([0, 1]))
    samples.add(np.ones((1, WIDTH), np.float32), np.array([1]))
    assert samples.seen() == [0, 1]
    assert len(samples.training[1]) + len(samples.held_out[1]) == 3


def test_features_of_the_wrong_shape_or_not_finite_are_refused() -> None:
    samples = SampleWindow(WIDTH, CLASSES)
    labels = np.array([0, 1])
    with pytest.raises(InvalidArgument, match=r"\[any, 4\] is expected"):
        samples.add(np.zeros((2, 3), np.float32), labels)
    with pytest.raises(InvalidArgument, match="not finite"):
        samples.add(np.full((2, WIDTH), np.nan, np.float32), labels)
    assert samples.seen() == []


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, float("nan")])
def test_a_share_that_leaves_one_side_empty_is_refused(share: float) -> None:
    with pytest.raises(InvalidArgument, match="held-out share"):
        SampleWindow(WIDTH, CLASSES, held_out=share)
