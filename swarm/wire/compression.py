"""Lossless compression by zstd, level 1, where the library `zstandard` is installed. Pure.

Format: one frame of RFC 8878, which says how many bytes it holds. A client without the library
sends plain, and tells nobody that it knows zstd.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from importlib.util import find_spec
from typing import Any

from swarm.errors import DecodeError

LEVEL = 1
"""Measured: level 3 makes quantized features no smaller."""
ZSTD = "zstd"


@cache
def is_installed() -> bool:
    """Whether this process can compress and decompress."""
    return find_spec("zstandard") is not None


@cache
def _library() -> Any:
    import zstandard  # a process that compresses nothing keeps a megabyte

    return zstandard


def compress(data: bytes | memoryview) -> bytes:
    """One frame. Raises `ImportError` without the library."""
    packed: bytes = _library().ZstdCompressor(level=LEVEL).compress(data)
    return packed


def decompress(data: bytes | memoryview, sizes: Collection[int]) -> bytes:
    """What `compress` was given, of one of these `sizes` in bytes.

    Nothing is allocated before the frame says such a size. Raises `DecodeError`.
    """
    if not is_installed():
        raise DecodeError("codec zstd is not known here: install `zstandard`")
    library = _library()
    try:
        size = library.get_frame_parameters(data).content_size
        if size not in sizes:
            expected = " or ".join(str(each) for each in sorted(sizes))
            raise DecodeError(f"a zstd frame of {size} bytes where {expected} are due")
        plain: bytes = library.ZstdDecompressor().decompress(data, read_across_frames=False)
    except library.ZstdError as error:
        raise DecodeError(f"no zstd frame: {error}") from None
    if len(plain) != size:
        raise DecodeError(f"a zstd frame of {len(plain)} bytes says that it has {size}")
    return plain
