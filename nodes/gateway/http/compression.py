"""Bodies that come or go compressed: gzip and deflate, never larger than a bound."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable

from nodes.gateway.statuses import TooLarge, UnknownEncoding
from swarm.errors import InvalidArgument

INLINE = 1 << 20  # bytes that are unpacked in the event loop (measured: 3 ms); more in a thread
COMPRESS_FROM = 1024  # bytes; shorter answers go as they are
LEVEL = 1  # measured: a higher one costs three times as much for a tenth of the bytes
GZIP, ZLIB, RAW = 31, 15, -15  # windows' bits of zlib
MAGIC = b"\x1f\x8b"  # the first bytes of a member of a gzip file
MOST_MEMBERS = 256  # of one body: each costs a copy of what follows it


async def unpacked(body: bytes, encoding: str, limit: int, hold: Callable[[int], None]) -> bytes:
    """A request's body. encoding: the header Content-Encoding. limit: bytes. hold: is told of
    bytes before there are so many more. Raises `TooLarge`, `UnknownEncoding`, `InvalidArgument` for
    bytes that are not of that encoding, and what `hold` raises."""
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise UnknownEncoding(f"Content-Encoding {encoding!r:.80}: there are gzip and deflate")
    is_gzip = "gzip" in encoding
    bits = GZIP if is_gzip else _deflate_bits(body)
    pieces: list[bytes] = []
    size = 0
    left, members = body, 0
    try:
        while left or not members:
            unpacker = zlib.decompressobj(bits)
            piece = unpacker.decompress(left, max(1, min(INLINE, limit + 1 - size)))
            hold(len(piece))
            pieces.append(piece)
            size += len(piece)
            if not unpacker.eof and size <= limit:
                tail, room = unpacker.unconsumed_tail, limit + 1 - size
                hold(room)  # how many there are shows once they are there
                piece = await asyncio.to_thread(unpacker.decompress, tail, room)
                hold(len(piece) - room)
                pieces.append(piece)
                size += len(piece)
            if size > limit:
                raise TooLarge(f"the body is more than {limit} bytes once it is unpacked")
            left, members = unpacker.unused_data, members + 1
            # A gzip file may have several members, each of which begins so (RFC 1952, 2.2).
            follows = is_gzip and left.startswith(MAGIC) and members < MOST_MEMBERS
            if not unpacker.eof or (left and not follows):
                text = f"the body is no whole {encoding}: cut off, or followed by more"
                raise InvalidArgument(text)
    except zlib.error as error:
        raise InvalidArgument(f"the body is not {encoding}: {error}") from None
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _deflate_bits(body: bytes) -> int:
    """Clients say `deflate` for zlib's format, as the standard has it, and for the bare one."""
    head = body[:2]
    is_zlib = len(head) == 2 and head[0] & 15 == 8 and int.from_bytes(head, "big") % 31 == 0
    return ZLIB if is_zlib else RAW


def accepted(accept: str) -> str:
    """The encoding for an answer, of the header Accept-Encoding; "" for none."""
    for part in accept.lower().split(","):
        name, _, weight = part.partition(";")
        if name.strip() in ("gzip", "deflate") and weight.replace(" ", "") not in ("q=0", "q=0.0"):
            return name.strip()
    return ""


async def packed(body: bytes, encoding: str) -> bytes:
    """An answer's body. encoding: as of `accepted`."""

    def pack() -> bytes:
        packer = zlib.compressobj(LEVEL, wbits=GZIP if encoding == "gzip" else ZLIB)
        return packer.compress(body) + packer.flush()

    return pack() if len(body) < INLINE >> 4 else await asyncio.to_thread(pack)
