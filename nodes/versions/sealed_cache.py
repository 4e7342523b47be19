"""What a node has made of encrypted models, kept in the host's cache as they are: encrypted."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from pathlib import Path

from swarm.errors import BadSeal
from swarm.models.artifact_cache import ArtifactCache
from swarm.security.sealed import ModelKey

BLOCK = "block.sealed"


class SealedCache:
    """A `shards.runtimes.vault.Vault` in a cache that is open, under a model key.

    A block holds its own name, so one that lies in the place of another is not taken for it.
    """

    def __init__(self, cache: ArtifactCache, key: ModelKey) -> None:
        self._cache = cache
        self._key = key

    def kept(self, key: str, make: Callable[[], Sequence[bytes]]) -> memoryview:
        """See `Vault`. Opening a block authenticates it: it is not hashed beside that. One that
        does not open is made again."""
        name, found = key.encode(), memoryview(b"")

        def is_whole(folder: Path) -> bool:
            nonlocal found
            try:
                with (folder / BLOCK).open("rb") as file:
                    sealed = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                block = self._key.unsealed(memoryview(sealed), key)
            except (OSError, ValueError, BadSeal):  # ValueError: the file is empty
                return False
            found = block[len(name) :]
            return block[: len(name)] == name

        def fill(folder: Path) -> None:
            nonlocal found
            parts = make()
            with (folder / BLOCK).open("xb") as sink:
                for chunk in self._key.seal([name, *parts]):
                    sink.write(chunk)
            found = memoryview(b"".join(parts))

        # Each model key has blocks of its own: two of one host do not replace each other's.
        self._cache.made(key + self._key.id.hex(), fill, is_whole)
        return found
