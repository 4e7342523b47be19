"""Who has which bytes of a segment: a first-fit allocator, pure bookkeeping."""

from __future__ import annotations

from bisect import bisect_left


class Arena:
    """Extents of the half-open range `[start, end)`, in bytes; touches no memory.

    First fit, lowest address first: a stage that passes one tensor at a time writes the same,
    cache-warm pages again and again. Releases come in any order (a slow stage, a redelivery),
    which a plain ring cannot serve without one late release blocking all space behind it.
    """

    def __init__(self, start: int, end: int) -> None:
        self._start, self._end = start, end
        self._free: list[tuple[int, int]] = [(start, end)] if end > start else []

    @property
    def end(self) -> int:
        """Where the arena ends, bytes."""
        return self._end

    @property
    def free_bytes(self) -> int:
        """Bytes in no extent."""
        return sum(end - start for start, end in self._free)

    @property
    def free_tail(self) -> int:
        """Free bytes right before the end, which growing does not have to add."""
        if self._free and self._free[-1][1] == self._end:
            return self._end - self._free[-1][0]
        return 0

    def allocate(self, size: int) -> int | None:
        """The offset of `size` (at least 1) contiguous bytes; None when there is no such gap."""
        for index, (start, end) in enumerate(self._free):
            if end - start == size:
                del self._free[index]
                return start
            if end - start > size:
                self._free[index] = (start + size, end)
                return start
        return None

    def free(self, offset: int, size: int) -> None:
        """Give `[offset, offset + size)` back; neighbouring gaps become one.

        Raises:
            ValueError: part of it is free already, or outside the arena.
        """
        end = offset + size
        index = bisect_left(self._free, (offset, end))
        before = self._free[index - 1] if index else None
        after = self._free[index] if index < len(self._free) else None
        overlaps = (before and before[1] > offset) or (after and after[0] < end)
        if overlaps or size < 1 or offset < self._start or end > self._end:
            raise ValueError(f"[{offset}, {end}) is not an extent of this arena")
        if after and after[0] == end:
            end = after[1]
            del self._free[index]
        if before and before[1] == offset:
            offset = before[0]
            index -= 1
            del self._free[index]
        self._free.insert(index, (offset, end))

    def extend(self, end: int) -> None:
        """Move the end up to `end`.

        Raises:
            ValueError: `end` is not beyond the present one.
        """
        if end <= self._end:
            raise ValueError(f"an arena only grows: {end} is not beyond {self._end}")
        start, self._end = self._end, end
        self.free(start, end - start)
