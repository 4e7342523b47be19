"""A node takes new weights: in all of its runtimes at once, or in none; and keeps them."""

from __future__ import annotations

import asyncio
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.waiting import eventually

import nodes.versions.live_weights
from nodes.config import NodeConfig
from nodes.stage.selftest import Known
from nodes.versions.artifacts import NodeArtifacts
from nodes.versions.live_weights import NodeWeights
from nodes.versions.loaded import Loaded
from shards.errors import ArtifactError, DeltaError, DeltaFault
from shards.runtimes.load import load_stage
from shards.runtimes.stage import StageRuntime
from shards.split.split import split
from shards.weights.onnx_file import OnnxFile
from shards.zoo import digits_heldout, digits_model
from swarm.errors import NotFound
from swarm.model import ModelInfo

SPLIT = split(digits_model(), name="digits", stages=2, edge_layers=4, profile=False)
IMAGES = digits_heldout()[0][:2]
LAST = OnnxFile(SPLIT.files["stage-2.onnx"])
EDGE = OnnxFile(SPLIT.files["stage-0.onnx"])
CONV = next(name for name in EDGE.specs if "_W_" in name)
Tensors = dict[str, np.ndarray]


class Registry:
    """Hands out the files of the split, and counts how often."""

    def __init__(self) -> None:
        self.fetched: list[str] = []
        self.files = dict(SPLIT.files)

    async def manifest(self, model: str, version: str) -> bytes:
        return SPLIT.manifest.to_json()

    async def fetch(self, model: str, version: str, names: list[str]) -> dict[str, bytes]:
        self.fetched += names
        return {name: self.files[name] for name in names}


def stage(number: int) -> StageRuntime:
    return load_stage(SPLIT.manifest, number, SPLIT.files.__getitem__, level="basic")


class Node:
    """A node that runs all layers of digits: two stages, and the edge's own."""

    def __init__(self) -> None:
        self.registry = Registry()
        mesh: Any = SimpleNamespace(registry=self.registry)
        artifacts = NodeArtifacts(mesh.registry, "", 0)
        config = NodeConfig(role="fallback", model="digits")
        self.weights = NodeWeights(mesh, artifacts, config)
        info = ModelInfo.from_manifest(SPLIT.manifest.to_json())
        self.loaded = Loaded(info, {1: stage(1), 2: stage(2)}, stage(0), None, 0.0)
        self.replaced: list[tuple[Any, Any]] = []
        self.loaded.on_replaced.append(lambda *what: self.replaced.append(what))
        self.weights.add(self.loaded)

    async def take(self, n: int, tensors: Tensors) -> bool:
        return await self.weights.take("digits", "1", n, tensors)

    def versions(self) -> dict[int, int]:
        return {k: s.weights_version for k, s in sorted(self.loaded.runtimes().items())}

    def answer(self) -> np.ndarray:
        tensors: Any = {"image": IMAGES}
        for number in (0, 1, 2):
            tensors = self.loaded.runtimes()[number].run(tensors)
        return tensors["logits"]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    # A test holds the sessions of before: no run of them is waited for.
    monkeypatch.setattr(nodes.versions.live_weights, "LONGEST_RUN", 0.0)
    return Node()


def head(factor: float) -> Tensors:
    """The head's weights and biases times a factor: so are the logits."""
    names = ("logits.weight", "logits.bias")
    return {name: LAST.weight(name) * np.float32(factor) for name in names}


async def test_all_runtimes_of_a_node_take_new_weights_at_once(node: Node) -> None:
    before = node.answer()
    assert await node.take(3, head(2.0))
    np.testing.assert_allclose(node.answer(), 2 * before, rtol=1e-5)
    assert node.versions() == {0: 3, 1: 3, 2: 3}
    assert (node.loaded.weights, node.weights.present("digits", "1")) == (3, 3)
    [(stages, known)] = node.replaced
    assert sorted(stages) == [0, 1, 2]
    assert list(known) == [2], "the others answer as before"
    model, inputs, outputs = known[2]
    assert model is node.loaded.stages[2]
    assert np.array_equal(outputs["logits"], model.run(inputs)["logits"])


async def test_weights_of_the_first_layers_reach_the_edges_runtime(node: Node) -> None:
    before = node.answer()
    await node.take(1, {CONV: EDGE.weight(CONV) * np.float32(0)})
    assert not np.allclose(node.answer(), before)
    await node.take(2, {})
    np.testing.assert_allclose(node.answer(), before, rtol=1e-5)
    assert node.versions() == {0: 2, 1: 2, 2: 2}


async def test_a_file_is_read_again_only_where_its_weights_change(node: Node) -> None:
    await node.take(1, head(2.0))
    assert sorted(node.registry.fetched) == ["stage-0.onnx", "stage-1.onnx", "stage-2.onnx"]
    await node.take(2, head(3.0))
    assert len(node.registry.fetched) == 3


async def test_weights_that_are_not_newer_change_nothing(node: Node) -> None:
    await node.take(4, head(2.0))
    present = dict(node.loaded.stages)
    assert not await node.take(4, head(3.0))
    assert not await node.take(3, head(3.0))
    assert node.loaded.stages == present


async def test_weights_of_a_version_that_is_not_loaded_are_passed_over(node: Node) -> None:
    assert not await node.weights.take("digits", "2", 1, head(2.0))
    node.weights.forget(node.loaded)
    assert not await node.take(1, head(2.0))
    assert node.weights.present("digits", "1") == 0


async def test_two_updates_at_once_end_with_the_newer_one(node: Node) -> None:
    before = node.answer()
    outcomes = await asyncio.gather(node.take(2, head(3.0)), node.take(1, head(2.0)))
    assert outcomes == [True, False]
    np.testing.assert_allclose(node.answer(), 3 * before, rtol=1e-5)


async def test_a_stage_that_comes_later_computes_with_the_present_weights(node: Node) -> None:
    before = node.answer()
    await node.weights.remove_stage(node.loaded, 2)
    assert (sorted(node.loaded.stages), node.loaded.known) == ([1], {})
    await node.take(5, head(2.0))
    more = Loaded(node.loaded.info, {2: stage(2)}, None, None, 0.0)
    await node.weights.add_stages(node.loaded, more)
    assert node.versions() == {0: 5, 1: 5, 2: 5}
    np.testing.assert_allclose(node.answer(), 2 * before, rtol=1e-5)
    assert node.loaded.known[2].model is node.loaded.stages[2]
    await node.take(6, head(3.0))
    np.testing.assert_allclose(node.answer(), 3 * before, rtol=1e-5)


async def test_no_stage_joins_a_version_that_serves_no_more(node: Node) -> None:
    node.weights.forget(node.loaded)
    more = Loaded(node.loaded.info, {2: stage(2)}, None, None, 0.0)
    with pytest.raises(NotFound):
        await node.weights.add_stages(node.loaded, more)


async def test_what_was_handed_over_may_be_changed_afterwards(node: Node) -> None:
    tensors = head(2.0)
    await node.take(1, tensors)
    before = node.answer()
    for array in tensors.values():
        array[...] = 0
    assert np.array_equal(node.answer(), before)


WRONG: dict[str, tuple[DeltaFault, Tensors]] = {
    "shape": (DeltaFault.SHAPE, {"logits.bias": np.zeros(11, np.float32)}),
    "datatype": (DeltaFault.DATATYPE, {"logits.bias": np.zeros(10, np.float64)}),
    "not finite": (DeltaFault.NOT_FINITE, {"logits.bias": np.full(10, np.inf, np.float32)}),
    "result": (
        DeltaFault.RESULT,
        {"logits.weight": np.full(LAST.specs["logits.weight"].shape, 3e38, np.float32)},
    ),
}


@pytest.mark.parametrize("what", WRONG)
async def test_wrong_weights_are_refused_by_the_whole_node(node: Node, what: str) -> None:
    fault, tensors = WRONG[what]
    await node.take(1, head(2.0))
    before, present = node.answer(), node.loaded.runtimes()
    with pytest.raises(DeltaError) as refused:
        await node.take(2, tensors | {CONV: EDGE.weight(CONV)})
    assert refused.value.fault is fault
    assert node.loaded.runtimes() == present, "neither the edge's runtime was replaced"
    assert np.array_equal(node.answer(), before)
    assert node.weights.present("digits", "1") == 1
    assert await node.take(2, head(3.0)), "the number is free for right ones"


async def test_weights_that_were_learned_on_another_base_are_refused(node: Node) -> None:
    with pytest.raises(DeltaError) as refused:
        await node.weights.take("digits", "1", 1, head(2.0), base="ab" * 32)
    assert refused.value.fault is DeltaFault.BASE
    assert node.versions() == {0: 0, 1: 0, 2: 0}
    right = SPLIT.manifest.shard(2).sha256
    assert await node.weights.take("digits", "1", 1, head(2.0), base=right)


async def test_a_change_that_is_cancelled_does_not_disturb_the_next_one(node: Node) -> None:
    before = node.answer()
    first = asyncio.ensure_future(node.take(1, {CONV: EDGE.weight(CONV) * np.float32(2)}))
    await eventually(lambda: node.registry.fetched or first.done())  # its thread is next
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert await node.take(2, head(2.0))
    np.testing.assert_allclose(node.answer(), 2 * before, rtol=1e-5)


async def test_a_file_with_another_hash_is_refused(node: Node) -> None:
    node.registry.files["stage-2.onnx"] = SPLIT.files["stage-2.onnx"] + b"\0"
    with pytest.raises(ArtifactError, match="SHA-256"):
        await node.take(1, head(2.0))
    assert node.versions() == {0: 0, 1: 0, 2: 0}


async def test_a_session_that_serves_no_more_is_let_go(node: Node) -> None:
    for n, factor in enumerate((2.0, 3.0), start=1):
        node.replaced.clear()
        sessions = [weakref.ref(runtime.runtime) for runtime in node.loaded.runtimes().values()]
        await node.take(n, {CONV: EDGE.weight(CONV) * np.float32(factor)})
        before = dict(zip((1, 2, 0), sessions, strict=True))
        await eventually(lambda gone=before[0]: gone() is None)
        assert before[1]() is not None, "only the edge's weights changed"
        assert before[2]() is not None


class Server:
    """As much of a stage's server as gets a new session."""

    def __init__(self, node: Node, number: int) -> None:
        self.info, self.stage = node.loaded.info, number
        self.models: list[StageRuntime] = []
        self.known: list[Known | None] = []

    def replace_model(self, model: StageRuntime) -> None:
        self.models.append(model)

    def take_weights(self, model: StageRuntime, known: Known | None) -> None:
        self.models.append(model)
        self.known.append(known)


@pytest.mark.parametrize("changed", [head(2.0), {CONV: EDGE.weight(CONV) * np.float32(0.5)}])
async def test_a_session_that_is_rebuilt_gets_the_present_weights(
    node: Node, changed: Tensors
) -> None:
    await node.take(5, changed)
    expected = node.answer()
    server, old = Server(node, 2), node.loaded.stages[2]
    await node.weights.renew(server, stage(2))  # type: ignore[arg-type]
    assert server.models == [node.loaded.stages[2]]
    # What later self-tests expect is this session's own answer, and none of the one before.
    assert all(known is None or known.model is server.models[0] for known in server.known)
    assert len(server.known) == ("logits.weight" in changed)
    assert node.loaded.stages[2].runtime is not old.runtime
    assert node.versions() == {0: 5, 1: 5, 2: 5}
    assert np.array_equal(node.answer(), expected)
    await node.take(6, head(3.0))
    assert node.loaded.stages[2].weights_version == 6


async def test_who_waits_for_a_weight_version_goes_on_when_it_comes(node: Node) -> None:
    waiting = asyncio.ensure_future(node.loaded.reached(2, 20.0))
    await node.take(1, head(2.0))
    assert not waiting.done()
    await node.take(2, head(3.0))
    assert await waiting
    assert not await node.loaded.reached(3, 0.01)
