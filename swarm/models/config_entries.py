"""Values of the config bucket: the newest of a key that can be believed, or this host's copy of it.

Whoever can write to a key can spoil it. The bucket keeps older revisions of each key, so a value
that cannot be believed stands in nobody's way: readers go back to the one that it has covered. With
a verifier a value is believed that it takes, which is none below the highest counter that was seen;
without one, a value that can be parsed. A newer value that is signed is never passed by, whatever
stands in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from swarm.errors import PermissionDenied, SwarmError, Unavailable, Untrusted
from swarm.link import Link, jetstream
from swarm.security import files
from swarm.security.signed_entries import Verifier

log = logging.getLogger("swarm.registry")

MOST_OLDER = jetstream.HISTORY  # revisions that are read behind one that is not believed
MOST_BYTES = 64 << 20  # of one copy on the disk

Parse = Callable[[bytes], object]
"""Raises `SwarmError` for what is no value of its key."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A key's value that can be believed, None where it has none. headers: it was stored with
    these; b"" where it is from this host's disk. revision: the newest of the key, believed or not.
    counter: of its signature, 0 without one. refusal: why the newest revision is not believed."""

    data: bytes | None
    headers: bytes = b""
    revision: int = 0
    counter: int = 0
    refusal: SwarmError | None = None

    def value(self) -> bytes | None:
        """Raises `refusal` where there is nothing else to believe."""
        if self.data is None and self.refusal is not None:
            raise self.refusal
        return self.data


class _Revision(NamedTuple):
    """One revision of a key as it is stored; number: 0 where there is none."""

    data: bytes | None
    number: int
    headers: bytes


class ConfigEntries:
    """Reads the keys of one bucket. verifier: None believes what can be parsed. copies: this host's
    own, for when the bucket cannot be read, or holds nothing to believe."""

    def __init__(
        self, link: Link, bucket: str, verifier: Verifier | None, copies: EntryCopies | None
    ) -> None:
        self._link = link
        self._bucket = bucket
        self._verifier = verifier
        self._copies = copies
        self._instead: dict[str, Entry] = {}  # by key: what is believed while it is spoilt

    async def read(self, key: str, parse: Parse) -> Entry:
        """The key's value. Raises `Unavailable`, and `Untrusted` for a copy that is refused."""
        try:
            newest = _Revision(*await jetstream.kv_message(self._link, self._bucket, key))
        except Unavailable as away:
            found = await self._from_disk(key)
            if found is None:
                raise
            log.info("%s is read from this host's disk: %s", key, away)
            return found
        try:
            entry = self._checked(key, newest, parse)
        except SwarmError as refusal:
            before = await self._before(key, newest, parse)
            if before is None:
                # What was removed is gone: such as a manifest, whose version is pushed anew.
                refused = None if newest.data is None else refusal
                return Entry(None, newest.headers, newest.number, refusal=refused)
            entry = replace(before, revision=newest.number, refusal=refusal)
            known = self._instead.get(key)
            if known is None or known.revision != newest.number:
                log.warning("%s: the last value that can be believed holds: %s", key, refusal)
            self._instead[key] = entry
        else:
            self._instead.pop(key, None)
        await self._copy(key, entry)
        return entry

    async def _before(self, key: str, newest: _Revision, parse: Parse) -> Entry | None:
        """What can be believed instead of the newest revision."""
        known = self._instead.get(key)
        if known is not None and known.revision == newest.number:
            # Readers come again and again; its signer may not be trusted any more.
            with contextlib.suppress(SwarmError):
                self._checked(key, _Revision(known.data, newest.number, known.headers), parse)
                return known
        found = await self._older(key, newest.number, parse)
        if found is None and newest.data is not None:
            with contextlib.suppress(Untrusted):
                found = await self._from_disk(key)
        return found

    def _checked(self, key: str, revision: _Revision, parse: Parse) -> Entry:
        """Raises `SwarmError` where the value cannot be believed."""
        data, number, headers = revision
        if self._verifier is None:
            if data is not None:
                parse(data)
            return Entry(data, headers, number)
        if data is not None:
            counter = self._verifier.check(self._bucket, key, data, headers).counter
            return Entry(data, headers, number, counter)
        if number:
            raise Untrusted(f"{key} in {self._bucket} was removed, which nobody has signed")
        return Entry(None)

    async def _older(self, key: str, number: int, parse: Parse) -> Entry | None:
        """The newest revision before this one that has a value to believe."""
        for _ in range(MOST_OLDER):
            try:
                found = await jetstream.kv_before(self._link, self._bucket, key, number)
            except PermissionDenied as error:  # credentials that are older than this right
                log.debug("%s: older revisions cannot be read: %s", key, error)
                return None
            number = found[1]
            if not number:
                return None
            try:
                entry = self._checked(key, _Revision(*found), parse)
            except SwarmError as error:
                log.debug("revision %d of %s is refused too: %s", number, key, error)
            else:
                # Without a verifier an end counts as a value does, and nothing before it.
                return None if entry.data is None else entry
        return None

    async def _copy(self, key: str, entry: Entry) -> None:
        if self._copies is None or entry.data is None or not entry.headers:
            return
        try:
            await asyncio.to_thread(self._copies.save, self._bucket, key, entry.data, entry.headers)
        except OSError as error:
            log.warning("%s is not copied for a start without the registry: %s", key, error)

    async def _from_disk(self, key: str) -> Entry | None:
        """This host's copy. Raises `Untrusted`."""
        if self._copies is None:
            return None
        try:
            found = await asyncio.to_thread(self._copies.load, self._bucket, key)
        except OSError as error:
            log.warning("%s cannot be read from this host's disk: %s", key, error)
            return None
        if found is None:
            return None
        data, headers = found
        if self._verifier is None:
            return Entry(data)
        return Entry(data, counter=self._verifier.check(self._bucket, key, data, headers).counter)


class EntryCopies:
    """Entries on this host's disk, for a start while the registry is away.

        FOLDER/SHA256    length of the headers u32, the headers with the signature, the value

    They are signed, so that whoever reads one checks it as if the server had sent it. folder: this
    user's alone.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._saved: dict[Path, bytes] = {}

    def save(self, bucket: str, key: str, value: bytes, headers: bytes) -> None:
        """Keep an entry, in place of an older one. Raises `OSError`."""
        path, data = self._path(bucket, key), len(headers).to_bytes(4, "big") + headers + value
        if self._saved.get(path) != data:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            files.replace(path, data, 0o600)
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
