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

from . import slots
from .arena import Arena
from .claim import Claim, checked_mesh
from .errors import ShmError
from .host import RESERVE_BYTES, SHM_DIRECTORY, free_bytes, host_id, unavailable
from .segment import OwnedSegment

# Bytes of a tensor from which a claim is cheaper than the bytes, which fit into no socket.
MIN_BYTES = 19 << 10
CAPACITY = 64 << 20  # bytes of shared memory, of one sender
GROWTH_STEP = 4 << 20  # bytes; growing by them takes 2 ms at most, which an event loop can bear
MAX_AGE = 30.0  # seconds
IDLE_AFTER = 60.0  # seconds
RETRY_AFTER = 5.0  # seconds between tries to make a segment where that failed
DRAIN_LOOK_EVERY = 0.02  # seconds


@dataclass(frozen=True, slots=True)
class RingStats:
    """Counts since the ring was made, and the present size (bytes include slot headers)."""

    put: int = 0
    refused: int = 0
    released: int = 0
    expired: int = 0
    outstanding: int = 0
    allocated_bytes: int = 0


@dataclass(slots=True)
class _Counts:
    put: int = 0
    refused: int = 0
    released: int = 0
    expired: int = 0


class _Slot(NamedTuple):
    sequence: int
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
        self._space = _Space(checked_mesh(mesh), capacity, directory)
        self._max_age = max_age
        self._idle_after = idle_after
        self._lock = threading.Lock()
        self._slots: dict[int, _Slot] = {}  # by offset, oldest first
        self._words = deque(range(slots.DONE_WORDS))  # free, the one that has rested longest first
        # 62 random bits, even: never met by chance in a payload, room to count for ever.
        self._sequence = secrets.randbits(62) & ~1
        self._counts = _Counts()
        self._used_at = 0.0
        self._closed = False
        _rings.add(self)

    @property
    def reason(self) -> str | None:
        """Why shared memory could not be used at the last try, for a status page; else None."""
        return self._space.reason

    @property
    def stats(self) -> RingStats:
        """Counts so far and the present size. A slot that a receiver is done with, and that was
        not collected yet, counts as released."""
        with self._lock:
            done = len(self._done_slots())
            counts, space = self._counts, self._space
            return RingStats(
                counts.put,
                counts.refused,
                counts.released + done,
                counts.expired,
                outstanding=len(self._slots) - done,
                allocated_bytes=0 if space.segment is None else space.segment.size,
            )

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
        size = slots.slot_bytes(length)
        moment = time.monotonic() if now is None else now
        with self._lock:
            if not self._words:
                self._collect()
            if not self._words:
                self._expire(moment)
            offset = self._allocate(size, moment) if length and self._words else None
            segment = self._space.segment
            if offset is None or segment is None:
                self._counts.refused += 1
                return None
            sequence, word = self._sequence, self._words.popleft()
            self._sequence += 2
            self._slots[offset] = _Slot(sequence, size, moment, word)
            self._used_at = moment
            self._counts.put += 1
            check = slots.write(segment.view, offset, sequence, views, length)
        return Claim(self._space.host, segment.name, offset, length, sequence, check, word)

    def release(self, claim: Claim) -> bool:
        """Free the slot: no process will ever read it. False when it was free already."""
        with self._lock:
            slot = self._slots.get(claim.offset)
            if slot is None or slot.sequence != claim.sequence:
                return False
            self._free(claim.offset, slot)
            self._counts.released += 1
            return True

    def holds(self, claim: Claim) -> bool:
        """Whether the slot is still there for a receiver: nobody released it, no receiver is done
        with it, and it was not freed by age."""
        with self._lock:
            slot, segment = self._slots.get(claim.offset), self._space.segment
            if slot is None or segment is None or slot.sequence != claim.sequence:
                return False
            return not slots.is_done(segment.view, slot.word, slot.sequence)

    def collect(self) -> int:
        """Free the slots that receivers are done with; returns how many. `put` does so only when it
        finds no room: call this when nothing waits, and the memory that is used again is still in
        the caches."""
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
            segment = self._space.segment
            if segment is not None:
                idle = not self._slots and moment - self._used_at >= self._idle_after
                if idle or not segment.is_linked():
                    self._drop(unlink=True)
        return count

    async def drain(self, linger: float) -> bool:
        """Wait up to `linger` seconds until every slot has been released; True when they were."""
        loop = asyncio.get_running_loop()
        end = loop.time() + linger
        while self.stats.outstanding:
            if loop.time() >= end:
                return False
            await asyncio.sleep(min(linger, DRAIN_LOOK_EVERY))
        return True

    def close(self, *, abandon: bool = False) -> None:
        """Give up the segment; every later `put` answers None. Idempotent.

        Args:
            abandon: leave the file to the other nodes' `sweep`, so that claims which still wait
                in a stream stay good for its grace. For a ring that did not drain in time.
        """
        with self._lock:
            self._closed = True
            self._collect()
            self._drop(unlink=not (abandon and self._slots))

    def disown(self) -> None:
        """In a forked child: the segment is the parent's, and so must its lock be."""
        self._lock = threading.Lock()  # a thread of the parent may have held the old one
        self._closed = True
        with contextlib.suppress(BufferError):  # a thread of the parent was copying
            self._drop(unlink=False)

    def _allocate(self, size: int, now: float) -> int | None:
        space = self._space
        if self._closed or size > space.most_bytes or not space.make(now):
            return None
        offset = space.allocate(size)
        if offset is None and self._collect() + self._expire(now):
            offset = space.allocate(size)
        if offset is None and space.grow(size):
            offset = space.allocate(size)
        return offset

    def _done_slots(self) -> list[int]:
        """The offsets of the slots that receivers are done with. 0.3 us for each slot in use."""
        segment = self._space.segment
        if segment is None or not self._slots:
            return []
        view, is_done = segment.view, slots.is_done
        return [o for o, s in self._slots.items() if is_done(view, s.word, s.sequence)]

    def _collect(self) -> int:
        done = self._done_slots()
        for offset in done:
            self._free(offset, self._slots[offset])
        self._counts.released += len(done)
        return len(done)

    def _expire(self, now: float) -> int:
        old = [item for item in self._slots.items() if now - item[1].since > self._max_age]
        for offset, slot in old:
            self._free(offset, slot)
        self._counts.expired += len(old)
        return len(old)

    def _free(self, offset: int, slot: _Slot) -> None:
        # Invalid before free: a reader of the old slot must not see new bytes under its header.
        # `slots.write` does not invalidate the space again.
        if self._space.segment is not None:
            slots.invalidate(self._space.segment.view, offset, slot.sequence)
        del self._slots[offset]
        self._words.append(slot.word)
        self._space.free(offset, slot.size)

    def _drop(self, *, unlink: bool) -> None:
        self._slots.clear()
        self._words = deque(range(slots.DONE_WORDS))
        self._space.drop(unlink=unlink)


class _Space:
    """The segment of a ring, made at its first use, and its free bytes. Not thread-safe.

    host: `host_id` of this process, "" before the first segment. reason: why there is no segment,
    or no larger one; None when the last try went well.
    """

    def __init__(self, mesh: str, capacity: int, directory: str) -> None:
        self.segment: OwnedSegment | None = None
        self.host = ""
        self.reason: str | None = None
        self._mesh = mesh
        self._capacity = capacity
        self._directory = directory
        self._arena = Arena(slots.FIRST_SLOT, slots.FIRST_SLOT)
        self._retry_at = 0.0

    @property
    def most_bytes(self) -> int:
        """The size of the largest slot, header included."""
        room = self._capacity - slots.FIRST_SLOT
        return room - room % slots.ALIGNMENT

    def allocate(self, size: int) -> int | None:
        """The offset of `size` free bytes; None when there is no such gap."""
        return self._arena.allocate(size)

    def free(self, offset: int, size: int) -> None:
        """Give back bytes that `allocate` handed out."""
        self._arena.free(offset, size)

    def make(self, now: float) -> bool:
        """See to it that there is a segment; False, with a `reason`, when there can be none."""
        if self.segment is not None:
            return True
        if now < self._retry_at:
            return False
        self.reason = unavailable(self._directory)
        if self.reason is None:
            try:
                self.host = host_id(self._directory)
                self.segment = OwnedSegment.create(self._directory, self._mesh, self._capacity)
                self._arena = Arena(slots.FIRST_SLOT, slots.FIRST_SLOT)
                return True
            except (OSError, ShmError) as error:
                self.reason = f"{self._directory}: {error}"
        self._retry_at = now + RETRY_AFTER
        return False

    def grow(self, size: int) -> bool:
        """Make the segment longer, so that `size` bytes are free at its end; False, with a
        `reason`, when the host has no room, or when the capacity is reached."""
        segment = self.segment
        if segment is None:
            return False
        missing = size - self._arena.free_tail
        end = min(self._capacity, segment.size + slots.align(missing, GROWTH_STEP))
        end -= end % slots.ALIGNMENT
        if end < segment.size + missing:
            return False
        try:
            if free_bytes(self._directory) < end - segment.size + RESERVE_BYTES:
                self.reason = f"{self._directory} has no room to grow to {end} bytes"
                return False
            segment.grow(end)
        except OSError as error:
            self.reason = f"{self._directory}: {error}"
            return False
        self.reason = None
        self._arena.extend(end)
        return True

    def drop(self, *, unlink: bool) -> None:
        """Give up the segment, if there is one; `make` makes another."""
        segment, self.segment = self.segment, None
        if segment is not None:
            segment.close(unlink=unlink)


_rings: weakref.WeakSet[Ring] = weakref.WeakSet()


def _disown_all() -> None:
    for ring in list(_rings):
        ring.disown()


# A forked child inherits the locked descriptor: were it kept, the dead parent's segment would look
# alive for as long as the child runs.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
