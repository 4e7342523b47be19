"""The mesh answers with the results of the whole model."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import numpy as np
import pytest
from support.commands import ROOT
from support.meshes import add_model, close, digits, dismiss, split_digits, whole
from zoo.builders import transformer_encoder

from nodes.up.mesh import LocalMesh
from shards.split.split import split

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

MODELS = Path(os.environ.get("SWARM_TEST_MODELS") or ROOT.parent / "shared" / "models")
ULTRAFACE = MODELS / "ultraface" / "version-RFB-320.onnx"


async def test_every_held_out_digit_gets_the_whole_models_answer(digits_mesh: LocalMesh) -> None:
    images, logits = digits()
    order = iter(range(len(images)))
    wrong: list[int] = []
    done: list[int] = []

    async def ask() -> None:
        for at in order:
            result = await digits_mesh.mesh.infer("digits", {"image": images[at : at + 1]})
            done.append(at)
            if not close(result.outputs["logits"], logits[at : at + 1]):
                wrong.append(at)

    await asyncio.gather(*(ask() for _ in range(8)))
    assert wrong == []
    assert sorted(done) == list(range(len(images)))


async def test_a_request_passes_each_stage_once_and_tells_so(digits_mesh: LocalMesh) -> None:
    images, _ = digits()
    result = await digits_mesh.mesh.infer("digits", {"image": images[:1]})
    assert [hop.stage for hop in result.hops] == [1, 2, 3]
    nodes = [hop.node for hop in result.hops]
    assert len(set(nodes)) == 3, "each stage ran in a process of its own"
    assert all(node in digits_mesh.statuses for node in nodes)
    assert not result.degraded


async def test_a_batch_of_images_is_answered_row_by_row(digits_mesh: LocalMesh) -> None:
    images, logits = digits()
    result = await digits_mesh.mesh.infer("digits", {"image": images[:7]})
    assert close(result.outputs["logits"], logits[:7])


async def test_a_face_detector_of_the_world_gives_the_whole_models_boxes(
    digits_mesh: LocalMesh,
) -> None:
    if not ULTRAFACE.exists():
        pytest.skip(f"{ULTRAFACE} is absent: set SWARM_TEST_MODELS to the folder of models")
    model = ULTRAFACE.read_bytes()
    # In a thread: the loop answers the server's pings.
    result = await asyncio.to_thread(
        split, model, name="ultraface", stages=2, bandwidth=1e6, profile=False
    )
    (name,) = (spec.name for spec in result.manifest.inputs)
    feeds = [
        {name: np.random.default_rng(seed).uniform(-1, 1, (1, 3, 240, 320)).astype(np.float32)}
        for seed in range(3)
    ]
    expected = await asyncio.to_thread(whole, model, feeds)
    nodes = await add_model(digits_mesh, result, "shard-1", "shard-2")
    try:
        for feed, want in zip(feeds, expected, strict=True):
            answer = await digits_mesh.mesh.infer("ultraface", feed, 20.0)
            assert answer.outputs.keys() == want.keys()
            assert all(close(answer.outputs[key], want[key]) for key in want)
    finally:
        await dismiss(digits_mesh, nodes)


async def test_a_cut_of_several_tensors_loses_none_of_them(digits_mesh: LocalMesh) -> None:
    model = transformer_encoder(layers=2, d_model=32, heads=2, seq=16, vocabulary=100)
    result = split(model, name="encoder", cuts=["layer_1.hidden"], bandwidth=1e6, profile=False)
    assert len(result.manifest.shards[0].sends) > 1, "this cut carries several tensors"
    random = np.random.default_rng(7)
    feeds = [
        {
            "tokens": random.integers(0, 100, (1, 16), dtype=np.int64),
            "attention_mask": (np.arange(16) < used).astype(np.int64)[None],
        }
        for used in (16, 9, 1)
    ]
    expected = whole(model, feeds)
    nodes = await add_model(digits_mesh, result, "shard-1", "shard-2")
    try:
        for feed, want in zip(feeds, expected, strict=True):
            answer = await digits_mesh.mesh.infer("encoder", feed)
            assert close(answer.outputs["logits"], want["logits"])
    finally:
        await dismiss(digits_mesh, nodes)


async def test_the_edges_layers_run_at_the_node_that_answers(digits_mesh: LocalMesh) -> None:
    result = split_digits(stages=2, edge_layers=2)
    assert result.manifest.shards[0].stage == 0
    images, logits = digits()
    nodes = await add_model(digits_mesh, result, "shard-1", "shard-2")
    try:
        for at in range(5):
            answer = await digits_mesh.mesh.infer("digits-edge", {"image": images[at : at + 1]})
            assert close(answer.outputs["logits"], logits[at : at + 1])
            assert [hop.stage for hop in answer.hops] == [0, 1, 2]
            role = digits_mesh.statuses[answer.hops[0].node]["role"]
            assert role in ("shard-1", "gateway")
    finally:
        await dismiss(digits_mesh, nodes)
