"""A stage gets other weights while it serves: whole versions, never a mixture, never wrong ones."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np
import pytest
from zoo.builders import resnet50

from shards.errors import DeltaError, DeltaFault, ModelError
from shards.runtimes.load import load_stage
from shards.runtimes.ort import make_session
from shards.runtimes.stage import StageRuntime
from shards.runtimes.synthetic import random_feeds
from shards.split.split import SplitResult, split
from shards.weights.head import ModelHead, find_head
from shards.weights.live import LiveWeights
from shards.weights.onnx_file import OnnxFile
from shards.zoo import digits_heldout, digits_model

DIGITS = split(digits_model(), name="digits", stages=2, profile=False)
RESNET = split(resnet50(32, 0.25, classes=10), name="resnet", stages=2, profile=False)
CONV = "ConvBnFusion_W_residual_9.convolution_0.weight"
Tensors = dict[str, np.ndarray]


class Served:
    """The last stage of a split, and the reference: the same file, loaded plainly."""

    def __init__(self, result: SplitResult, level: str = "basic") -> None:
        shard = result.manifest.shard(2)
        self.artifact = result.files[shard.file]
        self.file = OnnxFile(self.artifact)
        self.head: ModelHead = find_head(self.artifact)
        self.base = load_stage(result.manifest, 2, result.files.__getitem__, level=level)  # type: ignore[arg-type]
        self.live = LiveWeights(self.base, self.artifact)
        self.feeds = random_feeds(
            shard.receives, {s.name: (3, *s.shape[1:]) for s in shard.receives}
        )

    def version(
        self, n: int, tensors: Tensors, present: StageRuntime | None = None
    ) -> StageRuntime:
        artifact = self.artifact if self.live.needs_artifact(tensors) else None
        return self.live.with_weights(n, tensors, present or self.base, artifact)

    def expected(self, tensors: Tensors) -> np.ndarray:
        """The stage's answer with these tensors, from a session of its own, at the same level."""
        names = self.head.names
        model = self.file.rewritten(
            values={k: v for k, v in tensors.items() if k not in names}, as_inputs=names
        )
        held = {name: tensors.get(name, self.file.weight(name)) for name in names}
        return make_session(model, level="basic").run(None, self.feeds | held)[0]

    def answer(self, stage: StageRuntime) -> np.ndarray:
        return stage.run(self.feeds)["logits"]

    def head_tensors(self, seed: int) -> Tensors:
        rng = np.random.default_rng(seed)
        weight = rng.standard_normal((self.head.width, self.head.classes)).astype(np.float32)
        return self.head.tensors(weight, rng.standard_normal(self.head.classes).astype(np.float32))

    def changed(self, name: str, factor: float = 1.5) -> Tensors:
        return {name: self.file.weight(name) * np.float32(factor)}


@pytest.fixture
def digits() -> Served:
    return Served(DIGITS)


def test_a_new_head_answers_as_the_model_with_that_head(digits: Served) -> None:
    tensors = digits.head_tensors(1)
    stage = digits.version(4, tensors)
    assert stage.weights_version == 4
    assert np.array_equal(digits.answer(stage), digits.expected(tensors))
    assert digits.base.weights_version == 0


def test_a_second_head_needs_neither_the_artifact_nor_a_session(digits: Served) -> None:
    first = digits.version(1, digits.head_tensors(1))
    tensors = digits.head_tensors(2)
    assert not digits.live.needs_artifact(tensors)
    assert not digits.live.needs_session(tensors)
    assert digits.live.needs_session(digits.changed(CONV))
    second = digits.live.with_weights(2, tensors, first)
    assert np.array_equal(digits.answer(second), digits.expected(tensors))
    assert np.array_equal(digits.answer(first), digits.expected(digits.head_tensors(1)))


def test_any_weight_of_a_stage_can_change_and_the_others_stay_the_artifacts(
    digits: Served,
) -> None:
    for n, tensors in enumerate(
        (
            digits.changed(CONV),
            digits.changed(CONV) | digits.head_tensors(3),
            digits.changed(next(name for name in digits.file.specs if "BN_B" in name)),
            digits.head_tensors(4),
        ),
        start=1,
    ):
        stage = digits.version(n, tensors)
        assert np.array_equal(digits.answer(stage), digits.expected(tensors))


def test_small_weights_change_too() -> None:
    served = Served(RESNET)
    small = [
        n for n, s in served.file.specs.items() if s.nbytes < 128 and n not in served.head.names
    ]
    name = (small or list(served.file.specs))[0]
    for factor in (2.0, 3.0):
        tensors = served.changed(name, factor)
        stage = served.version(int(factor), tensors)
        assert np.array_equal(served.answer(stage), served.expected(tensors))


@pytest.mark.parametrize("first", ["head", "other"])
def test_a_version_without_tensors_is_the_artifact_again(digits: Served, first: str) -> None:
    changed = digits.head_tensors(1) if first == "head" else digits.changed(CONV)
    before = digits.version(1, changed)
    stage = digits.version(2, {}, before)
    assert stage.weights_version == 2
    np.testing.assert_allclose(digits.answer(stage), digits.answer(digits.base), rtol=1e-5)
    assert np.array_equal(digits.answer(stage), digits.expected({}))


def test_tensors_of_other_stages_change_the_number_only(digits: Served) -> None:
    assert not digits.live.needs_artifact({"of another stage": np.ones(3, np.float32)})
    stage = digits.version(7, {"of another stage": np.ones(3, np.float32)})
    assert stage.weights_version == 7
    assert stage.runtime is digits.base.runtime


def refused() -> Mapping[str, tuple[DeltaFault, Tensors]]:
    weight = find_head(DIGITS.files["stage-2.onnx"]).weight
    shape = OnnxFile(DIGITS.files["stage-2.onnx"]).specs[weight].shape
    return {
        "shape": (DeltaFault.SHAPE, {weight: np.zeros(shape[::-1], np.float32)}),
        "datatype": (DeltaFault.DATATYPE, {weight: np.zeros(shape, np.float64)}),
        "not a number": (DeltaFault.NOT_FINITE, {weight: np.full(shape, np.nan, np.float32)}),
        "overflow": (DeltaFault.RESULT, {weight: np.full(shape, 3e38, np.float32)}),
    }


@pytest.mark.parametrize("what", refused())
def test_wrong_tensors_are_refused_and_the_next_version_is_as_if_they_never_came(
    digits: Served, what: str
) -> None:
    fault, tensors = refused()[what]
    serving = digits.version(1, digits.head_tensors(1))
    with pytest.raises(DeltaError) as error:
        digits.version(2, tensors, serving)
    assert error.value.fault is fault
    assert np.array_equal(digits.answer(serving), digits.expected(digits.head_tensors(1)))
    third = digits.version(3, digits.head_tensors(3), serving)
    assert np.array_equal(digits.answer(third), digits.expected(digits.head_tensors(3)))


def test_weights_are_copied_so_that_their_sender_may_change_them(digits: Served) -> None:
    for tensors in (digits.head_tensors(1), digits.changed(CONV)):
        stage = digits.version(1, tensors)
        expected = digits.answer(stage)
        for array in tensors.values():
            array[...] = 0
        assert np.array_equal(digits.answer(stage), expected)


def test_a_stage_without_layers_has_no_weights_to_change() -> None:
    empty = StageRuntime(DIGITS.manifest.shard(2), None, batchable=True)
    with pytest.raises(ModelError, match="no weights"):
        LiveWeights(empty, DIGITS.files["stage-2.onnx"])


def test_a_session_cannot_be_made_without_the_artifact_that_it_needs(digits: Served) -> None:
    for tensors in (digits.head_tensors(1), digits.changed(CONV)):
        assert digits.live.needs_artifact(tensors)
        with pytest.raises(ModelError, match="artifact"):
            digits.live.with_weights(1, tensors, digits.base)


def test_runs_beside_changes_answer_with_one_version_each(digits: Served) -> None:
    """Four threads run without pause while weights change: no result is a mixture."""
    versions = [digits.changed(CONV, f) | digits.head_tensors(int(f * 10)) for f in (1.1, 1.2, 1.3)]
    expected = {n: digits.expected(tensors) for n, tensors in enumerate(versions, start=1)}
    serving = [digits.version(1, versions[0])]
    wrong: list[int] = []
    seen: set[int] = set()
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            stage = serving[0]
            if not np.array_equal(digits.answer(stage), expected[stage.weights_version]):
                wrong.append(stage.weights_version)
            seen.add(stage.weights_version)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for n in (2, 3):
        serving[0] = digits.version(n, versions[n - 1], serving[0])
    ended.wait(0.2)
    ended.set()
    for thread in threads:
        thread.join(10)
    assert not wrong
    assert 3 in seen


def test_requests_of_a_batch_are_computed_with_one_version() -> None:
    served = Served(DIGITS)
    images = digits_heldout()[0]
    first = load_stage(DIGITS.manifest, 1, DIGITS.files.__getitem__)
    features = [first.run({"image": images[i : i + 1]}) for i in range(4)]
    stage = served.version(1, served.head_tensors(5))
    together = stage.run_batch(features)
    for one, alone in zip(together, features, strict=True):
        np.testing.assert_allclose(one["logits"], stage.run(alone)["logits"], rtol=1e-4, atol=1e-5)
