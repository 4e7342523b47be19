"""What a link waits for: replies to its requests, and PONGs, which the server sends in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from swarm.errors import SwarmError
from swarm.link.types import LinkMessage
from swarm.subjects import without_domain


class OpenRequests:
    """By the subject on which each expects its reply."""

    __slots__ = ("_answers",)

    def __init__(self) -> None:
        self._answers: dict[str, tuple[str, asyncio.Future[LinkMessage]]] = {}

    def begin(self, reply: str, subject: str, answer: asyncio.Future[LinkMessage]) -> None:
        """A request to `subject` is sent now, and somebody awaits `answer`."""
        self._answers[reply] = (subject, answer)

    def end(self, reply: str) -> None:
        """Nobody waits for it any more."""
        self._answers.pop(reply, None)

    def fail(self, error: SwarmError, subject: str | None = None) -> bool:
        """Requests to `subject`, or all of them with None, get no answer; whether there were any,
        whose callers are told by the error."""
        found = False
        for asked, answer in self._answers.values():
            if subject in (None, asked, without_domain(asked)) and not answer.done():
                answer.set_exception(error)
                found = True
        return found


def answered(answer: asyncio.Future[LinkMessage], message: LinkMessage) -> None:
    """The reply to a request came; a later reply to it changes nothing."""
    if not answer.done():
        answer.set_result(message)


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
