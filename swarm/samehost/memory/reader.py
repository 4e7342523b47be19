"""The receiver's side: a claim becomes a view of the sender's bytes, without a copy."""

from __future__ import annotations

import mmap
import os
import threading
from collections import OrderedDict

from . import slots
from .claim import Claim, checked_mesh, mesh_of
from .errors import ClaimError, ShmError, ShmForeign, ShmGone, ShmStale, ShmUnavailable
from .host import SHM_DIRECTORY, host_id
from .segment import open_segment

MOST_SEGMENTS = 32  # mapped at a time


class _Mapped:
    """A segment of another process: a read-only mapping of the bytes that it had when it was last
    mapped, and a descriptor, which also writes the done words."""

    __slots__ = ("file", "memory")

    def __init__(self, file: int) -> None:
        self.file = file
        self.memory: mmap.mmap | None = None

    def view(self, name: str, end: int) -> memoryview:
        if self.memory is None or len(self.memory) < end:
            # The old mapping, if any, lives on for as long as a view of it does.
            size = os.fstat(self.file).st_size
            if size < end:
                raise ShmGone(f"segment {name} was cut off")
            try:
                self.memory = mmap.mmap(self.file, size, mmap.MAP_SHARED, mmap.PROT_READ)
            except ValueError as error:  # shorter than a moment ago
                raise ShmGone(f"segment {name} was cut off") from error
            except OSError as error:
                raise ShmUnavailable(f"segment {name} cannot be mapped: {error}") from error
            if os.fstat(self.file).st_size < size:
                raise ShmGone(f"segment {name} was cut off")
        return memoryview(self.memory)

    def close(self) -> bool:
        """False when a view is still in use; nothing is closed then."""
        try:
            if self.memory is not None:
                self.memory.close()
        except BufferError:
            return False
        os.close(self.file)
        return True


class ClaimReader:
    """Opens claims of other processes of the same host, mesh and user. Thread-safe.

    `open` asks with `pread`, which cannot fault, whether the slot is within the file, so a segment
    cut off by its owner is an error here. One danger remains: a process *of the same user* that
    truncates a segment while a view of it is in use kills the reader with SIGBUS (tmpfs files
    cannot be sealed against it). Our own senders never shrink a file.

    Args:
        mesh: claims on segments of any other mesh are refused.
        most_segments: mappings kept open (two descriptors each); those in use are never closed.
        directory: where segments live.
    """

    def __init__(
        self, mesh: str, *, most_segments: int = MOST_SEGMENTS, directory: str = SHM_DIRECTORY
    ) -> None:
        self._mesh = checked_mesh(mesh)
        self._most_segments = most_segments
        self._directory = directory
        self._host = ""
        self._lock = threading.Lock()
        self._mapped: OrderedDict[str, _Mapped] = OrderedDict()  # least recently used first

    def open(self, claim: Claim) -> memoryview:
        """A read-only view of the payload, format "B", starting at a multiple of 64 bytes.

        The sender may recycle the slot while the view is in use: the bytes change then, silently.
        So `check` after use, and throw the result away when it says no.

        Raises:
            ClaimError: the claim is out of bounds, or names something that is no segment of ours.
            ShmForeign: it is of another host.
            ShmGone: the segment does not exist any more.
            ShmStale: the slot was recycled or is being written.
            ShmUnavailable: this host has no shared memory, or this process no descriptor left.
        """
        with self._lock:
            segment = self._segment(claim)
            end = _verify_end(segment.file, claim)
            memory = segment.view(claim.segment, end)
        if not _holds(memory, claim.offset, claim):
            raise _stale(claim)
        start = claim.offset + slots.SLOT_HEADER_BYTES
        payload = memory[start : start + claim.length]
        if slots.checksum(payload) != claim.checksum:
            raise ShmStale(f"slot at {claim.offset} of {claim.segment}: the checksum differs")
        return payload

    def check(self, claim: Claim) -> bool:
        """Whether the slot still holds the claim's tensor: ask after the use. Never raises.

        By the sequence number, which the owner makes odd before it touches anything else: `open`
        has compared the checksum already (measured: again here, with caches that the run has
        emptied, it takes 0.05 ms). As with the view itself, a hostile truncation ends this process.
        """
        segment = self._mapped.get(claim.segment)
        memory = None if segment is None else segment.memory
        if memory is not None:
            # Read where the payload was read: a system call takes 10 us behind a long run.
            try:
                return _holds(memory, claim.offset, claim)
            except ValueError:
                return self._read_check(claim)  # another thread has just closed it
        return self._read_check(claim)

    def _read_check(self, claim: Claim) -> bool:
        try:
            with self._lock:
                _verify(self._segment(claim).file, claim)
            return True
        except ShmError:
            return False

    def done(self, claim: Claim) -> bool:
        """Tell the owner that the slot is needed no more. Never raises.

        False when there is nobody to tell: the slot was freed already. (Its word may belong to
        another slot by then, and must not be overwritten.) False too when the word cannot be
        written: the slot is freed by age then.
        """
        if not self.check(claim):
            return False
        try:
            with self._lock:
                file = self._segment(claim).file
                at, word = slots.done_word(claim.word, claim.sequence)
                os.pwrite(file, word, at)
            return True
        except (OSError, ShmError):
            return False

    def prune(self) -> int:
        """Unmap deleted segments that no view uses, which frees their memory; returns how many.

        Call it after `sweep`, every few seconds.
        """
        with self._lock:
            deleted = [n for n, s in self._mapped.items() if not os.fstat(s.file).st_nlink]
            return sum(self._close(name) for name in deleted)

    def close(self) -> None:
        """Unmap everything. Views still in use stay valid and keep their memory."""
        with self._lock:
            for segment in self._mapped.values():
                if not segment.close():
                    os.close(segment.file)
            self._mapped.clear()

    def _segment(self, claim: Claim) -> _Mapped:
        if claim.host != self._host:
            self._learn_host(claim)
        segment = self._mapped.get(claim.segment)
        if segment is None:
            segment = self._map(claim.segment)
        self._mapped.move_to_end(claim.segment)
        return segment

    def _learn_host(self, claim: Claim) -> None:
        self._host = self._host or host_id(self._directory)
        if claim.host != self._host:
            raise ShmForeign(f"a claim of host {claim.host}, this is {self._host}")

    def _map(self, name: str) -> _Mapped:
        if mesh_of(name) != self._mesh:
            raise ClaimError(f"not a segment of mesh {self._mesh}")
        segment = self._mapped[name] = _Mapped(open_segment(self._directory, name))
        for other in list(self._mapped)[:-1]:
            if len(self._mapped) <= self._most_segments:
                break
            self._close(other)
        return segment

    def _close(self, name: str) -> bool:
        if closed := self._mapped[name].close():
            del self._mapped[name]
        return closed


def _holds(memory: mmap.mmap | memoryview | bytes, at: int, claim: Claim) -> bool:
    """Whether the bytes at `at` in `memory` are the header of the claim's slot."""
    expected = slots.header(claim.sequence, claim.length, claim.checksum)
    return memory[at : at + slots.SLOT_HEADER.size] == expected


def _stale(claim: Claim) -> ShmStale:
    return ShmStale(f"slot at {claim.offset} of {claim.segment} holds something else by now")


def _verify_end(file: int, claim: Claim) -> int:
    """Compare the slot's trailer with the claim, and return where the trailer ends. A trailer that
    can be read bounds the slot: it lies within the file.

    Raises:
        ClaimError: the slot lies outside the segment.
        ShmStale: it holds something else.
    """
    at = claim.offset + slots.trailer_offset(claim.length)
    trailer = os.pread(file, slots.TRAILER.size, at)
    if claim.offset < slots.FIRST_SLOT or len(trailer) < slots.TRAILER.size:
        raise ClaimError(f"slot [{claim.offset}, {at}) is outside {claim.segment}")
    if trailer != slots.trailer(claim.sequence):
        raise _stale(claim)
    return at + slots.TRAILER.size


def _verify(file: int, claim: Claim) -> None:
    """Compare the slot's trailer and header with the claim. Raises as `_verify_end`."""
    _verify_end(file, claim)
    if not _holds(os.pread(file, slots.SLOT_HEADER.size, claim.offset), 0, claim):
        raise _stale(claim)
