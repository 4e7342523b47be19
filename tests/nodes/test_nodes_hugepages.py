"""Huge pages for what a process has loaded, on the memory of this one."""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from nodes.life import hugepages
from nodes.life.hugepages import MADV_COLLAPSE, SETTING, collapse_memory

MB = 1 << 20


def resident() -> dict[str, int]:
    """Bytes by kind, of this process."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    return {name: int(rest.split()[0]) << 10 for name, rest in (line.split(":") for line in lines)}


def private(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def why_not() -> str:
    """Why this system has no huge pages for who asks, or ""."""
    if not sys.platform.startswith("linux"):
        return "huge pages are Linux's"
    try:
        if "[madvise]" not in (SETTING / "enabled").read_text():
            return "no process can choose here whether it gets huge pages"
        size = int((SETTING / "hpage_pmd_size").read_text())
    except OSError as error:
        return f"no transparent huge pages: {error}"
    memory = private(3 * size)
    memory.write(bytes(len(memory)))
    at = -(-ctypes.addressof(ctypes.c_char.from_buffer(memory)) // size) * size
    asked = ctypes.CDLL(None).madvise(ctypes.c_void_p(at), ctypes.c_size_t(size), MADV_COLLAPSE)
    return "the system knows no MADV_COLLAPSE, or has no huge page left" if asked else ""


huge = pytest.mark.skipif(bool(why_not()), reason=why_not())


@pytest.fixture
def memory() -> np.ndarray:
    """32 MB of private memory, of which nothing is resident, as words."""
    return np.frombuffer(private(32 * MB), np.uint64)


@huge
def test_what_is_loaded_is_the_same_in_huge_pages(memory: np.ndarray) -> None:
    memory[:] = np.arange(len(memory))
    before = resident()
    assert collapse_memory() >= 28 * MB  # its ends may be shared with others
    after = resident()
    assert after["AnonHugePages"] - before["AnonHugePages"] >= 28 * MB
    assert after["Rss"] - before["Rss"] < 8 * MB
    np.testing.assert_array_equal(memory, np.arange(len(memory)))


@huge
def test_once_more_asks_for_no_more_memory(memory: np.ndarray) -> None:
    memory[:] = 1
    first = collapse_memory()
    before = resident()["Rss"]
    assert collapse_memory() >= first - 4 * MB
    assert resident()["Rss"] - before < 8 * MB


@huge
def test_memory_that_is_hardly_used_is_not_filled(memory: np.ndarray) -> None:
    collapse_memory()  # what this process has
    memory[:: MB // 8] = 1  # two pages of each 2 MB
    before = resident()["Rss"]
    collapse_memory()
    assert resident()["Rss"] - before < 8 * MB
    assert memory.sum() == 32


@pytest.mark.parametrize(
    ("enabled", "size"),
    [
        ("always madvise [never]", "2097152"),
        ("always [madvise] never", "much"),
        ("", ""),
        (None, ""),
    ],
)
def test_without_huge_pages_nothing_happens(
    enabled: str | None, size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hugepages, "SETTING", tmp_path)
    monkeypatch.setattr(hugepages, "_collapse", lambda *_: pytest.fail("it was asked for"))
    if enabled is not None:
        (tmp_path / "enabled").write_text(enabled)
        (tmp_path / "hpage_pmd_size").write_text(size)
    assert collapse_memory() == 0


@huge
def test_a_system_that_refuses_is_no_error(
    memory: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory[:] = 1
    monkeypatch.setattr(hugepages, "MADV_COLLAPSE", 9999)  # as one that does not know it
    assert collapse_memory() == 0
