"""An edge's results on their way to whoever listens: kept until the server has read them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from swarm.errors import MessageTooLarge, NotConnected, ResourceExhausted, SwarmError
from swarm.link import Link

log = logging.getLogger("swarm.node")

MOST_KEPT = 1024  # results; the oldest ones go first


class KeptResults:
    """Publishes results on one subject, in their order.

    A result that was written to a connection which is lost before the server has read it is
    published again by the next one: a listener may get it twice, and tells it by its sequence
    number. dropped: results that were never published, because too many waited or one was too
    large.
    """

    def __init__(self, link: Link, subject: str) -> None:
        self.dropped = 0
        self._link = link
        self._subject = subject
        self._kept: deque[bytes] = deque()
        # Numbers of results since the start: the first that is kept, the next to publish.
        self._first = 0
        self._next = 0
        self._is_asking = False
        link.on_up.append(self._publish_again)

    def __len__(self) -> int:
        """Results that the server may not have yet."""
        return len(self._kept)

    def publish(self, data: bytes) -> None:
        """Publish a result now, or as soon as there is a connection."""
        if len(self._kept) >= MOST_KEPT:
            if self._next <= self._first:
                if not self.dropped:
                    log.warning("%d results wait for a connection: the oldest go", MOST_KEPT)
                self.dropped += 1
            self._forget_first()
        self._kept.append(data)
        self._publish()

    def _publish_again(self) -> None:
        self._next = self._first
        self._publish()

    def _publish(self) -> None:
        while (at := self._next - self._first) < len(self._kept):
            try:
                self._link.publish(self._subject, self._kept[at])
            except ResourceExhausted:
                break
            except MessageTooLarge as error:
                log.warning("a result is not published: %s", error)
                self.dropped += 1
                del self._kept[at]
                continue
            except SwarmError:
                return  # the next connection begins with it
            self._next += 1
        self._ask()

    def _ask(self) -> None:
        """Find out whether the server has read what was published."""
        if self._is_asking or self._next == self._first:
            return
        try:
            read = self._link.sync()
        except NotConnected:
            return
        self._is_asking = True
        until = self._next

        def answered(answer: asyncio.Future[None]) -> None:
            self._is_asking = False
            if answer.cancelled() or answer.exception() is not None:
                return
            while self._first < until:
                self._forget_first()
            self._publish()

        read.add_done_callback(answered)

    def _forget_first(self) -> None:
        self._kept.popleft()
        self._first += 1
        self._next = max(self._next, self._first)
