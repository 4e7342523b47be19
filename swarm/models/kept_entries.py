"""Desired state and manifests on this host's disk, for a start while the registry is away.

    FOLDER/SHA256    length of the headers u32, the headers with the signature, the value

They are signed, so that whoever reads one checks it as if the server had sent it. A file appears
whole, by a rename, or not at all.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

MOST_BYTES = 64 << 20  # of one entry


class KeptEntries:
    """The entries in `folder`, which is this user's alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._saved: dict[Path, bytes] = {}

    def save(self, bucket: str, key: str, value: bytes, headers: bytes) -> None:
        """Keep an entry, in place of an older one. Raises `OSError`."""
        path, data = self._path(bucket, key), len(headers).to_bytes(4, "big") + headers + value
        if self._saved.get(path) == data:
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=self._folder)
        try:
            with open(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        self._saved[path] = data

    def load(self, bucket: str, key: str) -> tuple[bytes, bytes] | None:
        """The value and the headers of an entry, or None. Raises `OSError`."""
        try:
            with self._path(bucket, key).open("rb") as file:
                data = file.read(MOST_BYTES)
        except FileNotFoundError:
            return None
        size = int.from_bytes(data[:4], "big")
        return data[4 + size :], data[4 : 4 + size]

    def _path(self, bucket: str, key: str) -> Path:
        return self._folder / hashlib.sha256(f"{bucket}/{key}".encode()).hexdigest()
