"""The claim check: what a message carries in place of a tensor's bytes."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Any, Final

from . import layout
from .errors import ClaimError

VERSION: Final = 2
MAX_OFFSET: Final = 1 << 47  # user addresses have 47 bits on x86-64: no mapping is larger
_UINT64: Final = 1 << 64
_HOST = re.compile(r"[0-9a-f]{16}")
_MESH = re.compile(r"[A-Za-z0-9_-]{1,64}")
# No slash, and a fixed head: a claim can name neither another directory nor another program's file.
_SEGMENT = re.compile(r"swarm-([A-Za-z0-9_-]{1,64})-[0-9]{1,10}-[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Claim:
    """Where a tensor's bytes lie in shared memory, about 150 bytes as MessagePack.

    What comes from elsewhere is built by `from_wire` only: it validates, the constructor does not.

    Attributes:
        host: `host_id()` of the sender.
        segment: file name inside the shared-memory directory.
        offset: of the slot in the segment, bytes, a multiple of 64.
        length: of the payload, bytes, at least 1.
        generation: of the slot; even, never used twice in a segment.
        checksum: `layout.checksum` of the payload.
        word: which of the segment's words says that the slot is needed no more.
    """

    host: str
    segment: str
    offset: int
    length: int
    generation: int
    checksum: int
    word: int

    def to_wire(self) -> dict[str, Any]:
        """A map of strings and integers below 2**64, for MessagePack or JSON."""
        return {
            "v": VERSION,
            "host": self.host,
            "segment": self.segment,
            "offset": self.offset,
            "length": self.length,
            "generation": self.generation,
            "checksum": self.checksum,
            "word": self.word,
        }

    @classmethod
    def from_wire(cls, value: object) -> Claim:
        """The claim in a decoded message; unknown fields are ignored.

        Raises:
            ClaimError: a field is missing, of another type or out of its bounds, or the version
                is not ours. Nothing has been opened by then.
        """
        if not isinstance(value, dict):
            raise ClaimError(f"a claim is a map, not {type(value).__name__}")
        if value.get("v") != VERSION:
            raise ClaimError(f"claim version {value.get('v')!r}, this node reads {VERSION}")
        host, segment = value.get("host"), value.get("segment")
        if not isinstance(host, str) or not _HOST.fullmatch(host):
            raise ClaimError("claim host: 16 hexadecimal digits expected")
        if not isinstance(segment, str) or not _SEGMENT.fullmatch(segment):
            raise ClaimError("claim segment: not the name of a segment")
        offset = _integer(value, "offset", 0, MAX_OFFSET)
        length = _integer(value, "length", 1, MAX_OFFSET)
        generation = _integer(value, "generation", 0, _UINT64)
        checksum = _integer(value, "checksum", 0, _UINT64)
        word = _integer(value, "word", 0, layout.WORDS)
        if offset % 64 or generation % 2:
            raise ClaimError("claim offset or generation: not one that a sender hands out")
        return cls(host, segment, offset, length, generation, checksum, word)


def _integer(value: dict[Any, Any], field: str, low: int, end: int) -> int:
    number = value.get(field)
    if type(number) is not int or not low <= number < end:
        raise ClaimError(f"claim {field}: an integer in [{low}, {end}) expected")
    return number


def checked_mesh(mesh: str) -> str:
    """`mesh` itself.

    Raises:
        ValueError: it is not 1 to 64 characters of `A-Z a-z 0-9 _ -`.
    """
    if not _MESH.fullmatch(mesh):
        raise ValueError(f"mesh name {mesh!r}: 1 to 64 of A-Z a-z 0-9 _ - expected")
    return mesh


def segment_name(mesh: str, process: int) -> str:
    """A fresh name, `swarm-<mesh>-<process id>-<16 random hexadecimal digits>`.

    The process id is for people who look into the directory; nothing relies on it.
    """
    return f"swarm-{mesh}-{process}-{secrets.token_hex(8)}"


def mesh_of(segment: str) -> str | None:
    """The mesh that a segment's name belongs to; None when it is no such name.

    Mesh names may hold dashes and digits and still be told apart, because the two last parts are
    fixed: `swarm-a-12-7-<random>` is of mesh `a-12`, never of mesh `a`.
    """
    match = _SEGMENT.fullmatch(segment)
    return match.group(1) if match else None
