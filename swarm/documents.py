"""Documents of a key store, signed: the newest of a key that can be believed, or this host's copy.

Whoever can write to a key can spoil it. The bucket keeps older revisions of each key, so readers go
back from a document that cannot be believed to the one before it. With a verifier, a document is
believed if the verifier takes it, which it does not below the highest counter that was seen.
Without one, a document is believed if it can be parsed. A newer one that is signed is never passed
by, whatever stands in it. A document is replaced by compare-and-set on its key's revision.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from swarm.errors import PermissionDenied, SwarmError, Unavailable, Untrusted
from swarm.link import Link, jetstream
from swarm.security import files
from swarm.security.identity import Identity
from swarm.security.signed_entries import HEADER, Verifier, sign_entry

log = logging.getLogger("swarm.registry")

MOST_OLDER = jetstream.HISTORY  # revisions that are read behind one that is not believed
MOST_BYTES = 64 << 20  # of one copy on the disk

T = TypeVar("T")
Parse = Callable[[str, bytes], T]
"""Of a key and its value. Raises `SwarmError` for what is no value of this key."""


@dataclass(frozen=True, slots=True)
class StoredDocument(Generic[T]):
    """A key's document that can be believed, None where it has none. data: its bytes, which are
    there too where they are signed and cannot be parsed. headers: it was stored with these; b""
    where it is from this host's disk. revision: the newest of the key, believed or not. counter: of
    its signature, 0 where none was checked. refusal: why the newest revision is not believed."""

    document: T | None
    data: bytes | None = None
    headers: bytes = b""
    revision: int = 0
    counter: int = 0
    refusal: SwarmError | None = None

    def believed(self) -> T | None:
        """Raises `refusal` where there is nothing else to believe."""
        if self.document is None and self.refusal is not None:
            raise self.refusal
        return self.document


class _Revision(NamedTuple):
    """One revision of a key as it is stored; number: 0 where there is none."""

    data: bytes | None
    number: int
    headers: bytes


class SignedDocuments(Generic[T]):
    """Documents of one kind, in one bucket. signer: None signs nothing. verifier: None believes
    what can be parsed. copies: this host's own, for when the bucket cannot be read, or holds
    nothing to believe."""

    def __init__(
        self,
        link: Link,
        bucket: str,
        parse: Parse[T],
        signer: Identity | None = None,
        verifier: Verifier | None = None,
        copies: Copies | None = None,
    ) -> None:
        self._link = link
        self._bucket = bucket
        self._parse = parse
        self._signer = signer
        self._verifier = verifier
        self._copies = copies
        self._counter = 0  # the last one that was signed here
        self._instead: dict[
            str, StoredDocument[T]
        ] = {}  # by key: what is believed while it is spoilt

    async def write(self, key: str, value: bytes, over: StoredDocument[Any]) -> bool:
        """Store a value in the place of what was read, signed where there is a signer; its counter
        is above that one's. False where the key has another revision by now. Raises `Unavailable`.
        """
        more = {}
        if self._signer is not None:
            # Counters follow the clock, so that they keep growing where a server has lost the last
            # value.
            now = await jetstream.signing_time(self._link, self._bucket)
            self._counter = max(now, over.counter + 1, self._counter + 1)
            signature = sign_entry(self._signer, self._bucket, key, self._counter, value)
            more[HEADER] = signature.text()
        stored = await jetstream.kv_replace(
            self._link, self._bucket, key, value, after=over.revision, more=more
        )
        return stored is not None

    async def read(self, key: str) -> StoredDocument[T]:
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
            entry = self._checked(key, newest)
        except SwarmError as refusal:
            before = await self._before(key, newest)
            if before is None:
                # What was removed is gone: such as a manifest, whose version is pushed anew.
                refused = None if newest.data is None else refusal
                return StoredDocument(None, None, newest.headers, newest.number, refusal=refused)
            entry = replace(before, revision=newest.number, refusal=refusal)
            known = self._instead.get(key)
            if known is None or known.revision != newest.number:
                log.warning("%s: the last value that can be believed holds: %s", key, refusal)
            self._instead[key] = entry
        else:
            self._instead.pop(key, None)
        await self._copy(key, entry)
        return entry

    async def _before(self, key: str, newest: _Revision) -> StoredDocument[T] | None:
        """What can be believed instead of the newest revision."""
        known = self._instead.get(key)
        if known is not None and known.revision == newest.number:
            # Readers come again and again; its signer may not be trusted any more.
            with contextlib.suppress(SwarmError):
                self._checked(key, _Revision(known.data, newest.number, known.headers))
                return known
        found = await self._older(key, newest.number)
        if found is None and newest.data is not None:
            with contextlib.suppress(Untrusted):
                found = await self._from_disk(key)
        return found

    def _checked(self, key: str, revision: _Revision) -> StoredDocument[T]:
        """Raises `SwarmError` where the value cannot be believed."""
        data, number, headers = revision
        if data is None:
            if number and self._verifier is not None:
                raise Untrusted(f"{key} in {self._bucket} was removed, which nobody has signed")
            return StoredDocument(None, None, headers, number)
        found = self._verified(key, data, headers, number)
        if self._verifier is None and found.refusal is not None:
            raise found.refusal
        return found

    def _verified(
        self, key: str, data: bytes, headers: bytes, number: int = 0
    ) -> StoredDocument[T]:
        """Parsed as far as it can be. Raises `Untrusted`."""
        counter = 0
        if self._verifier is not None:
            counter = self._verifier.check(self._bucket, key, data, headers).counter
        try:
            return StoredDocument(self._parse(key, data), data, headers, number, counter)
        except SwarmError as refusal:
            return StoredDocument(None, data, headers, number, counter, refusal)

    async def _older(self, key: str, number: int) -> StoredDocument[T] | None:
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
                entry = self._checked(key, _Revision(*found))
            except SwarmError as error:
                log.debug("revision %d of %s is refused too: %s", number, key, error)
            else:
                # Without a verifier an end counts as a value does, and nothing before it.
                return None if entry.data is None else entry
        return None

    async def _copy(self, key: str, entry: StoredDocument[T]) -> None:
        if self._copies is None or entry.data is None or not entry.headers:
            return
        try:
            await asyncio.to_thread(self._copies.save, self._bucket, key, entry.data, entry.headers)
        except OSError as error:
            log.warning("%s is not copied for a start without the registry: %s", key, error)

    async def _from_disk(self, key: str) -> StoredDocument[T] | None:
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
        return replace(self._verified(key, *found), headers=b"")


class Copies:
    """Documents on this host's disk, for a start while the registry is away.

        FOLDER/SHA256    length of the headers u32, the headers with the signature, the value

    They are signed, so that whoever reads one checks it as if the server had sent it. folder: this
    user's alone.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._saved: dict[Path, bytes] = {}

    def save(self, bucket: str, key: str, value: bytes, headers: bytes) -> None:
        """Keep a document, in place of an older one. Raises `OSError`."""
        path, data = self._path(bucket, key), len(headers).to_bytes(4, "big") + headers + value
        if self._saved.get(path) != data:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            files.replace(path, data, 0o600)
            self._saved[path] = data

    def load(self, bucket: str, key: str) -> tuple[bytes, bytes] | None:
        """The value and the headers of a document, or None. Raises `OSError`."""
        try:
            with self._path(bucket, key).open("rb") as file:
                data = file.read(MOST_BYTES)
        except FileNotFoundError:
            return None
        size = int.from_bytes(data[:4], "big")
        return data[4 + size :], data[4 : 4 + size]

    def _path(self, bucket: str, key: str) -> Path:
        return self._folder / hashlib.sha256(f"{bucket}/{key}".encode()).hexdigest()
