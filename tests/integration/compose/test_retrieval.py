"""Answers by what is near: an index as a part of a composition, on real nodes, by commands."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from composed import cache_first, gallery
from support.commands import said
from support.compositions import compose, composed_mesh
from support.meshes import READY, close, digits, dismiss
from support.waiting import eventually

import swarm
from nodes.up.mesh import LocalMesh

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]
IMAGES, LOGITS = digits()
KNOWN = 40  # of the images: their answers are in the index


async def command(*words: str) -> str:
    told = await asyncio.to_thread(said, *words)
    assert told.code == 0, told.stderr
    return told.stdout + told.stderr


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def local(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalMesh]:
    folder = tmp_path_factory.mktemp("retrieval")
    shown = await command(
        "compose",
        "index",
        str(gallery(folder, KNOWN)),
        "--metric",
        "l2sq",
        "-o",
        str(folder / "gallery"),
    )
    assert "40 vectors of 10" in shown
    async with composed_mesh(folder) as made:
        await compose(made, folder, cache_first("1e-5"), "retrieval")
        made.start("shard-1", "retrieval")
        await made.ready(READY)
        yield made


async def test_what_is_near_is_answered_by_what_is_stored_and_the_rest_by_the_large_model(
    local: LocalMesh,
) -> None:
    hits = 0
    for place in (*range(10), *range(KNOWN, KNOWN + 10)):
        answer = await local.mesh.infer("retrieval", {"image": IMAGES[place : place + 1]}, 20.0)
        assert close(answer.outputs["logits"], LOGITS[place : place + 1])
        is_hit = "large" not in answer.hops[0].extra["parts"]
        assert is_hit == (float(answer.outputs["distance"][0]) < 1e-5)
        if place < KNOWN:
            assert is_hit
            assert answer.outputs["label"].tolist() == [100 + place]
        hits += is_hit
    assert 10 <= hits < 20


async def test_the_index_is_checked_with_the_composition(local: LocalMesh, tmp_path: Path) -> None:
    mesh = ("--nats", local.url, "--mesh", local.name)
    file = tmp_path / "retrieval.toml"
    file.write_text(cache_first("1e-5"), encoding="utf-8")
    told = await asyncio.to_thread(said, "compose", "check", str(file), *mesh)
    assert told.code != 0
    assert "swarm compose index" in told.stderr
    wrong = tmp_path / "wrong.npz"
    np.savez(wrong, vectors=np.ones((3, 4), np.float32))
    await command("compose", "index", str(wrong), "-o", str(tmp_path / "gallery"))
    told = await asyncio.to_thread(said, "compose", "check", str(file), *mesh)
    assert told.code != 0
    assert "known" in told.stderr
    again = await asyncio.to_thread(
        said, "compose", "index", str(wrong), "-o", str(tmp_path / "gallery")
    )
    assert again.code != 0
    assert "exists" in again.stderr
    np.savez(wrong, vectors=np.full((3, 4), np.nan, np.float32))
    told = await asyncio.to_thread(said, "compose", "index", str(wrong), "-o", str(tmp_path / "n"))
    assert told.code != 0
    assert "not finite" in told.stderr
    assert set(os.listdir(tmp_path)) == {"gallery", "retrieval.toml", "wrong.npz"}


async def test_a_node_without_the_library_says_which_extra_and_does_not_take_the_version(
    local: LocalMesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = tmp_path / "usearch"
    lacking.mkdir()
    (lacking / "__init__.py").write_text(
        'raise ModuleNotFoundError("No module named \'usearch\'", name="usearch")\n',
        encoding="utf-8",
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # of the node; commands run in this process
    for module in ("usearch", "usearch.index"):
        monkeypatch.setitem(sys.modules, module, None)
    told = await asyncio.to_thread(
        said, "compose", "index", str(gallery(tmp_path, KNOWN)), "-o", str(tmp_path / "i")
    )
    assert told.code != 0
    assert "swarm-mesh[retrieval]" in told.stderr
    node = local.start("shard-1", "retrieval")
    try:
        assert node.log_path is not None
        log = node.log_path
        await eventually(
            lambda: "swarm-mesh[retrieval]" in log.read_text(encoding="utf-8"), "it says so", READY
        )
        answer = await local.mesh.infer("retrieval", {"image": IMAGES[:1]}, 20.0)
        assert answer.status is swarm.errors.Status.OK
    finally:
        await dismiss(local, [node])


async def test_the_distance_from_which_the_large_model_is_asked_is_fitted(
    local: LocalMesh, tmp_path: Path
) -> None:
    index = ("--metric", "l2sq", "-o", str(tmp_path / "gallery"))
    await command("compose", "index", str(gallery(tmp_path, KNOWN)), *index)
    file, samples = tmp_path / "retrieval.toml", tmp_path / "samples.npz"
    file.write_text(cache_first("1e9"), encoding="utf-8")
    np.savez(samples, image=IMAGES[:80], labels=LOGITS[:80].argmax(axis=1))
    mesh = ("--nats", local.url, "--mesh", local.name, "--json")
    asked = ("--samples", str(samples), "--judge", "logits", "--accuracy", "1")
    told = json.loads(await command("compose", "fit", str(file), *asked, *mesh))
    assert told["ways"]["stored"]["accuracy"] < 1 == told["chosen"]["accuracy"]
    assert 0.4 < told["chosen"]["share"] < 1, "what is in the index is not asked anew"
