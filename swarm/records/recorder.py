"""Writes records in the background: bounded, in one chain, without keeping a request waiting."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from swarm.errors import NotConnected, PermissionDenied, SwarmError
from swarm.flow.backoff import Backoff
from swarm.link import Link, jetstream
from swarm.records.chain import MOST_DOUBTS
from swarm.records.record import BEGINNING, RecordEntry, agent_token, digest_of, seal
from swarm.records.stream import ensure_audit
from swarm.records.subjects import RecordSubjects
from swarm.subjects import Subjects

log = logging.getLogger("swarm.records")

Digests = Mapping[str, Mapping[str, np.ndarray] | str]  # by field: tensors, or their hash


# How one recorder works. All times are seconds.
RECORDS = 1024  # records that may wait for the stream; more are lost, and counted
TENSOR_BYTES = 64 << 20  # bytes of tensors that may wait to be hashed, beyond one record's
# Bytes up to which tensors are hashed in the event loop; more of them in a thread.
HASHED_AT_ONCE = 16 << 10
STORE_TIMEOUT = 2.0  # time within which the stream has to answer
PAUSE = 0.05  # first pause between two attempts to store; each is twice as long as the last one
LONGEST_PAUSE = 2.0  # longest pause between two attempts to store
CLOSE_TIMEOUT = 2.0  # time for the rest of the records when the recorder closes


@dataclass(slots=True)
class RecorderCounters:
    """written: records that are stored. elsewhere: requests that another recorder told of. lost:
    records that had no room while the stream was away or full."""

    written: int = 0
    elsewhere: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class _Waiting:
    entry: RecordEntry
    digests: Digests
    nbytes: int


class Recorder:
    """One recorder's chain. `offer` never waits and never raises; `run()` writes until cancelled;
    `close()` writes the rest and the chain's end.

    name: of the chain, a token; a process's own. tell(text): is called when records begin to be
    lost, and when they are stored again.
    """

    def __init__(
        self,
        link: Link,
        subjects: Subjects,
        name: str,
        tell: Callable[[str], None],
    ) -> None:
        self.name = name
        self.counters = RecorderCounters()
        self.sequence, self.head = 0, BEGINNING  # of the last record that is stored
        self._link = link
        self._subjects = RecordSubjects.of(subjects)
        self._tell = tell
        self._waiting: deque[_Waiting] = deque()
        self._bytes = 0
        self._unsaid = 0  # lost records that no record has told of
        # The hashes that `prev` may stand for too, the latest first: see `_follows`.
        self._or: list[str] = []
        self._losing = False
        self._denied = False
        self._offered = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def waiting(self) -> int:
        """Records that are not stored yet."""
        return len(self._waiting)

    def offer(self, entry: RecordEntry, digests: Digests | None = None) -> None:
        """Record this, unless too much waits. digests: fields whose hash the record has."""
        nbytes = sum(_nbytes(value) for value in (digests or {}).values())
        if len(self._waiting) >= RECORDS or (self._waiting and self._bytes + nbytes > TENSOR_BYTES):
            self.counters.lost += 1
            self._unsaid += 1
            if not self._losing:
                self._losing = True
                self._say(f"records are lost: {len(self._waiting)} wait for the audit's stream")
            return
        self._waiting.append(_Waiting(entry, digests or {}, nbytes))
        self._bytes += nbytes
        self._idle.clear()
        self._offered.set()

    async def run(self) -> None:
        """Write what is offered, until cancelled."""
        with contextlib.suppress(SwarmError):  # it is tried again with the first record
            await self._link.ready()
            await ensure_audit(self._link, self._subjects)
        while True:
            await self._offered.wait()
            self._offered.clear()
            while self._waiting:
                first = self._waiting[0]
                await self._write(await _hashed(first, HASHED_AT_ONCE))
                self._waiting.popleft()
                self._bytes -= first.nbytes
                if self._losing and not self._waiting:
                    self._losing = False
                    self._say(f"records are stored again; {self.counters.lost} were lost")
            self._idle.set()

    async def close(self, entry: RecordEntry) -> None:
        """Offer the chain's last record, and wait until all are stored, for a while."""
        self.offer(entry)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._idle.wait()
        if self._waiting:
            log.warning("%d records of the audit were not stored", len(self._waiting))

    async def _write(self, entry: RecordEntry) -> None:
        """Store one record, as soon as the stream takes it."""
        more: dict[str, Any] = {"lost": self._unsaid} if self._unsaid else {}
        if self._or:
            more["or"] = " ".join(self._or)
        data, digest = seal(entry, self.name, self.sequence + 1, self.head, **more)
        subject = self._subjects.audit(
            entry.agent if entry.kind == "act" else agent_token(entry.agent)
        )
        # Two recorders of one request give it one id. The question is part of it: a requester that
        # uses an id twice hides no other question behind the first.
        asked = f"{entry.request}/{str(entry.fields.get('input', ''))[:16]}"
        # Who could tell the id of an act beforehand could store something else under it.
        message_id = asked if entry.request else f"{self.name}/{self.sequence + 1}/{digest}"
        headers = f"NATS/1.0\r\nNats-Msg-Id: {message_id}\r\n\r\n".encode()
        pauses, doubtful = Backoff(PAUSE, LONGEST_PAUSE), False
        while True:
            try:
                stored = await self._store(subject, data, headers)
                break
            except (TimeoutError, NotConnected):
                # It may be stored, its answer lost with the connection: its message id makes a copy
                # harmless.
                doubtful = True
            except PermissionDenied as error:
                if not self._denied:
                    self._denied = True
                    self._say(str(error))
            except SwarmError as error:
                log.debug("a record waits: %s", error)
            # Where somebody listens to the subject, a stream that is missing shows as silence.
            with contextlib.suppress(SwarmError):
                await ensure_audit(self._link, self._subjects)
            await asyncio.sleep(pauses.next())
        if not stored and not doubtful:
            self.counters.elsewhere += 1
            return
        before = self.head
        self.sequence, self.head = self.sequence + 1, digest
        # A copy was there already: this record, or another recorder's of the same request.
        self._or = [] if stored else [before, *self._or][:MOST_DOUBTS]
        self._unsaid -= more.get("lost", 0)
        self.counters.written += 1

    async def _store(self, subject: str, data: bytes, headers: bytes) -> bool:
        """Whether it was stored now; False where the stream had a record of that id. Raises
        `TimeoutError`, `SwarmError`."""
        answer = await self._link.request(subject, data, STORE_TIMEOUT, headers, from_server=True)
        return not jetstream.parse(answer.data).get("duplicate")

    def _say(self, text: str) -> None:
        log.warning("audit: %s", text)
        self._tell(text)


async def _hashed(waiting: _Waiting, at_once: int) -> RecordEntry:
    """The entry with its hashes. at_once: bytes that are hashed in the event loop."""
    if not waiting.digests:
        return waiting.entry

    def hashes() -> dict[str, str]:
        return {
            name: value if isinstance(value, str) else digest_of(value)
            for name, value in waiting.digests.items()
        }

    small = waiting.nbytes <= at_once
    found = hashes() if small else await asyncio.to_thread(hashes)
    return replace(waiting.entry, fields={**waiting.entry.fields, **found})


def _nbytes(value: Mapping[str, np.ndarray] | str) -> int:
    return 0 if isinstance(value, str) else sum(array.nbytes for array in value.values())
