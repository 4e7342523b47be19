"""The releases of a mesh, its wave, the words of its devices: in a key store and an object store.

Keys of the bucket `swarm-<mesh>-upgrades`:

    release.<version>    what a release consists of, signed; `_` stands for the version's dots
    wave                 the wave that runs, or the last one, signed
    device.<name>        a device's last word, written by that device alone

The files lie in the object store `swarm-<mesh>-releases`, named by their hashes, so that releases
share what they have in common.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from nodes.upgrade.release import Release, ReleaseFile, checked_version, is_whole
from nodes.upgrade.wave import DeviceStatement, Wave, parse_wave, told
from swarm.documents import SignedDocuments
from swarm.errors import ApiError, InvalidArgument, NotFound, Unavailable, Untrusted
from swarm.link import Link, jetstream
from swarm.models.artifacts import ObjectStore
from swarm.security.identity import Identity
from swarm.security.signed_entries import Verifier
from swarm.subjects import Subjects, token

AT_A_TIME = 16  # keys that are read at a time
WAVE = "wave"
FILES = "file/"  # before a hash, in the name of an object


class Releases:
    """signer: signs releases and waves; verifier: decides what is taken. Without them nothing is
    signed, and everything is taken. All methods raise `Unavailable`, `ApiError`."""

    def __init__(
        self,
        link: Link,
        subjects: Subjects,
        signer: Identity | None = None,
        verifier: Verifier | None = None,
    ) -> None:
        self._link = link
        self._subjects = subjects
        self._bucket = subjects.bucket("upgrades")
        self._objects = ObjectStore(link, subjects.bucket("releases"))
        stored = link, self._bucket
        self._releases = SignedDocuments(*stored, _read_release, signer, verifier)
        self._waves = SignedDocuments(*stored, _read_wave, signer, verifier)

    async def prepare(self) -> None:
        """Make the key store, unless it is there."""
        await jetstream.ensure_bucket(self._link, self._bucket, f"{self._subjects.root}.upgrades")

    # --- releases -------------------------------------------------------------------------

    async def push(
        self, folder: Path, release: Release, sent: Callable[[int], None] = lambda size: None
    ) -> int:
        """Store a release; returns how many bytes of it were not there yet. The document goes last:
        a release is there as a whole, or not at all. Raises `InvalidArgument` where this version is
        another one already."""
        key = _release_key(release.version)
        await self.prepare()
        present = await self._releases.read(key)
        known = None if present.document is None else present.document.to_json()
        if known is None:  # what is not believed is signed by pushing the same again
            known = await jetstream.kv_get(self._link, self._bucket, key)
        if known not in (None, release.to_json()):
            raise InvalidArgument(
                f"release {release.version} is there with other files: a release never changes, so "
                "give this one a new version"
            )
        by_hash = {FILES + each.sha256: folder / name for name, each in release.files.items()}
        lacking = await self._objects.lacking("", by_hash)
        await self._objects.put("", {name: by_hash[name] for name in lacking}, sent=sent)
        await _taken(self._releases.write(key, release.to_json(), present), key)
        sizes = {FILES + each.sha256: each.size for each in release.files.values()}
        return sum(sizes[name] for name in lacking)

    async def release(self, version: str) -> Release:
        """Raises `NotFound`, `Untrusted`, `InvalidArgument`."""
        release = (await self._releases.read(_release_key(version))).believed()
        if release is None:
            raise NotFound(f"this mesh has no release {version}: `swarm release push DIR`")
        return release

    async def fetch(self, release: Release, folder: Path, known: list[Path]) -> None:
        """Have the files of a release in a folder, whole. known: folders with files of other
        releases, which are taken from there. Raises `NotFound`, `InvalidArgument`, `OSError`."""
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        for name, wanted in release.files.items():
            if await asyncio.to_thread(_is_there, folder, name, wanted, known):
                continue
            partial = folder / f".{name}.part"
            with partial.open("wb") as file:
                async for chunk in self._objects.read(FILES + wanted.sha256):
                    await asyncio.to_thread(file.write, chunk)
                    if file.tell() > wanted.size:
                        break
                file.flush()
                await asyncio.to_thread(os.fsync, file.fileno())
            os.replace(partial, folder / name)
            if not await asyncio.to_thread(is_whole, folder, name, wanted):
                (folder / name).unlink()
                raise InvalidArgument(f"{name} of release {release.version} has another hash")

    # --- the wave -------------------------------------------------------------------------

    async def begin(self, wave: Wave) -> None:
        """Store a wave, of a release that is there, in place of the one before."""
        await self.release(wave.version)
        await self.prepare()
        await self._store_wave(wave)

    async def wave(self) -> tuple[Wave, float] | None:
        """The last wave, and when it was begun, in seconds of the server. Raises `Untrusted`,
        `InvalidArgument`."""
        found = await self._waves.read(WAVE)
        known = found.believed()
        if known is None:
            return None
        wave, began = known
        return wave, began or jetstream.stored_at(found.headers)

    async def stop(self, reason: str) -> Wave:
        """Stop the wave that runs. Raises `NotFound`."""
        found = await self.wave()
        if found is None:
            raise NotFound("there is no wave: `swarm fleet upgrade --to VERSION` begins one")
        wave, began = found
        stopped = parse_wave(wave.document() | {"stopped": reason})
        await self._store_wave(stopped, began)
        return stopped

    async def _store_wave(self, wave: Wave, began: float = 0.0) -> None:
        document = wave.document() | ({"began": began} if began else {})
        present = await self._waves.read(WAVE)
        await _taken(self._waves.write(WAVE, json.dumps(document).encode(), present), WAVE)

    # --- devices --------------------------------------------------------------------------

    async def tell(self, device: str, document: dict[str, Any]) -> None:
        """Store a device's word."""
        key = f"device.{token(device, 'device')}"
        await jetstream.kv_put(self._link, self._bucket, key, json.dumps(document).encode())

    async def devices(self) -> dict[str, DeviceStatement]:
        """The last word of each device; one that cannot be read is left out."""
        keys = await jetstream.kv_keys(self._link, self._bucket, "device")
        found: dict[str, DeviceStatement] = {}
        for at in range(0, len(keys), AT_A_TIME):
            some = keys[at : at + AT_A_TIME]
            asked = (jetstream.kv_message(self._link, self._bucket, key) for key in some)
            for key, (data, _, headers) in zip(some, await asyncio.gather(*asked), strict=True):
                word = _word(data, jetstream.stored_at(headers))
                if word is not None:
                    found[key.partition(".")[2]] = word
        return found

    async def now(self) -> float:
        """The second by the clock of the server."""
        return await jetstream.server_time(self._link, f"KV_{self._bucket}") or time.time()


def _release_key(version: str) -> str:
    return f"release.{checked_version(version).replace('.', '_')}"


def _read_release(key: str, data: bytes) -> Release:
    release = Release.from_json(data)
    if _release_key(release.version) != key:
        raise InvalidArgument(f"the {key} says that it is {release.version}")
    return release


def _read_wave(key: str, data: bytes) -> tuple[Wave, float]:
    """A wave, and when it was begun; 0.0 where that is when it was stored."""
    try:
        document = json.loads(data)
        return parse_wave(document), float(document.get("began", 0.0))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidArgument(f"the {key} cannot be read: {error}") from None


async def _taken(written: Awaitable[bool], key: str) -> None:
    if not await written:
        raise Unavailable(f"somebody else has changed {key} meanwhile: try again")


def _word(data: bytes | None, at: float) -> DeviceStatement | None:
    try:
        return None if data is None else told(json.loads(data), at)
    except (ValueError, InvalidArgument, RecursionError):
        return None


def _is_there(folder: Path, name: str, wanted: ReleaseFile, known: list[Path]) -> bool:
    """Whether a file is in the folder, or now is, by a link to that of another release."""
    if is_whole(folder, name, wanted):
        return True
    for other in known:
        if other != folder and is_whole(other, name, wanted):
            (folder / name).unlink(missing_ok=True)
            os.link(other / name, folder / name)
            return True
    return False


# What says that a release is bad, or is not there, and not that its store is away.
BAD = (InvalidArgument, NotFound, Untrusted)
AWAY = (Unavailable, ApiError, TimeoutError)
