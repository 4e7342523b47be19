"""Prepared models whose weights may lie on no disk in plain: one block of bytes, kept by a vault.

    length u32 | about, JSON | model.onnx | weights.bin | expected.npz        (little-endian)

The parts are those of `shards.runtimes.prepared`; `about` has their lengths. They are made in files
of memory that have no name. A session copies the weights, so nothing is mapped.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Protocol
from zipfile import BadZipFile

import numpy as np

from shards.errors import ModelError
from shards.runtimes.ort import InMemory, OrtRuntime
from shards.runtimes.prepared import Settings, compared, key_of, prepare, runtime_of
from shards.runtimes.synthetic import SyntheticAnswer

_LENGTH = struct.Struct("<I")
_DESCRIPTORS = Path("/proc/self/fd")


class Vault(Protocol):
    """Keeps blocks of bytes, such that nobody reads or changes them without its key."""

    def kept(self, key: str, make: Callable[[], Sequence[bytes]]) -> memoryview:
        """The block `key`, whose parts `make()` returns unless it is there already, unchanged.

        Raises `OSError`, and whatever `make` raises.
        """
        ...


def load_from_vault(
    vault: Vault, model: Callable[[], bytes | Path], settings: Settings
) -> OrtRuntime:
    """As `load_prepared`, and raises as that; nothing is written in plain."""
    block = vault.kept(key_of(settings), lambda: _prepared(model(), settings))
    try:
        (length,) = _LENGTH.unpack_from(block)
        about = json.loads(bytes(block[_LENGTH.size : _LENGTH.size + length]))
        ends = accumulate([_LENGTH.size + length, *about["lengths"]])
        graph, weights, answer = (block[begin:end] for begin, end in pairwise(ends))
        runtime = runtime_of(
            InMemory(bytes(graph), about["weights"], weights),
            settings,
            level=about["level"],
            prepared=True,
        )
        expected = None
        if about["tested"]:
            with np.load(io.BytesIO(answer), allow_pickle=False) as arrays:
                expected = SyntheticAnswer(dict(arrays), about["scales"])
    except (ValueError, KeyError, struct.error, BadZipFile) as error:
        raise ModelError(f"a prepared model cannot be read: {error}") from error
    return compared(runtime, expected, settings, "a prepared model")


def _prepared(model: bytes | Path, settings: Settings) -> list[bytes]:
    """The parts of a block. Raises `OSError` where there are no files of memory."""
    with _memory_file("model") as graph, _memory_file("weights") as weights:
        # The library takes the weights' file from beside the model's.
        name = str(weights)

        def saved() -> InMemory:
            return InMemory(_content(graph), name, memoryview(_content(weights)))

        def clear() -> None:
            os.ftruncate(graph, 0)
            os.ftruncate(weights, 0)

        where = (_DESCRIPTORS / str(graph), name)
        level, expected = prepare(model, settings, where, saved, clear)
        answer = io.BytesIO()
        if expected is not None:
            np.savez(answer, **expected.tensors)  # type: ignore[arg-type]
        parts = [_content(graph), _content(weights), answer.getvalue()]
    about = {
        "level": level,
        "tested": expected is not None,
        "scales": {} if expected is None else dict(expected.scales),
        "weights": name,
        "lengths": [len(part) for part in parts],
    }
    head = json.dumps(about).encode()
    return [_LENGTH.pack(len(head)) + head, *parts]


@contextlib.contextmanager
def _memory_file(name: str) -> Iterator[int]:
    """The descriptor of a file that is on no disk. Raises `OSError`."""
    if not hasattr(os, "memfd_create"):
        raise OSError("this system has no files of memory")
    descriptor = os.memfd_create(name)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _content(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    parts, at = [], 0
    while at < size:  # one read returns 2 GB at most
        parts.append(os.pread(descriptor, size - at, at))
        at += len(parts[-1])
    return parts[0] if len(parts) == 1 else b"".join(parts)
