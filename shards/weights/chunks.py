"""Where an artifact is cut, so that what two versions share is cut alike in both.

The bytes of each large initializer are pieces of their own, and so is each gap between two of them.
A layer that moves to another stage, or stays while another one is trained, brings the same pieces.
"""

from __future__ import annotations

from collections.abc import Iterator

from shards.errors import ModelError
from shards.weights.protobuf import BYTES, fields

# ModelProto.graph, GraphProto.initializer, and the fields of a TensorProto that hold its numbers
# (float, int32, int64, double and uint64 data, raw data).
_MODEL_GRAPH, _GRAPH_INITIALIZER = 7, 5
_NUMBERS = (4, 5, 7, 9, 10, 11)

SMALLEST = 16 << 10  # bytes of an initializer that is a piece of its own
LARGEST = 1 << 20  # bytes of a piece: so much is fetched again after a broken connection
# Parts that a message may have, and bytes a part beyond these: what has more is cut evenly.
FIELDS_OF_ANY, BYTES_A_FIELD = 4096, 16


def piece_lengths(data: memoryview) -> list[int]:
    """The lengths of an artifact's pieces, in order; their sum is its size.

    Bytes that are no ONNX model are cut at each `LARGEST` bytes.
    """
    try:
        ranges = list(_initializers(data))
    except ModelError:
        ranges = []
    lengths: list[int] = []
    at = 0
    for begin, end in [*ranges, (len(data), len(data))]:
        lengths += _cut(begin - at)
        lengths += _cut(end - begin)
        at = end
    return lengths


def _cut(size: int) -> list[int]:
    """Pieces of `LARGEST` bytes, and a rest."""
    whole, rest = divmod(size, LARGEST)
    return [LARGEST] * whole + ([rest] if rest else [])


def _initializers(data: memoryview) -> Iterator[tuple[int, int]]:
    """Begin and end of each large initializer's numbers, in order. Raises ModelError."""
    for graph in _inside(data, 0, (_MODEL_GRAPH,)):
        for tensor in _inside(data[slice(*graph)], graph[0], (_GRAPH_INITIALIZER,)):
            for begin, end in _inside(data[slice(*tensor)], tensor[0], _NUMBERS):
                if end - begin >= SMALLEST:
                    yield begin, end


def _inside(message: memoryview, base: int, numbers: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Begin and end of the contents of these fields of a message, which begins at `base`.

    Raises ModelError."""
    left = FIELDS_OF_ANY + len(message) // BYTES_A_FIELD
    for part in fields(message):
        left -= 1
        if left < 0:
            raise ModelError(f"too many parts in {len(message)} bytes")
        if part.kind == BYTES and part.number in numbers:
            yield base + part.end - len(part.data), base + part.end
