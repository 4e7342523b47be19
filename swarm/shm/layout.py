"""What lies where in a segment, and how a reader knows that a slot is whole.

A segment is one page of header, then slots at multiples of 64 bytes:

    segment:  magic 8s | version u32 | process u32 | orphaned at f64 | …             64 bytes
              done u64, one word for each slot in use                              4032 bytes
    slot:     magic u64 | generation u64 | length u64 | checksum u64 | …             64 bytes
              payload, padded to 8
              generation u64, the trailer; padded to 64

All little-endian. A slot is a seqlock: the owner makes its generation odd when it frees the slot,
*before* the space can be handed out again, and writes the next slot's header last. A reader
compares header, trailer and checksum before the use, the header after it. The generation starts at
random, so that payload bytes of a later, larger slot do not pass for the header of an earlier one.

A receiver that needs a slot no more writes its generation into the slot's *done* word, the only
store that anybody but the owner makes; the owner looks at them when it has sent its message. The
words lie apart from the slots, so that a receiver that is late by minutes cannot hit a payload: at
worst it hides that the word's present slot is done, which then is freed by age. (A message instead
of the word cost the server two events for each tensor, and the owner a wake-up.)
"""

from __future__ import annotations

import platform
import struct
import threading
import zlib
from typing import Final

SEGMENT_MAGIC: Final = b"SWARMSHM"
SEGMENT_VERSION: Final = 3
SEGMENT_HEADER: Final = struct.Struct("<8sIId")
ORPHANED_AT: Final = struct.Struct("<d")
ORPHANED_AT_OFFSET: Final = 16
FIRST_SLOT: Final = 4096
DONE: Final = struct.Struct("<Q")
DONE_OFFSET: Final = 64
WORDS: Final = (FIRST_SLOT - DONE_OFFSET) // DONE.size  # and so the most slots in use at a time

SLOT_MAGIC: Final = 0x746F6C536D726153
SLOT_HEADER: Final = struct.Struct("<QQQQ")
SLOT_HEADER_BYTES: Final = 64
TRAILER: Final = struct.Struct("<Q")
ALIGNMENT: Final = 64

# Microseconds for one checksum of a warm buffer (2-core Xeon VM, medians of 60):
#
#                        64 KB   256 KB   800 KB   1.6 MB     8 MB
#     the copy itself      1.4      4.8     18.1     34.5    218.3
#     CRC-32 (zlib)       15.5     60.7    189.5    380.8   1967.0
#     Adler-32            18.2     71.8    223.9    447.8   2316.9
#     sum of all words     1.8      3.4     10.6     18.6     84.3
#
# The generation is what tells a recycled slot; the checksum is the net under it (a store that a
# weakly ordered CPU shows late, a sender with a bug). So ~256 words and at least one of each page,
# in one strided copy: with the caches that a convolution leaves, 14 us, where NumPy's machinery
# took 50 beside the memory's own.
SAMPLES: Final = 256
MOST_STRIDE: Final = 511  # words: below a page


def align(size: int, to: int = ALIGNMENT) -> int:
    """`size` rounded up to a multiple of `to`, bytes."""
    return -(-size // to) * to


def trailer_offset(length: int) -> int:
    """Where the trailer of a slot with `length` payload bytes lies, from the slot's start."""
    return SLOT_HEADER_BYTES + align(length, 8)


def slot_bytes(length: int) -> int:
    """What a payload of `length` bytes takes in a segment: header, trailer and padding included."""
    return align(trailer_offset(length) + TRAILER.size)


def stride(length: int) -> int:
    """Distance of the sampled words, in words of 8 bytes; odd: tensors like powers of two."""
    return min(MOST_STRIDE, max(1, length // 8 // SAMPLES) | 1)


def checksum(payload: memoryview | bytes) -> int:
    """CRC-32 of sampled words and the last 8 bytes, and the length, as one 64-bit number.

    Any one changed byte of a sample changes it; a changed run of `stride + 1` words holds at least
    one. It detects accidents, not forgery.

    Args:
        payload: contiguous bytes.
    """
    length = len(payload)
    view = memoryview(payload)
    words = view[: length & ~7].cast("Q")[:: stride(length)]
    crc = zlib.crc32(view[-8:], zlib.crc32(words.tobytes()))
    return crc << 32 | length & 0xFFFFFFFF


_IN_ORDER = platform.machine() in ("x86_64", "AMD64")  # the CPU keeps stores in order


def fence() -> None:
    """Order the stores before it with those after it, on weakly ordered CPUs too.

    Python has no memory barrier. A released lock (store-release) followed by an acquired one
    (load-acquire) orders everything on ARMv8, whose acquire and release are sequentially
    consistent among themselves. 0.3 us measured, with cold caches several.
    """
    if _IN_ORDER:
        return
    lock = threading.Lock()
    lock.acquire()
    lock.release()
    lock.acquire()
    lock.release()
