"""What nodes make of encrypted models, on the disk: opened by the model key only, and unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodes.versions.sealed_cache import SealedCache
from swarm.models.artifact_cache import ArtifactCache
from swarm.security.sealed import ModelKey

SECRET = b"weights that nobody else may read" * 100_000
KEY, OTHER_KEY = ModelKey(bytes(32)), ModelKey(bytes(range(32)))


@pytest.fixture
def cache(tmp_path: Path) -> ArtifactCache:
    made = ArtifactCache(tmp_path / "cache")
    made.open()
    return made


def made(of: SealedCache, name: str = "a" * 64, content: bytes = SECRET) -> tuple[bytes, bool]:
    """The block, and whether it had to be made."""
    calls: list[bytes] = []

    def make() -> list[bytes]:
        calls.append(content)
        return [content[:1000], content[1000:]]

    block = bytes(of.kept(name, make))
    return block, bool(calls)


def blocks(cache: ArtifactCache) -> list[Path]:
    return [file for file in cache.folder.rglob("*") if file.is_file()]


def test_a_block_is_made_once_and_is_on_the_disk_encrypted(cache: ArtifactCache) -> None:
    assert made(SealedCache(cache, KEY)) == (SECRET, True)
    assert made(SealedCache(cache, KEY)) == (SECRET, False)
    assert len(blocks(cache)) == 1
    assert all(SECRET[:32] not in file.read_bytes() for file in blocks(cache))


@pytest.mark.parametrize("at", [10, 200, 2_000_000, -1])
def test_a_block_that_was_altered_is_made_again(at: int, cache: ArtifactCache) -> None:
    made(SealedCache(cache, KEY))
    (file,) = blocks(cache)
    altered = bytearray(file.read_bytes())
    altered[at] ^= 1
    file.write_bytes(altered)
    assert made(SealedCache(cache, KEY)) == (SECRET, True)
    assert made(SealedCache(cache, KEY)) == (SECRET, False)


def test_a_block_that_was_emptied_is_made_again(cache: ArtifactCache) -> None:
    made(SealedCache(cache, KEY))
    (file,) = blocks(cache)
    file.write_bytes(b"")
    assert made(SealedCache(cache, KEY)) == (SECRET, True)


def test_a_block_in_the_place_of_another_is_not_taken_for_it(cache: ArtifactCache) -> None:
    sealed = SealedCache(cache, KEY)
    made(sealed)
    (first,) = blocks(cache)
    made(sealed, "b" * 64, b"another")
    (second,) = (file for file in blocks(cache) if file != first)
    second.write_bytes(first.read_bytes())
    assert made(sealed, "b" * 64, b"another") == (b"another", True)


def test_another_model_key_has_blocks_of_its_own(cache: ArtifactCache) -> None:
    made(SealedCache(cache, KEY))
    assert made(SealedCache(cache, OTHER_KEY), content=b"another")[1]
    assert made(SealedCache(cache, KEY)) == (SECRET, False)


def test_what_cannot_be_made_leaves_nothing(cache: ArtifactCache) -> None:
    def fail() -> list[bytes]:
        raise ValueError("no such model")

    with pytest.raises(ValueError, match="no such model"):
        SealedCache(cache, KEY).kept("a" * 64, fail)
    assert blocks(cache) == []
