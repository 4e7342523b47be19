"""The files of model versions on this node: from the host's cache, else from the object store.

One way for all of them: fetch, verify, hand over. A cache that cannot be used costs memory and
time, never a model: a warning says so, and the node fetches into memory. Of an artifact that has a
recipe only those pieces are fetched that no artifact in the cache has.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from pathlib import Path

from nodes.connection.events import Tell
from nodes.versions.sealed_cache import SealedCache
from shards.errors import ArtifactError
from shards.manifest import Manifest, verify
from shards.runtimes.load import Fetch
from shards.runtimes.prepared import Folders
from shards.runtimes.vault import Vault
from swarm.errors import BadKey
from swarm.models.artifact_cache import ArtifactCache, WrongBytes
from swarm.models.registry import Registry
from swarm.security.sealed import ModelKey

log = logging.getLogger("swarm.node")

FETCH_TIMEOUT = 600.0  # seconds that a thread waits for a file


class NodeArtifacts:
    """The artifacts of one mesh. folder: of the cache, '' for none; limit: its bytes. key: of
    encrypted models, None without one. tell(kind, detail): publishes an event, `fetched` for each
    file that came.

    Of an encrypted model the cache holds the encrypted files, and what is made of them encrypted
    with the same key; the plaintext is in memory alone.
    """

    def __init__(
        self,
        registry: Registry,
        folder: str,
        limit: int,
        key: ModelKey | None = None,
        tell: Tell = lambda kind, detail: None,
    ) -> None:
        self._registry = registry
        self._key = key
        self._tell = tell
        self._cache = ArtifactCache(Path(folder).absolute(), limit) if folder else None
        self._is_open = False

    async def open(self) -> Folders | None:
        """Where files that are made of artifacts are kept; None where there is no cache."""
        if self._cache is not None and not self._is_open:
            try:
                await asyncio.to_thread(self._cache.open)
                self._is_open = True
            except OSError as error:
                log.warning("no cache of artifacts: %s", error)
                self._cache = None
        return self._cache

    async def folders(self, manifest: Manifest) -> Folders | None:
        """`open`, for what is made of this version: None where it is encrypted."""
        folders = await self.open()
        return None if manifest.sealed else folders

    async def vault(self, manifest: Manifest) -> Vault | None:
        """Where what is made of an encrypted version is kept; None for another one, and where
        there is no cache or no key."""
        await self.open()
        if not manifest.sealed or self._cache is None or self._key is None:
            return None
        return SealedCache(self._cache, self._key)

    async def get(self, manifest: Manifest, name: str) -> bytes | Path:
        """A verified artifact: its file in the cache, or its bytes where there is no cache, and
        where it is encrypted. Opening an encrypted one authenticates it; who parses the plaintext
        compares it with its hash first, as it does with any file.

        Raises `NotFound`, `Unavailable`, and ArtifactError for a file that is not the manifest's;
        `BadKey` and `BadSeal` for an encrypted one that cannot be opened.
        """
        sealed = manifest.sealed.get(name)
        if sealed is None:
            digest = manifest.digest(name)
            data = await self._stored(manifest, name, digest)
            if isinstance(data, Path):
                return data
            return await asyncio.to_thread(verify, data, digest, name)
        title, key = f"{name} of {manifest.model}@{manifest.version}", self._key
        if key is None:
            raise BadKey(f"{title} is encrypted: start this node with --model-key")
        stored = await self._stored(manifest, name, sealed.sha256)

        def opened() -> bytes:
            return key.unseal(stored.read_bytes() if isinstance(stored, Path) else stored, title)

        return await asyncio.to_thread(opened)

    async def _stored(self, manifest: Manifest, name: str, digest: str) -> bytes | Path:
        """An artifact as it lies in the object store: its verified file in the cache, else its
        bytes, not verified yet."""
        model, version = manifest.model, manifest.version
        await self.open()
        if self._cache is not None:
            try:
                return await self._kept(self._cache, manifest, name, digest)
            except WrongBytes as error:
                raise ArtifactError(f"{name}: {error}: push it again") from None
            except OSError as error:
                log.warning("%s is not kept in the cache: %s", name, error)
        return (await self._registry.fetch(model, version, [name]))[name]

    async def _kept(self, cache: ArtifactCache, manifest: Manifest, name: str, digest: str) -> Path:
        """A verified artifact in the cache. Raises as `ArtifactCache.artifact`."""
        found = await cache.has(digest)
        if found is not None:
            return found
        model, version = manifest.model, manifest.version
        recipe = await self._registry.recipe(model, version, name)
        if recipe is not None and recipe.size == _stored_bytes(manifest, name):
            try:
                part_of = partial(self._registry.part, recipe)
                assembled = await cache.assembled(digest, recipe, part_of)
            except WrongBytes as error:
                log.warning("%s is fetched as a whole: its recipe leads to %s", name, error)
            else:
                if assembled.made:
                    self._fetched(manifest, name, assembled.fetched, assembled.size)
                return assembled.path
        path = await cache.artifact(digest, lambda: self._registry.artifact(model, version, name))
        size = path.stat().st_size
        self._fetched(manifest, name, size, size)
        return path

    def _fetched(self, manifest: Manifest, name: str, fetched: int, size: int) -> None:
        share = fetched / size if size else 1.0
        text = f"{name}: {fetched / 1e6:.2f} of {size / 1e6:.2f} MB fetched ({share:.0%})"
        log.info("%s@%s %s", manifest.model, manifest.version, text)
        self._tell(
            "fetched",
            {
                "model": manifest.model,
                "version": manifest.version,
                "file": name,
                "fetched": fetched,
                "bytes": size,
                "detail": text,
            },
        )

    def fetcher(self, manifest: Manifest) -> Fetch:
        """`get` for a thread beside the event loop that calls this."""
        loop = asyncio.get_running_loop()

        def fetch(name: str) -> bytes | Path:
            getting = asyncio.run_coroutine_threadsafe(self.get(manifest, name), loop)
            try:
                return getting.result(FETCH_TIMEOUT)
            except TimeoutError:
                getting.cancel()
                raise

        return fetch


def _stored_bytes(manifest: Manifest, name: str) -> int:
    """An artifact's bytes in the object store; -1 where the manifest does not tell."""
    if name in manifest.sealed:
        return manifest.sealed[name].bytes
    if manifest.lighter is not None and manifest.lighter.file == name:
        return manifest.lighter.bytes
    return next((shard.bytes for shard in manifest.shards if shard.file == name), -1)
