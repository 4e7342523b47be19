from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.samehost.memory.arena import Arena

steps = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), st.integers(1, 400)),
        st.tuples(st.just("free"), st.integers(0, 50)),
        st.tuples(st.just("extend"), st.integers(1, 300)),
    ),
    max_size=60,
)


@given(steps)
def test_extents_never_overlap_and_no_byte_is_lost(todo: list[tuple[str, int]]) -> None:
    arena = Arena(100, 1000)
    held: list[tuple[int, int]] = []
    for action, number in todo:
        if action == "allocate":
            offset = arena.allocate(number)
            if offset is not None:
                held.append((offset, offset + number))
        elif action == "free" and held:
            start, end = held.pop(number % len(held))
            arena.free(start, end - start)
        elif action == "extend":
            arena.extend(arena.end + number)
        held.sort()
        assert all(a[1] <= b[0] for a, b in pairwise(held))
        assert all(start >= 100 and end <= arena.end for start, end in held)
        assert arena.free_bytes + sum(end - start for start, end in held) == arena.end - 100
    for start, end in held:
        arena.free(start, end - start)
    assert arena.free_tail == arena.end - 100
    assert arena.allocate(arena.end - 100) == 100


def test_the_lowest_gap_that_fits_is_used_again() -> None:
    arena = Arena(0, 300)
    assert [arena.allocate(100) for _ in range(4)] == [0, 100, 200, None]
    arena.free(0, 100)
    arena.free(200, 100)
    assert arena.allocate(60) == 0
    assert arena.allocate(60) == 200
    assert arena.free_tail == 40


@pytest.mark.parametrize("extent", [(0, 64), (128, 64), (96, 64), (-64, 64), (960, 128), (64, 0)])
def test_what_is_free_or_outside_cannot_be_freed(extent: tuple[int, int]) -> None:
    arena = Arena(0, 1000)
    arena.allocate(128)
    arena.free(0, 64)
    with pytest.raises(ValueError, match="not an extent"):
        arena.free(*extent)


def test_an_arena_never_shrinks() -> None:
    arena = Arena(0, 1000)
    with pytest.raises(ValueError, match="only grows"):
        arena.extend(1000)
