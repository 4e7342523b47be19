"""What lies where in a segment, and how a slot in it is written and known to be whole.

A segment is one page of header, then slots at multiples of 64 bytes:

    segment:  magic 8s | version u32 | process u32 | orphaned at f64 | …             64 bytes
              done u64, one word for each slot in use                              4032 bytes
    slot:     magic u64 | sequence u64 | length u64 | checksum u64 | …             64 bytes
              payload, padded to 8
              sequence u64, the trailer; padded to 64

All numbers are little-endian. A slot is a seqlock: its owner makes the number odd when it frees the
slot, *before* the space can be handed out again, and writes the header of the next slot last. A
reader compares header, trailer and checksum before the use, the header again after it. Sequence
numbers start at random, so that payload bytes of a later, larger slot do not pass for the header of
an earlier one.

A receiver that needs a slot no more writes the slot's sequence number into the slot's *done* word,
the only store that anybody but the owner makes. The owner reads the words when it has sent its
message. The words lie apart from the slots, so that a receiver that is late by minutes cannot hit a
payload. (A message in place of the word costs the server two events for each tensor, and the owner
a wake-up.)
"""

from __future__ import annotations

import platform
import struct
import threading
import zlib
from collections.abc import Sequence
from typing import Final

SEGMENT_MAGIC: Final = b"SWARMSHM"
SEGMENT_VERSION: Final = 4
SEGMENT_HEADER: Final = struct.Struct("<8sIId")
ORPHANED_AT: Final = struct.Struct("<d")
ORPHANED_AT_OFFSET: Final = 16
FIRST_SLOT: Final = 4096
_DONE: Final = struct.Struct("<Q")
_DONE_OFFSET: Final = 64
DONE_WORDS: Final = (FIRST_SLOT - _DONE_OFFSET) // _DONE.size  # the most slots in use at a time

SLOT_MAGIC: Final = 0x746F6C536D726153
SLOT_HEADER: Final = struct.Struct("<QQQQ")
SLOT_HEADER_BYTES: Final = 64
TRAILER: Final = struct.Struct("<Q")
ALIGNMENT: Final = 64

# Words of 8 bytes from one sample to the next: below a page, and odd, since the dimensions of
# tensors are powers of two.
SAMPLE_DISTANCE: Final = 511

_IN_ORDER = platform.machine() in ("x86_64", "AMD64")  # the CPU keeps stores in order


def align(size: int, to: int = ALIGNMENT) -> int:
    """`size` rounded up to a multiple of `to`, bytes."""
    return -(-size // to) * to


def trailer_offset(length: int) -> int:
    """Bytes from the start of a slot with `length` bytes of payload to its trailer."""
    return SLOT_HEADER_BYTES + -(-length // 8) * 8


def slot_bytes(length: int) -> int:
    """Bytes that a payload of `length` bytes takes in a segment: header, trailer and padding
    included."""
    return align(trailer_offset(length) + TRAILER.size)


# --- the owner -------------------------------------------------------------------------


def write(
    memory: memoryview, offset: int, sequence: int, views: Sequence[memoryview], length: int
) -> int:
    """Fill the slot at `offset` with `views` of format "B", `length` bytes in all; returns the
    checksum.

    The space must be of no valid slot: `invalidate` came before it was free. The header is
    written last, so a reader never takes a half for a whole.
    """
    start = position = offset + SLOT_HEADER_BYTES
    for view in views:
        memory[position : position + len(view)] = view
        position += len(view)
    check = checksum(memory[start:position])
    TRAILER.pack_into(memory, offset + trailer_offset(length), sequence)
    _fence()
    SLOT_HEADER.pack_into(memory, offset, SLOT_MAGIC, sequence, length, check)
    return check


def invalidate(memory: memoryview, offset: int, sequence: int) -> None:
    """Make the slot's sequence number odd, before anything else of the slot changes."""
    SLOT_HEADER.pack_into(memory, offset, SLOT_MAGIC, sequence | 1, 0, 0)
    _fence()


def is_done(memory: memoryview, word: int, sequence: int) -> bool:
    """Whether a receiver has said that it needs the slot of this number no more."""
    return bool(_DONE.unpack_from(memory, _DONE_OFFSET + word * _DONE.size)[0] == sequence)


def _fence() -> None:
    """Order the stores before it with those after it, on weakly ordered CPUs too.

    Python has no memory barrier. A released lock (store-release) followed by an acquired one
    (load-acquire) orders everything on ARMv8, whose acquire and release are sequentially
    consistent among themselves. Measured: 0.3 us, with cold caches several.
    """
    if _IN_ORDER:
        return
    lock = threading.Lock()
    lock.acquire()
    lock.release()
    lock.acquire()
    lock.release()


# --- a receiver ------------------------------------------------------------------------


def header(sequence: int, length: int, check: int) -> bytes:
    """The first bytes of a whole slot."""
    return SLOT_HEADER.pack(SLOT_MAGIC, sequence, length, check)


def trailer(sequence: int) -> bytes:
    """The last bytes of a whole slot, at its `trailer_offset`."""
    return TRAILER.pack(sequence)


def done_word(word: int, sequence: int) -> tuple[int, bytes]:
    """Where in the segment a receiver writes that it is done with a slot; and the bytes."""
    return _DONE_OFFSET + word * _DONE.size, _DONE.pack(sequence)


# --- both ------------------------------------------------------------------------------


def checksum(payload: memoryview | bytes) -> int:
    """CRC-32 of every 511th word and of the last 8 bytes, and the length, as one 64-bit number.

    The sequence number tells a recycled slot; the checksum is the net under it (a store that a
    weakly ordered CPU shows late, a sender with a bug): a page of wrong bytes changes it. It
    detects accidents, not forgery. A CRC of the whole payload takes ten times as long as the copy
    itself (measured, 64 KB to 8 MB).

    Args:
        payload: contiguous bytes.
    """
    length = len(payload)
    view = memoryview(payload)
    words = view[: length & ~7].cast("Q")[::SAMPLE_DISTANCE]
    check = zlib.crc32(view[-8:], zlib.crc32(words.tobytes()))
    return check << 32 | length & 0xFFFFFFFF
