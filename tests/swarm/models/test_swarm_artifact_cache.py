"""The cache of a host: entries are whole, made once, bounded, and only their user's."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import multiprocessing
import os
import random
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.waiting import GENEROUS

from swarm.errors import Unavailable
from swarm.models.artifact_cache import ArtifactCache, WrongBytes, default_folder
from swarm.models.recipes import Piece, Recipe, pieces_of

DATA = bytes(range(256)) * 1000
DIGEST = hashlib.sha256(DATA).hexdigest()


class Store:
    """An object store that counts how often it was asked."""

    def __init__(self, data: bytes = DATA) -> None:
        self.data = data
        self.asked = 0

    async def chunks(self) -> AsyncIterator[bytes]:
        self.asked += 1
        for start in range(0, len(self.data), 4096):
            await asyncio.sleep(0)
            yield self.data[start : start + 4096]


@pytest.fixture
def cache(tmp_path: Path) -> ArtifactCache:
    cache = ArtifactCache(tmp_path / "cache")
    cache.open()
    return cache


def files_of(cache: ArtifactCache, kind: str) -> list[Path]:
    return sorted((cache.folder / kind).iterdir())


async def test_an_artifact_is_fetched_once_by_all_who_want_it_at_a_time(tmp_path: Path) -> None:
    store = Store()
    caches = [ArtifactCache(tmp_path / "cache") for _ in range(4)]
    for cache in caches:
        cache.open()
    paths = await asyncio.gather(*(cache.artifact(DIGEST, store.chunks) for cache in caches))
    assert {path.read_bytes() for path in paths} == {DATA}
    assert store.asked == 1


@pytest.mark.parametrize("damage", [b"", DATA[:-1], b"\1" + DATA[1:]])
async def test_a_corrupt_or_half_written_artifact_is_fetched_again(
    cache: ArtifactCache, damage: bytes
) -> None:
    store = Store()
    path = await cache.artifact(DIGEST, store.chunks)
    path.write_bytes(damage)
    assert (await cache.artifact(DIGEST, store.chunks)).read_bytes() == DATA
    assert store.asked == 2


async def test_wrong_bytes_are_refused_and_not_kept(cache: ArtifactCache) -> None:
    with pytest.raises(WrongBytes, match=DIGEST):
        await cache.artifact(DIGEST, Store(DATA + b"\0").chunks)
    assert files_of(cache, "artifacts") == files_of(cache, "parts") == []


async def test_a_transfer_that_breaks_off_leaves_nothing(cache: ArtifactCache) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield DATA[:100]
        raise Unavailable("the connection was lost")

    with pytest.raises(Unavailable):
        await cache.artifact(DIGEST, broken)
    assert files_of(cache, "artifacts") == files_of(cache, "parts") == []


def recipe_of(data: bytes, length: int = 10_000) -> Recipe:
    cut = [data[start : start + length] for start in range(0, len(data), length)]
    pairs = ((hashlib.sha256(piece).hexdigest(), len(piece)) for piece in cut)
    return Recipe("n", length, ((1, len(cut)),), tuple(pieces_of(pairs)))


class Parts:
    """Gives parts of an artifact, breaks off after `limit` bytes, and counts what it gave."""

    def __init__(self, data: bytes, limit: int = 1 << 30) -> None:
        self.data, self.left, self.given = data, limit, 0

    async def __call__(self, begin: int, end: int) -> AsyncIterator[bytes]:
        for start in range(begin, end, 5000):
            chunk = self.data[start : min(end, start + 5000)]
            if self.left < len(chunk):
                raise Unavailable("the connection was lost")
            self.left -= len(chunk)
            self.given += len(chunk)
            await asyncio.sleep(0)
            yield chunk


RANDOM = random.Random(7).randbytes(200_000)


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def test_pieces_that_lie_here_are_not_fetched_again(cache: ArtifactCache) -> None:
    parts = Parts(RANDOM)
    first = await cache.assembled(digest_of(RANDOM), recipe_of(RANDOM), parts)
    assert (first.made, first.fetched, first.path.read_bytes()) == (True, 200_000, RANDOM)
    moved = b"n" * 10_000 + RANDOM[100_000:] + RANDOM[:50_000]
    second = await cache.assembled(digest_of(moved), recipe_of(moved), Parts(moved))
    assert (second.fetched, second.path.read_bytes()) == (10_000, moved)
    again = await cache.assembled(digest_of(moved), recipe_of(moved), Parts(moved, limit=0))
    assert (again.made, again.fetched) == (False, 0)


async def test_a_transfer_that_broke_off_goes_on_where_it_was(cache: ArtifactCache) -> None:
    digest, recipe = digest_of(RANDOM), recipe_of(RANDOM)
    with pytest.raises(Unavailable):
        await cache.assembled(digest, recipe, Parts(RANDOM, limit=155_000))
    assert files_of(cache, "artifacts") == [], "half an artifact is none"
    rest = Parts(RANDOM)
    assert (await cache.assembled(digest, recipe, rest)).path.read_bytes() == RANDOM
    assert rest.given <= 200_000 - 150_000
    assert files_of(cache, "parts") == files_of(cache, "locks") == []


async def test_a_recipe_of_another_file_is_refused_and_leaves_nothing(cache: ArtifactCache) -> None:
    with pytest.raises(WrongBytes):
        await cache.assembled(DIGEST, recipe_of(RANDOM), Parts(RANDOM))
    with pytest.raises(WrongBytes):
        await cache.assembled(digest_of(RANDOM), recipe_of(RANDOM), Parts(RANDOM[:150_000]))
    assert files_of(cache, "artifacts") == files_of(cache, "parts") == []


async def test_a_disk_without_the_room_is_an_error_before_anything_is_fetched(
    cache: ArtifactCache,
) -> None:
    parts = Parts(RANDOM)
    huge = Recipe("n", 1 << 40, ((1, 1 << 20),), (Piece(DIGEST, 0, 1 << 60),))
    with pytest.raises(OSError, match="make room"):
        await cache.assembled(DIGEST, huge, parts)
    assert parts.given == 0
    assert files_of(cache, "parts") == []


async def test_a_damaged_piece_of_an_older_artifact_is_fetched(cache: ArtifactCache) -> None:
    first = await cache.assembled(digest_of(RANDOM), recipe_of(RANDOM), Parts(RANDOM))
    first.path.write_bytes(b"?" + RANDOM[1:])
    moved = RANDOM[:50_000]
    second = await cache.assembled(digest_of(moved), recipe_of(moved), Parts(moved))
    assert (second.fetched, second.path.read_bytes()) == (10_000, moved)


async def test_two_nodes_of_a_host_put_an_artifact_together_once(tmp_path: Path) -> None:
    caches = [ArtifactCache(tmp_path / "cache") for _ in range(4)]
    for cache in caches:
        cache.open()
    parts, recipe = Parts(RANDOM), recipe_of(RANDOM)
    found = await asyncio.gather(
        *(cache.assembled(digest_of(RANDOM), recipe, parts) for cache in caches)
    )
    assert [each.path.read_bytes() for each in found] == [RANDOM] * 4
    assert sum(each.made for each in found) == 1
    assert parts.given == len(RANDOM)


async def test_an_artifact_is_not_kept_waiting_by_another_one(cache: ArtifactCache) -> None:
    """Nor where their hashes begin alike."""
    candidates = sorted((bytes([n]) * 10 for n in range(200)), key=digest_of)
    alike = itertools.pairwise(candidates)
    many = next([a, b] for a, b in alike if digest_of(a)[:2] == digest_of(b)[:2])
    gate = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        await gate.wait()
        yield many[0]

    first = asyncio.create_task(cache.artifact(digest_of(many[0]), slow))
    async with asyncio.timeout(GENEROUS):
        for data in many[1:]:
            await cache.artifact(digest_of(data), Store(data).chunks)
    gate.set()
    assert (await first).read_bytes() == many[0]


def test_the_folder_and_its_files_are_for_one_user_alone(cache: ArtifactCache) -> None:
    path = asyncio.run(cache.artifact(DIGEST, Store().chunks))
    for entry in (cache.folder, path):
        assert stat.S_IMODE(entry.stat().st_mode) & 0o077 == 0


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="chmod 700"):
        ArtifactCache(folder).open()


def test_a_path_that_is_no_folder_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        ArtifactCache(tmp_path / "file").open()


def test_parts_that_an_ended_process_left_are_removed(cache: ArtifactCache) -> None:
    old, young = cache.folder / "parts" / "old", cache.folder / "parts" / "young"
    for part in (old, young):
        part.write_bytes(b"x")
    os.utime(old, (0, 0))
    cache.open()
    assert files_of(cache, "parts") == [young]


def make(content: bytes, made: list[int]) -> Any:
    def fill(folder: Path) -> None:
        made.append(1)
        (folder / "weights.bin").write_bytes(content)

    return fill


def test_a_folder_is_made_once_and_again_when_a_file_of_it_is_changed(
    cache: ArtifactCache,
) -> None:
    made: list[int] = []
    folder = cache.made("k1", make(b"weights", made))
    assert (cache.made("k1", make(b"weights", made)) / "weights.bin").read_bytes() == b"weights"
    assert len(made) == 1
    (folder / "weights.bin").write_bytes(b"wEights")
    assert (cache.made("k1", make(b"weights", made)) / "weights.bin").read_bytes() == b"weights"
    (folder / "hashes.json").write_text("[]")
    cache.made("k1", make(b"weights", made))
    assert len(made) == 3


def test_making_that_fails_leaves_nothing(cache: ArtifactCache) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_bytes(b"x")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        cache.made("k1", fail)
    assert files_of(cache, "made") == files_of(cache, "parts") == []


def _make_slowly(folder: str, log: str) -> None:
    def fill(part: Path) -> None:
        with open(log, "a") as file:
            file.write("made\n")
        (part / "a").write_bytes(DATA)

    cache = ArtifactCache(Path(folder))
    cache.open()
    cache.made("k1", fill)


def test_processes_that_want_the_same_folder_make_it_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    arguments = (str(tmp_path / "cache"), str(tmp_path / "log"))
    processes = [context.Process(target=_make_slowly, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(90)  # each imports this file, on a machine that may be busy
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert (tmp_path / "log").read_text() == "made\n"


def test_the_entries_unused_for_longest_go_first(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache", limit=350, loading_for=0.0)
    cache.open()
    made: list[int] = []
    for age, key in enumerate(("aa", "bb", "cc")):
        folder = cache.made(key, make(b"x" * 20, made))
        os.utime(folder, (age, age))
    size = sum(file.stat().st_size for file in folder.iterdir())
    assert 2 * size < 350 < 4 * size
    os.utime(cache.folder / "made" / "aa", (9, 9))
    cache.made("dd", make(b"x" * 20, made))
    kept = {path.name for path in files_of(cache, "made")}
    assert "dd" in kept
    assert "bb" not in kept
    assert "aa" in kept or len(kept) * size + size > 350


def test_a_removed_file_stays_readable_for_who_has_it_open(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache", limit=1, loading_for=0.0)
    cache.open()
    with (cache.made("aa", make(b"weights", [])) / "weights.bin").open("rb") as file:
        cache.made("bb", make(b"others", []))
        assert [path.name for path in files_of(cache, "made")] == ["bb"]
        assert file.read() == b"weights"


def test_an_entry_that_another_process_may_be_loading_stays(tmp_path: Path) -> None:
    now = 1000.0
    cache = ArtifactCache(tmp_path / "cache", limit=1, loading_for=60.0, clock=lambda: now)
    cache.open()
    cache.made("aa", make(b"weights", []))
    now = 1059.0
    cache.made("bb", make(b"others", []))
    assert {path.name for path in files_of(cache, "made")} == {"aa", "bb"}
    now = 1060.0
    cache.made("bb", make(b"others", []))
    assert {path.name for path in files_of(cache, "made")} == {"bb"}


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(1, 400), min_size=1, max_size=12), limit=st.integers(1, 1500))
def test_the_bytes_stay_below_the_limit_or_one_entry_is_left(
    sizes: list[int], limit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cache = ArtifactCache(tmp_path_factory.mktemp("bounded") / "cache", limit, loading_for=0.0)
    cache.open()
    for number, size in enumerate(sizes):
        data = number.to_bytes(2, "big") * size
        asyncio.run(cache.artifact(hashlib.sha256(data).hexdigest(), Store(data).chunks))
        entries = files_of(cache, "artifacts")
        assert len(entries) == 1 or sum(entry.stat().st_size for entry in entries) <= limit


def test_the_folder_follows_the_xdg_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_folder() == Path("/somewhere/swarm")
    for nothing in ("", "relative/is/ignored"):
        monkeypatch.setenv("XDG_CACHE_HOME", nothing)
        assert default_folder() == Path.home() / ".cache" / "swarm"
