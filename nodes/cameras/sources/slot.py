"""The slot of one between the thread that reads a camera and the event loop: the newest picture."""

from __future__ import annotations

import asyncio
import contextlib
import threading

from nodes.cameras.sources.feed import TakenPicture


class FrameSlot:
    """A picture that nobody took gives way to the next one.

    The reader calls `put` and `end`, the loop all else. put_count: pictures so far; dropped: those
    that gave way.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.put_count = 0
        self.dropped = 0
        self._loop = loop
        self._lock = threading.Lock()
        self._taken: tuple[int, TakenPicture] | None = None
        self._ended = False
        self._arrived = asyncio.Event()
        self._emptied = threading.Event()
        self._emptied.set()
        self._waited_for = self._was_asked = False

    @property
    def was_asked(self) -> bool:
        """Whether the consumer has asked for a picture."""
        return self._was_asked

    @property
    def is_waited_for(self) -> bool:
        """Whether the consumer waits for a picture: the reader may as well decode it."""
        return self._waited_for

    def put(self, taken: TakenPicture) -> None:
        """The newest picture."""
        with self._lock:
            was_empty = self._taken is None
            self.dropped += not was_empty
            self._taken = (self.put_count, taken)
            self.put_count += 1
            self._emptied.clear()
        if was_empty:
            self._wake()

    def pass_over(self) -> None:
        """A picture came that nobody gets: it is counted."""
        self.put_count += 1

    def end(self) -> None:
        """No picture will follow."""
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended before the thread
            self._loop.call_soon_threadsafe(self._arrived.set)

    def until_empty(self, timeout: float) -> bool:
        """Whether the picture was taken within `timeout` seconds. In the reader's thread."""
        return self._emptied.wait(timeout)

    async def arrived(self) -> bool:
        """Wait until there is a picture; False where none will follow."""
        self._was_asked = True
        while self._taken is None and not self._ended:
            self._arrived.clear()
            # The reader may have been between both lines.
            if self._taken is not None or self._ended:
                break
            self._waited_for = True
            try:
                await self._arrived.wait()
            finally:
                self._waited_for = False
        return self._taken is not None

    def take(self) -> tuple[int, TakenPicture] | None:
        """The picture with its number, None where there is none."""
        with self._lock:
            taken, self._taken = self._taken, None
            self._emptied.set()
        return taken
