"""Recipes: what is missing is found by pieces, and nothing malformed is taken for one."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import InvalidArgument
from swarm.models.recipes import Piece, Recipe, pieces_of, runs, spans

DIGEST = "a" * 64


def recipe(*lengths: int, messages: tuple[tuple[int, int], ...] = ((1, 1),)) -> Recipe:
    pieces = tuple(pieces_of((DIGEST, length) for length in lengths))
    return Recipe("nuid", 1000, messages, pieces)


def test_a_recipe_is_read_as_it_was_written() -> None:
    written = recipe(700, 1800, 900, messages=((7, 2), (20, 2)))
    assert Recipe.from_json(written.to_json()) == written
    assert written.size == 3400
    assert list(written.chunks(700, 2500)) == [1, 2]
    assert list(written.chunks(0, 3400)) == [0, 1, 2, 3]
    assert [written.sequence(number) for number in range(4)] == [7, 8, 20, 21]
    with pytest.raises(IndexError):
        written.sequence(4)


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"pieces": [[DIGEST, 0]]},
        {"pieces": [["short", 10]]},
        {"pieces": [[DIGEST, True]]},
        {"pieces": [[DIGEST]]},
        {"pieces": 7},
        {"messages": []},
        {"messages": [[1, 2]]},
        {"message_bytes": 0},
        {"nuid": ...},
    ],
)
def test_a_malformed_recipe_is_refused(change: dict[str, Any]) -> None:
    doc = json.loads(recipe(10).to_json()) | change
    doc = {name: value for name, value in doc.items() if value is not ...}
    with pytest.raises(InvalidArgument, match="no recipe"):
        Recipe.from_json(json.dumps(doc).encode())


@given(st.binary(max_size=200))
def test_any_bytes_are_a_recipe_or_refused(data: bytes) -> None:
    with pytest.raises(InvalidArgument):
        Recipe.from_json(data)


@given(st.lists(st.integers(1, 50), max_size=20), st.data())
def test_spans_cover_the_missing_pieces_and_nothing_else(lengths: list[int], data: Any) -> None:
    pieces = list(pieces_of((DIGEST, length) for length in lengths))
    missing: list[Piece] = [piece for piece in pieces if data.draw(st.booleans())]
    found = spans(data.draw(st.permutations(missing)))
    wanted = {at for piece in missing for at in range(piece.offset, piece.end)}
    covered = [at for begin, end in found for at in range(begin, end)]
    assert sorted(covered) == sorted(wanted)
    assert all(end < begin for (_, end), (begin, _) in itertools.pairwise(found))


@given(st.sets(st.integers(1, 100)))
def test_runs_are_the_same_numbers(numbers: set[int]) -> None:
    found = runs(sorted(numbers))
    assert [first + n for first, count in found for n in range(count)] == sorted(numbers)
