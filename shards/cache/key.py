"""What is asked, as a key: equal keys stand for the same bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

MOST_INPUT = 8 << 20  # bytes; to hash more would keep an event loop for 5 ms and longer


def key_of(tensors: Mapping[str, np.ndarray]) -> bytes | None:
    """A SHA-256 over each tensor's name, datatype, shape and bytes; None for what is not hashed:
    more than `MOST_INPUT` bytes, or arrays of Python objects.

    The bytes count, not the values: 0.0 and -0.0 differ, and so do two NaN of other payloads.
    Nobody can make two questions of one key, so that an answer of a stranger's making is never
    given to somebody else.
    """
    if sum(array.nbytes for array in tensors.values()) > MOST_INPUT:
        return None
    digest = hashlib.sha256()
    for name in sorted(tensors):
        array = tensors[name]
        if array.dtype.hasobject:
            return None
        head = repr((name, array.dtype.str, array.dtype.name, array.shape)).encode()
        digest.update(len(head).to_bytes(4, "little") + head)
        if array.nbytes:
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.digest()
