"""The recipe of an artifact: its pieces by their SHA-256, and where they lie in the object store.

    {"v": 1, "nuid": "…", "message_bytes": 131072, "size": n,
     "messages": [[first sequence, count], …], "pieces": [[SHA-256, length], …]}

A recipe is a help to fetch less, and is not signed: it never decides which bytes are right. The
artifact's own SHA-256, which the signed manifest names, decides that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from swarm.errors import InvalidArgument

MOST_BYTES = 1 << 20  # of a recipe
MOST_PIECES = 1 << 17
_DIGEST = 64  # hexadecimal digits of a SHA-256


@dataclass(frozen=True, slots=True)
class Piece:
    """A row of bytes of an artifact. offset: its place there."""

    digest: str
    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length


@dataclass(frozen=True, slots=True)
class Recipe:
    """pieces: in order, without a gap. nuid: the name of the object's chunks in the object store.
    messages: the stream's sequences of its chunks as (first, count). No chunk has bytes of two
    pieces; all of a piece but the last have `message_bytes`."""

    nuid: str
    message_bytes: int
    messages: tuple[tuple[int, int], ...]
    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """Bytes of the whole artifact."""
        return self.pieces[-1].end if self.pieces else 0

    def chunks(self, begin: int, end: int) -> range:
        """The numbers of the chunks with these bytes, which are whole pieces; the first is 0."""
        inside = sum(self._chunks_of(p) for p in self.pieces if begin <= p.offset < end)
        before = sum(self._chunks_of(p) for p in self.pieces if p.offset < begin)
        return range(before, before + inside)

    def _chunks_of(self, piece: Piece) -> int:
        return -(-piece.length // self.message_bytes)

    def sequence(self, number: int) -> int:
        """The sequence of a chunk, the first one is 0. Raises `IndexError`."""
        for first, count in self.messages:
            if number < count:
                return first + number
            number -= count
        raise IndexError(f"the artifact has no chunk {number} more")

    def to_json(self) -> bytes:
        """As it is stored; `from_json` reads it."""
        return json.dumps(
            {
                "v": 1,
                "nuid": self.nuid,
                "message_bytes": self.message_bytes,
                "size": self.size,
                "messages": self.messages,
                "pieces": [[piece.digest, piece.length] for piece in self.pieces],
            },
            separators=(",", ":"),
        ).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Recipe:
        """Raises `InvalidArgument` for bytes that are no recipe."""
        try:
            if len(data) > MOST_BYTES:
                raise ValueError(f"it has {len(data)} bytes, of {MOST_BYTES} at most")
            doc = json.loads(data)
            if doc["v"] != 1:
                raise ValueError(f"version {doc['v']!r:.20} is unknown")
            pieces = tuple(pieces_of((str(d), _positive(n)) for d, n in doc["pieces"]))
            messages = tuple((_positive(first), _positive(n)) for first, n in doc["messages"])
            recipe = cls(str(doc["nuid"]), _positive(doc["message_bytes"]), messages, pieces)
            recipe._check()
            return recipe
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidArgument(f"this is no recipe: {error!r:.200}") from None

    def _check(self) -> None:
        """Raises `ValueError` where the parts do not fit together."""
        if len(self.pieces) > MOST_PIECES:
            raise ValueError(f"more than {MOST_PIECES} pieces")
        if any(len(piece.digest) != _DIGEST for piece in self.pieces):
            raise ValueError("a piece without a SHA-256")
        if sum(count for _, count in self.messages) != sum(map(self._chunks_of, self.pieces)):
            raise ValueError("its messages do not hold its pieces")


def pieces_of(pairs: Iterable[tuple[str, int]]) -> Iterable[Piece]:
    """Pieces one behind the other, from their hashes and lengths."""
    offset = 0
    for digest, length in pairs:
        yield Piece(digest, offset, length)
        offset += length


def spans(pieces: Iterable[Piece]) -> list[tuple[int, int]]:
    """Begin and end of the bytes of these pieces, in order; neighbours are joined."""
    found: list[tuple[int, int]] = []
    for piece in sorted(pieces, key=lambda piece: piece.offset):
        if found and found[-1][1] == piece.offset:
            found[-1] = (found[-1][0], piece.end)
        else:
            found.append((piece.offset, piece.end))
    return found


def runs(sequences: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Growing numbers as rows of neighbours: (first, count)."""
    found: list[tuple[int, int]] = []
    for sequence in sequences:
        if found and sum(found[-1]) == sequence:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((sequence, 1))
    return tuple(found)


def _positive(value: object) -> int:
    if type(value) is not int or value <= 0:
        raise ValueError(f"{value!r:.40} is no number above 0")
    return value
