"""The claim check: the words that a message carries in place of a tensor's bytes."""

from __future__ import annotations

import re
import secrets
import struct
from typing import Final, NamedTuple

from . import slots
from .errors import ClaimError

VERSION: Final = 3
MAX_OFFSET: Final = 1 << 47  # user addresses have 47 bits on x86-64: no mapping is larger
# version | word | host | offset | sequence | length | checksum, then the segment's name
_WIRE: Final = struct.Struct("<HH4x8sQQQQ")
_MESH = re.compile(r"[A-Za-z0-9_-]{1,64}")
# No slash, and a fixed head: a claim can name neither another directory nor another program's file.
_SEGMENT = re.compile(r"swarm-([A-Za-z0-9_-]{1,64})-[0-9]{1,10}-[0-9a-f]{16}")
_MOST_BYTES: Final = _WIRE.size + 128


class Claim(NamedTuple):
    """Where a tensor's bytes lie in shared memory, about 90 bytes in a message.

    A claim from elsewhere is built by `from_wire` only, which validates the numbers; the segment's
    name is validated by the reader that opens the segment. The constructor does neither.

    Attributes:
        host: `host_id()` of the sender.
        segment: file name inside the shared-memory directory.
        offset: of the slot in the segment, bytes, a multiple of 64.
        length: of the payload, bytes, at least 1.
        sequence: number of the slot; even, never used twice in a segment.
        checksum: `slots.checksum` of the payload.
        word: which of the segment's words says that the slot is needed no more.
    """

    host: str
    segment: str
    offset: int
    length: int
    sequence: int
    checksum: int
    word: int

    def to_wire(self) -> bytes:
        """One binary value for a message. As a map, it took the receiver three times as long."""
        head = _WIRE.pack(
            VERSION,
            self.word,
            bytes.fromhex(self.host),
            self.offset,
            self.sequence,
            self.length,
            self.checksum,
        )
        return head + self.segment.encode("ascii")

    @classmethod
    def from_wire(cls, value: object) -> Claim:
        """The claim in a decoded message.

        Raises:
            ClaimError: it is too short or too long, of another version, or a number is out of its
                bounds. Nothing has been opened by then.
        """
        # A view in a large message.
        if type(value) is not bytes and type(value) is not memoryview:
            raise ClaimError(f"a claim is bytes, not {type(value).__name__}")
        if not _WIRE.size < len(value) <= _MOST_BYTES:
            raise ClaimError(f"a claim is {_WIRE.size} bytes and a segment's name")
        version, word, host, offset, sequence, length, checksum = _WIRE.unpack_from(value)
        if version != VERSION:
            raise ClaimError(f"claim version {version}, this node reads {VERSION}")
        if (
            offset >= MAX_OFFSET
            or not 0 < length < MAX_OFFSET
            or word >= slots.DONE_WORDS
            or offset % 64
            or sequence % 2
        ):
            raise ClaimError("claim: numbers that no sender hands out")
        try:
            segment = str(value[_WIRE.size :], "ascii")
        except UnicodeDecodeError:
            raise ClaimError("claim segment: not the name of a segment") from None
        return cls(host.hex(), segment, offset, length, sequence, checksum, word)


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
