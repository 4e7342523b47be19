"""New versions come to a device as what is new in them, whatever breaks on the way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from zoo.builders import mlp

import swarm
from nodes.up.embedded_server import EmbeddedServer
from nodes.versions.artifacts import NodeArtifacts
from shards.split.split import SplitResult, split
from shards.weights.chunks import piece_lengths
from swarm.errors import Unavailable
from swarm.models.recipes import Recipe
from swarm.models.registry import Registry

pytestmark = pytest.mark.integration


def version(number: str, stages: int, seed: int) -> SplitResult:
    """A perceptron of eight layers of 64 KB each; its head is drawn anew with the seed."""
    model = onnx.load_from_string(mlp(width=128, depth=8, classes=32))
    for tensor in model.graph.initializer:
        if "logits" in tensor.name:
            array = numpy_helper.to_array(tensor)
            drawn = np.random.default_rng(seed).standard_normal(array.shape)
            tensor.CopyFrom(numpy_helper.from_array(drawn.astype(array.dtype), tensor.name))
    data = model.SerializeToString()
    return split(data, name="m", version=number, stages=stages, profile=False)


@pytest.fixture
async def mesh() -> AsyncIterator[swarm.Mesh]:
    async with EmbeddedServer() as server, swarm.connect(server.url) as mesh:
        yield mesh


async def pushed(mesh: swarm.Mesh, result: SplitResult) -> SplitResult:
    await mesh.registry.push(result.manifest.to_json(), result.files, cut=piece_lengths)
    return result


class Node:
    """A device with a cache; keeps the events that it would publish."""

    def __init__(self, registry: Registry, cache: Path) -> None:
        self.told: list[dict[str, Any]] = []
        self._artifacts = NodeArtifacts(
            registry, str(cache), 1 << 30, None, lambda kind, detail: self.told.append(detail)
        )

    async def load(self, result: SplitResult) -> tuple[int, int]:
        """All files of a version: bytes that were fetched, of how many."""
        self.told.clear()
        for name in result.manifest.files():
            file = await self._artifacts.get(result.manifest, name)
            assert isinstance(file, Path)
            assert file.read_bytes() == result.files[name]
        return sum(d["fetched"] for d in self.told), sum(d["bytes"] for d in self.told)


async def test_a_new_head_that_is_split_anew_brings_the_head_alone(
    mesh: swarm.Mesh, tmp_path: Path
) -> None:
    first, second = version("1", 2, seed=1), version("2", 3, seed=2)
    await pushed(mesh, first)
    node = Node(mesh.registry, tmp_path / "cache")
    fetched, size = await node.load(first)
    assert fetched == size == sum(map(len, first.files.values()))
    await pushed(mesh, second)
    fetched, size = await node.load(second)
    head = 128 * 32 * 4
    assert head < fetched < head + 20_000, "the head, and the layers' names of the three files"
    assert size == sum(map(len, second.files.values()))


class BrokenLine(Registry):
    """A registry whose line breaks behind the fifth chunk that it brings."""

    async def part(self, recipe: Recipe, begin: int, end: int) -> AsyncIterator[Any]:  # type: ignore[override]
        left = 5
        async for chunk in super().part(recipe, begin, end):
            yield chunk
            left -= 1
            if not left:
                raise Unavailable("the connection was lost")


async def test_a_download_goes_on_behind_what_a_broken_line_brought(
    mesh: swarm.Mesh, tmp_path: Path
) -> None:
    result = await pushed(mesh, version("1", 1, seed=1))
    broken = Node(BrokenLine(mesh.link, mesh.subjects), tmp_path / "cache")
    with pytest.raises(Unavailable):
        await broken.load(result)
    assert list((tmp_path / "cache" / "artifacts").iterdir()) == [], "never half an artifact"
    fetched, size = await Node(mesh.registry, tmp_path / "cache").load(result)
    assert 0 < fetched <= size - 64 * 1024


async def test_a_version_without_recipes_is_fetched_as_a_whole(
    mesh: swarm.Mesh, tmp_path: Path
) -> None:
    result = await pushed(mesh, version("1", 1, seed=1))

    class Older(Registry):
        async def recipe(self, model: str, version: str, name: str) -> Recipe | None:
            return None

    fetched, size = await Node(Older(mesh.link, mesh.subjects), tmp_path / "cache").load(result)
    assert fetched == size


async def test_a_recipe_that_lies_costs_a_download_and_no_wrong_byte(
    mesh: swarm.Mesh, tmp_path: Path
) -> None:
    result = await pushed(mesh, version("1", 1, seed=1))

    class Lying(Registry):
        async def recipe(self, model: str, version: str, name: str) -> Recipe | None:
            true = await super().recipe(model, version, name)
            assert true is not None
            (first, count), *rest = true.messages
            return replace(true, messages=((first + 1, count), *rest))

    fetched, size = await Node(Lying(mesh.link, mesh.subjects), tmp_path / "cache").load(result)
    assert fetched == size
