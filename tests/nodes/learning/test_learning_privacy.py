"""DP-SGD: one sample moves a step by no more than the clip, and epsilon is what it should be."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nodes.config import NodeConfig
from nodes.learning.head import HeadLayout, Momentum
from nodes.learning.options import LearnOptions, SamplePrivacy
from nodes.learning.privacy import epsilon_of, private_gradient
from shards.zoo import digits_heldout, digits_training
from swarm.errors import InvalidArgument

LAYOUT = HeadLayout("w", "b", 64, 10, False)


def quiet(clip: float) -> SamplePrivacy:
    """All samples in each step, and noise that does not show."""
    return SamplePrivacy(clip=clip, noise=1e-9, sampling=1.0)


def test_no_sample_moves_the_gradient_by_more_than_the_clip() -> None:
    rng = np.random.default_rng(0)
    features = (rng.standard_normal((30, 64)) * 50).astype(np.float32)
    labels = rng.integers(0, 10, 30)
    parameters = LAYOUT.fresh()
    for clip in (0.1, 2.0):
        sums = []
        for count in (29, 30):
            gradient = private_gradient(
                LAYOUT, parameters, features[:count], labels[:count], quiet(clip), rng
            )
            flat = np.concatenate([value.ravel() for value in gradient.values()])
            sums.append(flat * count)
        assert np.linalg.norm(sums[1] - sums[0]) <= clip * 1.0001


def test_without_clipping_and_noise_it_is_the_plain_gradient() -> None:
    features, labels = digits_training()
    features = features.reshape(-1, 64)[:50]
    parameters = LAYOUT.fresh()
    rng = np.random.default_rng(0)
    private = private_gradient(LAYOUT, parameters, features, labels[:50], quiet(1e6), rng)
    plain = LAYOUT.gradient(parameters, features, labels[:50], 0.0)
    for name, value in plain.items():
        np.testing.assert_allclose(private[name], value, atol=1e-3)


def test_the_noise_has_the_stated_deviation() -> None:
    rng = np.random.default_rng(0)
    privacy = SamplePrivacy(clip=2.0, noise=3.0, sampling=0.5)
    nothing = np.zeros((4, 64), np.float32)
    draws = [
        private_gradient(LAYOUT, LAYOUT.fresh(), nothing, np.arange(4), privacy, rng)["w"]
        for _ in range(50)
    ]
    assert np.std(draws) == pytest.approx(2.0 * 3.0 / (0.5 * 4), rel=0.02)


def test_a_private_head_still_learns() -> None:
    images, labels = digits_training()
    held, held_labels = digits_heldout()
    rng = np.random.default_rng(0)
    parameters, descent = LAYOUT.fresh(), Momentum(1.0)
    privacy = SamplePrivacy(clip=1.0, noise=1.0, sampling=0.1)
    for _ in range(150):
        gradient = private_gradient(
            LAYOUT, parameters, images.reshape(-1, 64), labels, privacy, rng
        )
        parameters = descent.step(parameters, gradient)
    assert LAYOUT.accuracy(parameters, held.reshape(-1, 64), held_labels) > 0.8


def test_epsilon_of_the_plain_gaussian_mechanism_is_near_its_closed_bound() -> None:
    # Mironov, arXiv 1702.07476, propositions 3 and 7: T steps of the Gaussian mechanism have
    # Renyi divergence T a / (2 s^2) at order a, which gives T / (2 s^2) + sqrt(2 T ln(1/d)) / s.
    privacy = SamplePrivacy(noise=20.0, sampling=1.0)
    steps = 40
    bound = steps / (2 * 20.0**2) + math.sqrt(2 * steps * math.log(1 / privacy.delta)) / 20.0
    assert 0.7 * bound < epsilon_of(privacy, steps) <= bound * 1.01


def test_epsilon_grows_with_steps_and_falls_with_noise_and_sampling() -> None:
    assert epsilon_of(SamplePrivacy(1.0), 0) == 0.0
    base = epsilon_of(SamplePrivacy(1.0), 100)
    assert base > 0
    assert epsilon_of(SamplePrivacy(1.0), 400) > base
    assert epsilon_of(SamplePrivacy(noise=2.0), 100) < base
    assert epsilon_of(SamplePrivacy(1.0, sampling=0.02), 100) < base


@pytest.mark.parametrize(
    "wrong",
    [{"clip": 0.0}, {"noise": -1.0}, {"sampling": 0.0}, {"sampling": 1.5}, {"delta": 0.0}],
)
def test_settings_that_give_no_privacy_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument, match="priva"):
        SamplePrivacy(**{"noise": 1.0} | wrong).check_usable()


def test_settings_of_privacy_concern_the_nodes_that_learn() -> None:
    """One file serves all nodes of a host."""
    unusable = LearnOptions(privacy=SamplePrivacy(noise=1.0, clip=0.0))
    assert NodeConfig(role="shard-1", model="digits", parts=(unusable,)).stage == 1
    with pytest.raises(InvalidArgument, match="0 < clip"):
        NodeConfig(role="learner", model="digits", parts=(unusable,))
