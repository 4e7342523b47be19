"""The sender's side: tensors copied once into shared memory, and kept until they are released."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from . import layout
from .arena import Arena
from .claim import Claim, checked_mesh
from .errors import ShmError
from .host import RESERVE_BYTES, SHM_DIRECTORY, free_bytes, host_id, unavailable
from .segment import OwnedSegment

# From here on a claim is cheaper than the bytes, which fit into no socket (measure.py).
MIN_BYTES = 19 << 10
CAPACITY = 64 << 20
CHUNK = 4 << 20  # growing by this much takes 2 ms at most: an event loop can bear it
MAX_AGE = 30.0
IDLE_AFTER = 60.0
RETRY_AFTER = 5.0
DRAIN_LOOK = 0.02  # seconds between looks while draining: once, at the end of a life


@dataclass(frozen=True, slots=True)
class RingStats:
    """Counts since the ring was made, and what it holds now (bytes include slot headers)."""

    put: int = 0
    refused: int = 0
    released: int = 0
    expired: int = 0
    outstanding: int = 0
    allocated_bytes: int = 0


class _Slot(NamedTuple):
    generation: int
    size: int
    since: float
    word: int


class Ring:
    """Bounded shared memory of one sender. Thread-safe; no method blocks for another process.

    Nothing is created before the first `put`. The segment grows in steps of 4 MiB up to its
    bound, never shrinks (a reader would die of SIGBUS), and is dropped as a whole when idle. Its
    pages count as memory of the container, so the bound belongs below the container's limit.

    Args:
        mesh: name of the mesh, part of the segment's name.
        capacity: most bytes of shared memory at a time, headers included; default 64 MiB.
        max_age: seconds after which `reclaim` takes a slot that nobody released; longer than the
            longest a claim can wait in a stream (`ack_wait` x deliveries, or the budget).
        idle_after: seconds without a slot after which `reclaim` returns the memory to the host.
        directory: where segments live.
    """

    def __init__(
        self,
        mesh: str,
        *,
        capacity: int = CAPACITY,
        max_age: float = MAX_AGE,
        idle_after: float = IDLE_AFTER,
        directory: str = SHM_DIRECTORY,
    ) -> None:
        self._mesh = checked_mesh(mesh)
        self._capacity = capacity
        self._max_age = max_age
        self._idle_after = idle_after
        self._directory = directory
        self._lock = threading.Lock()
        self._segment: OwnedSegment | None = None
        self._arena = Arena(layout.FIRST_SLOT, layout.FIRST_SLOT)
        self._slots: dict[int, _Slot] = {}  # by offset, oldest first
        # That no slot uses, the one that has rested longest first: a receiver that comes late
        # then says it of nobody.
        self._words = deque(range(layout.WORDS))
        # 62 random bits, even: never met by chance in a payload, room to count for ever.
        self._generation = secrets.randbits(62) & ~1
        self._host = ""
        self._put = self._refused = self._released = self._expired = 0
        self._reason: str | None = None
        self._retry_at = 0.0
        self._used_at = 0.0
        self._closed = False
        _rings.add(self)

    @property
    def reason(self) -> str | None:
        """Why shared memory could not be used at the last try, for a status page; else None."""
        return self._reason

    @property
    def stats(self) -> RingStats:
        """Counts so far and the present size."""
        with self._lock:
            self._collect()
        counts = self._put, self._refused, self._released, self._expired
        size = self._segment.size if self._segment else 0
        return RingStats(*counts, outstanding=len(self._slots), allocated_bytes=size)

    def put(
        self, parts: Sequence[memoryview | bytes | bytearray], *, now: float | None = None
    ) -> Claim | None:
        """Copy `parts`, one after another without padding, into one slot.

        The payload starts at a multiple of 64 bytes. The slot stays until `release`, until a
        receiver is done with it, or until `reclaim` finds it older than `max_age`, so a redelivered
        message finds it again.

        Args:
            parts: contiguous buffers of any item type.
            now: seconds of CLOCK_MONOTONIC.

        Returns:
            The claim to publish. None when there is no room, the payload is empty or larger than
            the ring, shared memory is unavailable or the ring is closed: send the bytes then.

        Raises:
            TypeError: a part is not contiguous.
        """
        views = [view.cast("B") for part in parts if (view := memoryview(part)).nbytes]
        length = sum(map(len, views))
        size = layout.slot_bytes(length)
        moment = time.monotonic() if now is None else now
        with self._lock:
            if not self._words:
                self._collect()
            if not self._words:
                self._expire(moment)
            offset = self._allocate(size, moment) if length and self._words else None
            segment = self._segment
            if offset is None or segment is None:
                self._refused += 1
                return None
            slot = _Slot(self._generation, size, moment, self._words.popleft())
            self._generation += 2
            self._slots[offset] = slot
            self._used_at = moment
            self._put += 1
            check = segment.write(offset, slot.generation, views, length)
        place = (segment.name, offset, length)
        return Claim(self._host, *place, slot.generation, check, slot.word)

    def release(self, claim: Claim) -> bool:
        """Free the slot: nobody will ever read it. False when it was free already."""
        with self._lock:
            slot = self._slots.get(claim.offset)
            if slot is None or slot.generation != claim.generation:
                return False
            self._free(claim.offset, slot)
            self._released += 1
            return True

    def holds(self, claim: Claim) -> bool:
        """Whether the slot is still there for a receiver: nobody released it, no receiver is done
        with it, and it was not freed by age."""
        with self._lock:
            slot, segment = self._slots.get(claim.offset), self._segment
            if slot is None or segment is None or slot.generation != claim.generation:
                return False
            return not segment.is_done(slot.word, slot.generation)

    def collect(self) -> int:
        """Free what receivers are done with; returns how many. `put` does so only when it finds no
        room: call it when nothing waits, and the memory that is used again is still in the caches.
        """
        with self._lock:
            return self._collect()

    def reclaim(self, now: float | None = None) -> int:
        """Free every slot older than `max_age` and return how many; call it every second or so.

        Also drops a segment that has been idle, or whose name somebody deleted.
        """
        moment = time.monotonic() if now is None else now
        with self._lock:
            self._collect()
            count = self._expire(moment)
            segment = self._segment
            if segment is not None:
                idle = not self._slots and moment - self._used_at >= self._idle_after
                if idle or not segment.linked():
                    self._drop(unlink=True)
        return count

    def prepare(self, size: int) -> str | None:
        """Allocate `size` bytes ahead, so that no `put` has to: at start, in a worker thread.

        Returns:
            None, or why it is not possible.
        """
        size = layout.align(min(size, self._capacity - layout.FIRST_SLOT - layout.ALIGNMENT))
        with self._lock:
            moment = time.monotonic()
            offset = self._allocate(size, moment)
            if offset is None:
                return self._reason or "the ring is closed, or has no room left"
            self._arena.free(offset, size)
            self._used_at = moment
        return None

    async def drain(self, linger: float) -> bool:
        """Wait up to `linger` seconds until every slot has been released; True when they were."""
        end = time.monotonic() + linger
        while self.stats.outstanding:
            if time.monotonic() >= end:
                return False
            await asyncio.sleep(min(linger, DRAIN_LOOK))
        return True

    def close(self, *, abandon: bool = False) -> None:
        """Give up the segment; every later `put` answers None. Idempotent.

        Args:
            abandon: leave the file to the other nodes' `sweep`, so that claims which still wait
                in a stream stay good for its grace. For a ring that did not drain in time.
        """
        with self._lock:
            self._closed = True
            if self._segment is not None:
                self._drop(unlink=not (abandon and self._slots))

    def _allocate(self, size: int, now: float) -> int | None:
        if self._closed or layout.FIRST_SLOT + size > self._capacity:
            return None
        if self._segment is None and not self._create(now):
            return None
        offset = self._arena.allocate(size)
        if offset is None and self._collect() + self._expire(now):
            offset = self._arena.allocate(size)
        if offset is None and self._grow(size):
            offset = self._arena.allocate(size)
        return offset

    def _create(self, now: float) -> bool:
        if now < self._retry_at:
            return False
        self._reason = unavailable(self._directory)
        if self._reason is None:
            try:
                self._host = host_id(self._directory)
                self._segment = OwnedSegment.create(self._directory, self._mesh, self._capacity)
                self._arena = Arena(layout.FIRST_SLOT, layout.FIRST_SLOT)
                return True
            except (OSError, ShmError) as error:
                self._reason = f"{self._directory}: {error}"
        self._retry_at = now + RETRY_AFTER
        return False

    def _grow(self, size: int) -> bool:
        segment = self._segment
        if segment is None:
            return False
        missing = size - self._arena.free_tail
        end = min(self._capacity, segment.size + layout.align(missing, CHUNK))
        end -= end % layout.ALIGNMENT
        if end < segment.size + missing:
            return False
        try:
            if free_bytes(self._directory) < end - segment.size + RESERVE_BYTES:
                self._reason = f"{self._directory} has no room to grow to {end} bytes"
                return False
            segment.grow(end)
        except OSError as error:
            self._reason = f"{self._directory}: {error}"
            return False
        self._reason = None
        self._arena.extend(end)
        return True

    def _collect(self) -> int:
        """Free what receivers are done with, and return how many. 0.3 us for each slot in use."""
        segment = self._segment
        if segment is None or not self._slots:
            return 0
        done = [o for o, s in self._slots.items() if segment.is_done(s.word, s.generation)]
        for offset in done:
            self._free(offset, self._slots[offset])
        self._released += len(done)
        return len(done)

    def _expire(self, now: float) -> int:
        old = [item for item in self._slots.items() if now - item[1].since > self._max_age]
        for offset, slot in old:
            self._free(offset, slot)
        self._expired += len(old)
        return len(old)

    def _free(self, offset: int, slot: _Slot) -> None:
        # Invalid before free: a reader of the old slot must not see new bytes under its header,
        # and whoever writes there next does not invalidate it again.
        if self._segment is not None:
            self._segment.invalidate(offset, slot.generation)
        del self._slots[offset]
        self._words.append(slot.word)
        self._arena.free(offset, slot.size)

    def _drop(self, *, unlink: bool) -> None:
        if self._segment is not None:
            self._segment.close(unlink=unlink)
        self._segment = None
        self._slots.clear()
        self._words = deque(range(layout.WORDS))

    def _forget(self) -> None:
        """In a forked child: the segment is the parent's, and so must its lock be."""
        self._lock = threading.Lock()  # a thread of the parent may have held the old one
        self._closed = True
        with contextlib.suppress(BufferError):  # a thread of the parent was copying
            self._drop(unlink=False)


_rings: weakref.WeakSet[Ring] = weakref.WeakSet()


def _forget_all() -> None:
    for ring in list(_rings):
        ring._forget()


# A forked child inherits the locked descriptor: were it kept, the dead parent's segment would look
# alive for as long as the child runs.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
