"""Values of the config bucket that can be believed: the newest one, or else the newest that can.

Whoever can write to a key can spoil it. The bucket keeps older revisions of each key, so a value
that cannot be believed stands in nobody's way: readers go back to the one that it has covered. With
a verifier a value is believed that it takes, which is none below the highest counter that was seen;
without one, a value that can be parsed. A newer value that is signed is never passed by, whatever
stands in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from swarm.errors import PermissionDenied, SwarmError, Unavailable, Untrusted
from swarm.link import Link, jetstream
from swarm.models.kept_entries import KeptEntries
from swarm.security.entries import Verifier

log = logging.getLogger("swarm.registry")

MOST_OLDER = jetstream.HISTORY  # revisions that are read behind one that is not believed


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


class BelievedEntries:
    """Reads the keys of one bucket. verifier: None believes what can be parsed. kept: this host's
    copy, for when the bucket cannot be read, or holds nothing to believe."""

    def __init__(
        self, link: Link, bucket: str, verifier: Verifier | None, kept: KeptEntries | None
    ) -> None:
        self._link = link
        self._bucket = bucket
        self._verifier = verifier
        self._kept = kept
        self._instead: dict[str, Entry] = {}  # by key: what is believed while it is spoilt

    async def read(self, key: str, parse: Callable[[bytes], object]) -> Entry:
        """The key's value. parse raises `SwarmError` for what is no value of this key.

        Raises `Unavailable`, and `Untrusted` for what this host has kept instead.
        """
        try:
            data, revision, headers = await jetstream.kv_message(self._link, self._bucket, key)
        except Unavailable as away:
            found = await self._on_disk(key)
            if found is None:
                raise
            log.info("%s is taken from this host's disk: %s", key, away)
            return found
        try:
            entry = self._believed(key, data, revision, headers, parse)
        except SwarmError as refusal:
            before = await self._before(key, data, revision, parse)
            if before is None:
                # What was removed is gone: such as a manifest, whose version is pushed anew.
                return Entry(None, headers, revision, refusal=None if data is None else refusal)
            entry = replace(before, revision=revision, refusal=refusal)
            known = self._instead.get(key)
            if known is None or known.revision != revision:
                log.warning("%s: the last value that can be believed holds: %s", key, refusal)
            self._instead[key] = entry
        else:
            self._instead.pop(key, None)
        await self._keep(key, entry)
        return entry

    async def _before(
        self, key: str, data: bytes | None, revision: int, parse: Callable[[bytes], object]
    ) -> Entry | None:
        """What can be believed instead of this revision."""
        known = self._instead.get(key)
        if known is not None and known.revision == revision:
            # Readers look again and again; its signer may not be trusted any more.
            with contextlib.suppress(SwarmError):
                self._believed(key, known.data, revision, known.headers, parse)
                return known
        found = await self._older(key, revision, parse)
        if found is None and data is not None:
            with contextlib.suppress(Untrusted):
                found = await self._on_disk(key)
        return found

    def _believed(
        self,
        key: str,
        data: bytes | None,
        revision: int,
        headers: bytes,
        parse: Callable[[bytes], object],
    ) -> Entry:
        """Raises `SwarmError` where the value cannot be believed."""
        if self._verifier is None:
            if data is not None:
                parse(data)
            return Entry(data, headers, revision)
        if data is None:
            if revision:
                raise Untrusted(f"{key} in {self._bucket} was removed, which nobody has signed")
            return Entry(None)
        counter = self._verifier.check(self._bucket, key, data, headers).counter
        return Entry(data, headers, revision, counter)

    async def _older(
        self, key: str, revision: int, parse: Callable[[bytes], object]
    ) -> Entry | None:
        """The newest revision before this one that has a value to believe."""
        for _ in range(MOST_OLDER):
            try:
                data, revision, headers = await jetstream.kv_before(
                    self._link, self._bucket, key, revision
                )
            except PermissionDenied as error:  # credentials that are older than this right
                log.debug("%s: older revisions cannot be read: %s", key, error)
                return None
            if not revision:
                return None
            try:
                entry = self._believed(key, data, revision, headers, parse)
            except SwarmError as error:
                log.debug("revision %d of %s is refused too: %s", revision, key, error)
            else:
                # Without a verifier an end counts as a value does, and nothing before it.
                return None if entry.data is None else entry
        return None

    async def _keep(self, key: str, entry: Entry) -> None:
        if self._kept is None or entry.data is None or not entry.headers:
            return
        try:
            await asyncio.to_thread(self._kept.save, self._bucket, key, entry.data, entry.headers)
        except OSError as error:
            log.warning("%s is not kept for a start without the registry: %s", key, error)

    async def _on_disk(self, key: str) -> Entry | None:
        """What this host has kept. Raises `Untrusted`."""
        if self._kept is None:
            return None
        try:
            found = await asyncio.to_thread(self._kept.load, self._bucket, key)
        except OSError as error:
            log.warning("%s cannot be read from this host's disk: %s", key, error)
            return None
        if found is None:
            return None
        data, headers = found
        counter = 0
        if self._verifier is not None:
            counter = self._verifier.check(self._bucket, key, data, headers).counter
        return Entry(data, counter=counter)
