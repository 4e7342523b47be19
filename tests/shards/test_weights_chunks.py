"""Where an artifact is cut: at its large initializers, so that other files are cut alike."""

from __future__ import annotations

import hashlib
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_graphs import floats, make, node, value

from shards.weights.chunks import LARGEST, piece_lengths


def layers(*names: str, seed: int = 3) -> bytes:
    """A chain of products with 64 KB of weights each, of which the last one has this seed."""
    steps = [
        node("MatMul", ["x" if not i else f"t{i}", n], [f"t{i + 1}"], name=f"m{n}")
        for i, n in enumerate(names)
    ]
    weights = {n: floats(128, 128, seed=ord(n[0])) for n in names}
    weights[names[-1]] = floats(128, 128, seed=seed)
    graph = make(steps, [value("x", [1, 128])], [value(f"t{len(names)}", [1, 128])], weights)
    return graph.SerializeToString()


def pieces(data: bytes) -> dict[str, int]:
    """The length of each piece, by its SHA-256."""
    ends = list(accumulate(piece_lengths(memoryview(data))))
    begins = [0, *ends[:-1]]
    cut = [data[begin:end] for begin, end in zip(begins, ends, strict=True)]
    assert b"".join(cut) == data
    return {hashlib.sha256(piece).hexdigest(): len(piece) for piece in cut}


def test_weights_that_moved_to_another_file_are_the_same_pieces() -> None:
    whole, moved = pieces(layers("a", "b", "c")), pieces(layers("b", "c"))
    shared = sum(length for digest, length in moved.items() if digest in whole)
    assert shared >= 128 * 128 * 4, "the weights of b, which stand elsewhere in this file"
    fresh = sum(length for digest, length in moved.items() if digest not in whole)
    assert fresh < 2048, "the rest of the file: layers and names"


def test_a_new_head_is_the_only_new_large_piece() -> None:
    before, after = pieces(layers("a", "b", "c")), pieces(layers("a", "b", "c", seed=9))
    fresh = [length for digest, length in after.items() if digest not in before]
    assert sorted(fresh) == [128 * 128 * 4]


@pytest.mark.parametrize("cut_at", [1, 100, 5000, -1])
def test_a_model_that_is_cut_short_is_cut_evenly_as_any_bytes(cut_at: int) -> None:
    data = layers("a")[:cut_at]
    assert sum(piece_lengths(memoryview(data))) == len(data)


@settings(deadline=None, max_examples=10)
@given(st.binary(max_size=2000), st.integers(0, 2))
def test_the_pieces_of_any_bytes_are_the_bytes(data: bytes, times: int) -> None:
    data = data + bytes(times * LARGEST)
    lengths = piece_lengths(memoryview(data))
    assert sum(lengths) == len(data)
    assert all(0 < length <= LARGEST for length in lengths)
