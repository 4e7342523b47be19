"""Requests under way over one link, and those that will get no answer. Pure but for the futures."""

from __future__ import annotations

import asyncio

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
    """The reply to a request came; a later one says nothing new."""
    if not answer.done():
        answer.set_result(message)
