"""Frozen features and their head compute the whole model's answer, however the model was cut."""

from __future__ import annotations

import numpy as np
import pytest
from zoo.builders import chain, mlp

from nodes.learning.frozen import FrozenModel
from shards.errors import ModelError
from shards.runtimes.ort import OrtRuntime
from shards.split.split import SplitResult, split
from shards.zoo import digits_heldout, digits_model
from swarm.errors import InvalidArgument
from swarm.model import ModelInfo


def load(result: SplitResult) -> FrozenModel:
    info = ModelInfo.from_manifest(result.manifest.to_json())
    return FrozenModel.load(result.manifest, info, result.files.__getitem__)


@pytest.mark.parametrize(("stages", "edge_layers"), [(1, None), (3, None), (2, 3)])
def test_features_and_head_are_the_whole_model(stages: int, edge_layers: int | None) -> None:
    frozen = load(split(digits_model(), name="d", stages=stages, edge_layers=edge_layers))
    images = digits_heldout()[0][:130]
    whole = OrtRuntime(digits_model())
    features = frozen.features({"image": images})
    assert (features.dtype, features.shape) == (np.float32, (130, frozen.layout.width))
    np.testing.assert_allclose(
        frozen.layout.logits(frozen.shipped, features),
        whole.run({"image": images})["logits"],
        atol=1e-3,
    )
    whole.close()
    frozen.close()


def test_learned_parameters_survive_the_way_through_the_shards_layout() -> None:
    frozen = load(split(digits_model(), name="d", stages=2))
    rng = np.random.default_rng(0)
    parameters = {
        name: rng.standard_normal(value.shape).astype(np.float32)
        for name, value in frozen.shipped.items()
    }
    again = frozen.learned(frozen.stored(parameters))
    for name, value in parameters.items():
        np.testing.assert_array_equal(again[name], value)
    assert frozen.learned({}) is frozen.shipped
    frozen.close()


def test_tensors_of_another_head_are_refused() -> None:
    frozen = load(split(mlp(16, 2), name="m", stages=1))
    stored = frozen.stored(frozen.shipped)
    name = frozen.layout.weight
    for wrong in ({"x": stored[name]}, stored | {name: stored[name][:-1]}):
        with pytest.raises(InvalidArgument, match="no weights of this model's head"):
            frozen.learned(wrong)
    frozen.close()


def test_inputs_that_do_not_fit_the_model_are_refused_before_any_run() -> None:
    frozen = load(split(digits_model(), name="d", stages=2))
    images = digits_heldout()[0][:2]
    for wrong in (
        {"image": images[:, :, :4]},
        {"image": images.astype(np.float64)},
        {"picture": images},
        {"image": images[:0]},
        {"image": np.float32(1)},
        {},
    ):
        with pytest.raises(InvalidArgument):
            frozen.features(wrong)  # type: ignore[arg-type]
    frozen.close()


def test_a_model_without_a_head_says_why_it_cannot_learn() -> None:
    result = split(chain(2, 64), name="c", stages=1)
    with pytest.raises(ModelError, match="no head to train"):
        load(result)
