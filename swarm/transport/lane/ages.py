"""The ages of a lane's messages, by the clock of the server that leads the lane's stream.

An age that matters is not believed by itself: the server's clock may have been set since it was
read last. It is read again, and only an age that holds then is sure. One question answers for all
messages that came before it was sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from swarm.clock import ServerClock
from swarm.errors import SwarmError
from swarm.transport.lane.message import LaneMessage

log = logging.getLogger("swarm.transport.lane")

APART = 0.005  # seconds between an answer and the next question
ANSWERS_WITHIN = 0.5  # seconds; nobody knows the age of what waited longer for an answer


class Ages:
    """`run()` reads the clock when it is asked to. read(): reads it once; raises `SwarmError`."""

    def __init__(self, clock: ServerClock, read: Callable[[], Awaitable[None]]) -> None:
        self._clock = clock
        self._read = read
        self._wanted = asyncio.Event()
        self._waiting: list[Callable[[], None]] = []

    def age(self, message: LaneMessage) -> float:
        """Seconds as far as is known. Asks for the clock to be read where it cannot be right."""
        stored, received = message.stored, message.received
        age = self._clock.age(stored, received)
        if not age and self._clock.is_from_the_future(stored, received):
            self._wanted.set()
        return age / 1e9

    def least(self, message: LaneMessage) -> float | None:
        """Seconds that the message has surely lain in the lane; None while that is not known."""
        age = self._clock.least_age(message.stored, message.received)
        return None if age is None else age / 1e9

    def measure(self, then: Callable[[], None] | None = None) -> None:
        """Have the clock read; then() is called when it was, or could not be."""
        if then is not None:
            self._waiting.append(then)
        self._wanted.set()

    async def run(self) -> None:
        """Until cancelled; nobody waits for it any more then."""
        try:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                waiting, self._waiting = self._waiting, []
                try:
                    async with asyncio.timeout(ANSWERS_WITHIN):
                        await self._read()
                except (SwarmError, TimeoutError) as error:
                    log.debug("the server's clock was not read: %s", error)
                finally:
                    for then in waiting:
                        then()
                await asyncio.sleep(APART)
        finally:
            waiting, self._waiting = self._waiting, []
            for then in waiting:
                then()
