"""A learner's own training: it learns its classes, and can be stopped at any step."""

from __future__ import annotations

import numpy as np
import pytest

from nodes.config import NodeConfig
from nodes.learning.head import HeadLayout
from nodes.learning.options import LearnOptions, SamplePrivacy, learns
from nodes.learning.samples import SampleWindow
from nodes.learning.training import Training, change, tempered
from shards.zoo import digits_training
from swarm.errors import InvalidArgument

LAYOUT = HeadLayout("w", "b", 64, 10, False)


def taught(options: LearnOptions, seed: int = 0) -> Training:
    images, labels = digits_training()
    some = np.isin(labels, (3, 8))
    samples = SampleWindow(64, 10)
    samples.add(images[some].reshape(-1, 64), labels[some])
    return Training(LAYOUT, samples, options, seed)


@pytest.mark.parametrize(
    "options",
    [
        LearnOptions(steps=40),
        LearnOptions(steps=40, momentum=0.9),
        LearnOptions(steps=40, privacy=SamplePrivacy(1.0, sampling=0.3)),
    ],
    ids=["plain", "momentum", "private"],
)
def test_training_learns_the_classes_that_were_taught(options: LearnOptions) -> None:
    training = taught(options)
    *_, after = training.round(LAYOUT.fresh())
    assert training.accuracy(LAYOUT.fresh()) == 0.0
    assert training.accuracy(after) > 0.9
    assert training.steps == 40


@pytest.mark.parametrize("scale", [10.0, 1e3, 1e15, 1e30])
@pytest.mark.parametrize(
    "options",
    [LearnOptions(steps=40), LearnOptions(steps=40, privacy=SamplePrivacy(1.0, sampling=0.3))],
    ids=["plain", "private"],
)
def test_one_clients_sample_of_eight_as_long_as_it_likes_stops_no_others_learning(
    options: LearnOptions, scale: float
) -> None:
    training = taught(options)
    features, labels = training.samples.training  # views of what is kept
    features[: len(labels) // 8] *= np.float32(scale)
    *_, after = training.round(LAYOUT.fresh())
    assert all(np.isfinite(value).all() for value in after.values())
    assert training.accuracy(after) > 0.9


def test_samples_of_usual_lengths_are_trained_on_as_they_are() -> None:
    features = taught(LearnOptions()).samples.training[0]
    assert tempered(features) is features
    assert tempered(features[:0]) is not None
    zeros = np.zeros((4, 64), np.float32)
    assert tempered(zeros) is zeros


def test_samples_of_one_class_cannot_be_learned() -> None:
    samples = SampleWindow(64, 10)
    training = Training(LAYOUT, samples, LearnOptions())
    assert not training.can_learn
    rng = np.random.default_rng(0)
    samples.add(rng.standard_normal((40, 64)).astype(np.float32), np.arange(40) % 2)
    assert training.can_learn


def test_a_round_can_be_left_at_any_step_and_changes_nothing_in_place() -> None:
    training = taught(LearnOptions(steps=4))
    start = LAYOUT.fresh()
    first = next(training.round(start))
    kept = {name: value.copy() for name, value in first.items()}
    *_, last = training.round(first)
    assert not any(value.any() for value in start.values())
    for name, value in kept.items():
        np.testing.assert_array_equal(first[name], value)
    moved = change(first, last)
    for name, value in last.items():
        np.testing.assert_allclose(first[name] + moved[name], value, atol=1e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"every": 0},
        {"mint_every": 0},
        {"mint_grace": 0},
        {"steps": 0},
        {"batch": 0},
        {"rate": 0},
        {"l2": -1},
        {"momentum": 1},
        {"momentum": -0.1},
        {"delta_share": 0.0},
        {"hostile": 1.0},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument):
        LearnOptions(**wrong)  # type: ignore[arg-type]


def test_the_settings_of_a_learner_are_those_of_its_exchange() -> None:
    options = LearnOptions(delta_share=0.2, delta_bytes=4096, hostile=0.25)
    exchange = options.exchange
    assert (exchange.share, exchange.bytes_per_delta, exchange.hostile) == (0.2, 4096, 0.25)


def test_a_learner_learns_by_its_role_and_a_gateway_does_not_learn() -> None:
    assert learns(NodeConfig("learner", "digits"))
    assert not learns(NodeConfig("shard-1", "digits"))
    assert NodeConfig("learner", "digits").stages_of(None) == []  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="leave out --learn"):
        NodeConfig("gateway", parts=(LearnOptions(learn=True),))
