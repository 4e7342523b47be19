"""PINGs that were sent and whose PONGs are to come: the server answers them in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

MOST_UNANSWERED = 2  # keep-alives in a row; then the server counts as hung


class Pings:
    """One connection's. A caller that sent a PING waits for the future of `expect`."""

    __slots__ = ("_waiting", "unanswered")

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None] | Callable[[], None]] = deque()
        self.unanswered = 0  # keep-alives since the last sign of life

    def is_hung(self, patience: float = 0.0) -> bool:
        """Whether the server has left too many keep-alives unanswered.

        patience: intervals more, for what is before them on a slow link."""
        return self.unanswered >= MOST_UNANSWERED + int(patience)

    def expect(self) -> asyncio.Future[None]:
        """A PING is sent now; the future completes with its PONG."""
        pong: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(pong)
        return pong

    def then(self, callback: Callable[[], None]) -> None:
        """A PING is sent now; `callback` is called at its PONG, which may never come."""
        self._waiting.append(callback)

    def keep_alive(self, callback: Callable[[], None] = lambda: None) -> None:
        """A PING is sent now that has to be answered in time; as `then`."""
        self.unanswered += 1
        self.then(callback)

    def answered(self) -> None:
        """A PONG came; a server may send one that nobody has asked for."""
        self.unanswered = 0
        if self._waiting:
            pong = self._waiting.popleft()
            if not isinstance(pong, asyncio.Future):
                pong()
            elif not pong.done():
                pong.set_result(None)

    def fail(self, error: Exception) -> None:
        """No PONG will come: every future gets `error`."""
        for pong in self._waiting:
            if isinstance(pong, asyncio.Future) and not pong.done():
                pong.set_exception(error)
        self._waiting.clear()
