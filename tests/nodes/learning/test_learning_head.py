"""The trainable head: its gradient is the loss's, and it learns real digits."""

from __future__ import annotations

import numpy as np
import pytest

from nodes.learning.head import HeadLayout, Momentum, smooth_rate
from shards.zoo import digits_heldout, digits_training

LAYOUTS = [
    HeadLayout("w", "b", 64, 10, False),
    HeadLayout("w", "b", 64, 10, True),
    HeadLayout("w", None, 64, 10, False),
]


def pixels() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    (images, labels), (held, held_labels) = digits_training(), digits_heldout()
    return images.reshape(-1, 64), labels, held.reshape(-1, 64), held_labels


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_gradient_is_the_slope_of_the_loss(layout: HeadLayout) -> None:
    rng = np.random.default_rng(1)
    features = rng.standard_normal((12, 64)).astype(np.float32)
    labels = rng.integers(0, 10, 12)
    parameters = {
        name: rng.standard_normal(value.shape).astype(np.float32)
        for name, value in layout.fresh().items()
    }
    l2 = 0.1
    gradient = layout.gradient(parameters, features, labels, l2)
    assert {n: g.shape for n, g in gradient.items()} == {n: p.shape for n, p in parameters.items()}

    def objective(name: str, moved: np.ndarray) -> float:
        at = parameters | {name: moved}
        matrix = layout.matrix(at).astype(np.float64)
        return layout.loss(at, features, labels) + l2 / 2 * float((matrix**2).sum())

    for name, value in parameters.items():
        direction = rng.standard_normal(value.shape).astype(np.float32)
        slope = objective(name, value + 1e-3 * direction) - objective(
            name, value - 1e-3 * direction
        )
        expected = 2e-3 * float((gradient[name] * direction).sum())
        assert slope == pytest.approx(expected, rel=2e-2, abs=1e-4)


@pytest.mark.parametrize("decay", [0.0, 0.9])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_fresh_head_learns_the_digits(layout: HeadLayout, decay: float) -> None:
    features, labels, held, held_labels = pixels()
    parameters = layout.fresh()
    before = layout.accuracy(parameters, held, held_labels)
    descent = Momentum(smooth_rate(features) * (1 - decay), decay)
    losses = []
    for _ in range(80):
        parameters = descent.step(parameters, layout.gradient(parameters, features, labels, 1e-4))
        losses.append(layout.loss(parameters, features, labels))
    assert before < 0.2
    assert losses == sorted(losses, reverse=True) or decay
    assert layout.accuracy(parameters, held, held_labels) > 0.85


def test_a_step_leaves_the_old_parameters_as_they_were() -> None:
    layout = LAYOUTS[0]
    features, labels, _, _ = pixels()
    old = layout.fresh()
    new = Momentum(0.1).step(old, layout.gradient(old, features, labels, 0.0))
    assert not any(value.any() for value in old.values())
    assert all(value.any() for value in new.values())
    assert {value.dtype for value in new.values()} == {np.dtype(np.float32)}


def test_a_head_that_knows_nothing_gives_each_class_the_same_probability() -> None:
    layout = LAYOUTS[0]
    features = np.ones((3, 64), np.float32)
    np.testing.assert_allclose(layout.probabilities(layout.fresh(), features), 0.1)


def test_huge_logits_do_not_overflow() -> None:
    layout = LAYOUTS[0]
    parameters = {name: value + np.float32(1e4) for name, value in layout.fresh().items()}
    features = np.full((2, 64), 1e3, np.float32)
    assert np.isfinite(layout.probabilities(parameters, features)).all()
    assert np.isfinite(layout.loss(parameters, features, np.array([1, 2])))
