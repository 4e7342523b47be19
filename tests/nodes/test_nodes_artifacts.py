"""A node's artifacts: from the host's cache where there is one, verified in either case."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from nodes.versions.artifacts import NodeArtifacts
from shards.errors import ArtifactError
from shards.manifest import Manifest, SealedFile
from swarm.errors import BadKey, BadSeal
from swarm.models.registry import Registry
from swarm.security.sealed import ModelKey

DATA = b"the layers of a stage" * 1000


class Store:
    """A registry with one file; counts how often it was asked."""

    def __init__(self) -> None:
        self.data = DATA
        self.asked = 0

    async def artifact(self, model: str, version: str, name: str) -> AsyncIterator[bytes]:
        self.asked += 1
        yield self.data[:100]
        yield self.data[100:]

    async def recipe(self, model: str, version: str, name: str) -> None:
        return None

    async def fetch(self, model: str, version: str, names: list[str]) -> dict[str, bytes]:
        return {n: b"".join([c async for c in self.artifact(model, version, n)]) for n in names}


def manifest() -> Manifest:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1]}
    shard = {
        "stage": 1,
        "start": 0,
        "end": 1,
        "file": "stage-1.onnx",
        "bytes": len(DATA),
        "sha256": hashlib.sha256(DATA).hexdigest(),
        "carries": [],
        "compute_ms": 1.0,
        "inputs": [tensor],
        "outputs": [tensor | {"name": "y"}],
        "receives": [tensor],
        "sends": [tensor | {"name": "y"}],
    }
    document: dict[str, Any] = {
        "format": 1,
        "model": "m",
        "version": "1",
        "created": "",
        "opset": 17,
        "source_sha256": "0" * 64,
        "fusion": "basic",
        "batchable": False,
        "lighter": None,
        "inputs": [tensor],
        "outputs": [tensor | {"name": "y"}],
        "shards": [shard],
    }

    return Manifest.from_json(json.dumps(document).encode())


def node(store: Store, folder: Path | str) -> NodeArtifacts:
    return NodeArtifacts(cast(Registry, store), str(folder), 1 << 20)


async def test_a_second_node_of_the_host_and_a_restart_fetch_nothing(tmp_path: Path) -> None:
    store = Store()
    for _ in range(3):
        file = await node(store, tmp_path / "cache").get(manifest(), "stage-1.onnx")
        assert isinstance(file, Path)
        assert file.read_bytes() == DATA
    assert store.asked == 1


async def test_without_a_cache_each_node_fetches_into_memory(tmp_path: Path) -> None:
    store = Store()
    for _ in range(2):
        assert await node(store, "").get(manifest(), "stage-1.onnx") == DATA
    assert store.asked == 2
    assert await node(store, "").open() is None


@pytest.mark.parametrize("kept", [True, False])
async def test_a_file_that_is_not_the_manifests_is_refused(tmp_path: Path, kept: bool) -> None:
    store = Store()
    store.data = DATA + b"\0"
    with pytest.raises(ArtifactError, match=r"stage-1\.onnx"):
        await node(store, tmp_path / "cache" if kept else "").get(manifest(), "stage-1.onnx")


async def test_a_cache_that_cannot_be_made_costs_a_warning_and_no_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    artifacts = node(Store(), tmp_path / "file" / "cache")
    assert await artifacts.open() is None
    assert await artifacts.get(manifest(), "stage-1.onnx") == DATA
    assert caplog.text.count("no cache of artifacts") == 1


async def test_a_cache_that_becomes_unwritable_costs_a_warning_and_no_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    artifacts = node(Store(), tmp_path / "cache")
    await artifacts.open()
    parts = tmp_path / "cache" / "parts"
    parts.rmdir()
    parts.touch()
    assert await artifacts.get(manifest(), "stage-1.onnx") == DATA
    assert "not kept in the cache" in caplog.text


async def test_a_thread_gets_the_same_files(tmp_path: Path) -> None:
    fetch = node(Store(), tmp_path / "cache").fetcher(manifest())
    file = await asyncio.to_thread(fetch, "stage-1.onnx")
    assert isinstance(file, Path)
    assert file.read_bytes() == DATA


KEY = ModelKey(bytes(range(32)))


def sealed_node(store: Store, folder: Path | str, key: ModelKey | None) -> NodeArtifacts:
    return NodeArtifacts(cast(Registry, store), str(folder), 1 << 20, key)


def contents(folder: Path) -> list[bytes]:
    """Of all files below a folder that are not empty."""
    return [data for path in folder.rglob("*") if path.is_file() and (data := path.read_bytes())]


@pytest.fixture
def sealed() -> tuple[Store, Manifest]:
    """A store with the encrypted file, and its manifest."""
    store = Store()
    store.data = b"".join(KEY.seal([DATA]))
    digest = hashlib.sha256(store.data).hexdigest()
    hashes = {"stage-1.onnx": SealedFile(digest, len(store.data))}
    return store, Manifest.from_json(replace(manifest(), sealed=hashes).to_json())


@pytest.mark.parametrize("kept", [True, False])
async def test_an_encrypted_file_is_opened_in_memory_and_kept_as_it_came(
    tmp_path: Path, sealed: tuple[Store, Manifest], kept: bool
) -> None:
    store, version = sealed
    artifacts = sealed_node(store, tmp_path / "cache" if kept else "", KEY)
    assert await artifacts.get(version, "stage-1.onnx") == DATA
    assert await artifacts.folders(version) is None, "nothing is made of it on the disk"
    assert contents(tmp_path) == ([store.data] if kept else [])


@pytest.mark.parametrize("kept", [True, False])
async def test_an_encrypted_file_that_was_changed_is_refused(
    tmp_path: Path, sealed: tuple[Store, Manifest], kept: bool
) -> None:
    store, version = sealed
    store.data = store.data[:-1] + bytes([store.data[-1] ^ 1])
    artifacts = sealed_node(store, tmp_path / "cache" if kept else "", KEY)
    with pytest.raises((ArtifactError, BadSeal), match=r"stage-1\.onnx"):
        await artifacts.get(version, "stage-1.onnx")


async def test_an_encrypted_file_without_its_key_names_the_flag(
    sealed: tuple[Store, Manifest],
) -> None:
    store, version = sealed
    with pytest.raises(BadKey, match="--model-key"):
        await sealed_node(store, "", None).get(version, "stage-1.onnx")
    with pytest.raises(BadSeal, match="--model-key"):
        await sealed_node(store, "", ModelKey(bytes(32))).get(version, "stage-1.onnx")
