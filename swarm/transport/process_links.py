"""The links of one process, and its ways over them: one connection, or two.

On a slow connection a small message waits behind a large one, so models with large messages may
have a second connection. All messages of a model version share one connection, and rely on its
order: an answer reaches the server before its acknowledgement.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from typing import Any

from swarm.errors import SwarmError
from swarm.fleet.advertised import StagePeer
from swarm.fleet.placement import Placement
from swarm.link import Link, LinkOptions
from swarm.model import ModelInfo
from swarm.samehost.host_socket import HostSocket
from swarm.samehost.lending import Lender
from swarm.subjects import Subjects, second_inbox
from swarm.transport.handover.acks import NAK
from swarm.transport.lane import Publisher
from swarm.transport.routes import Routes
from swarm.transport.second_connection import LONGEST_S, ConnectionStep, checked_setting, next_step

log = logging.getLogger("swarm.link")

PAUSE_S = 0.01  # between two PINGs: a machine that is busy now may have a core free by then
SECOND_TIMEOUT = 5.0  # seconds
MOST_ROUNDS = 3  # vain ones over all servers; a server that has no room says so in each

Own = Callable[[Coroutine[Any, Any, None], str], "asyncio.Task[None]"]
"""Starts some work, by its name, as a task that ends with the process's links."""


class Links:
    """serving(info, stage): the nodes known of that serve a stage. short_cuts: whether messages may
    go by shared memory and sockets on one host. codec: a checked setting
    (`swarm.wire.codec_choice`). two: `auto`, `on`, `off` or a bool, whether there are two.

    link, routes: the first one, and the ways over it. bulk: the ways of models with large messages,
    which are the same until `connected` has decided. Raises `InvalidArgument` for another setting.
    """

    def __init__(
        self,
        options: LinkOptions,
        subjects: Subjects,
        serving: Callable[[ModelInfo, int], Iterable[StagePeer]],
        short_cuts: bool,
        codec: str,
        two: str | bool,
    ) -> None:
        self._setting = checked_setting(two)
        self._subjects = subjects
        self.link = Link(options)
        self.lender = Lender(self.link, subjects.mesh, short_cuts)
        self.socket = HostSocket(self.link, on_no_listener=self._no_listener)
        self.placement = Placement(self.lender.host, serving)
        self.routes = self.bulk = Routes(
            self.link,
            subjects,
            Publisher(self.link),
            self.lender,
            self.socket,
            self.placement,
            codec=codec,
        )

    @property
    def all(self) -> tuple[Link, ...]:
        """One, or two."""
        bulk = self.bulk.link
        return (self.link,) if bulk is self.link else (self.link, bulk)

    def routes_for(self, info: ModelInfo) -> Routes:
        """The ways of all messages of a model version."""
        return self.bulk if info.is_large else self.routes

    @property
    def inbox(self) -> str:
        """Where processes of this host reach this one without the server, as a rule; "" where they
        share no memory."""
        return self.link.options.inbox if self.lender.host else ""

    # --- life -------------------------------------------------------------------------

    async def connected(self, timeout: float, own: Own) -> bool:
        """Wait up to `timeout` seconds for the first connection, whose `run` is under way; decide
        about a second one, and be reachable for the processes of this host. Whether there are two:
        `bulk` is another one from now on. Raises `NotConnected`, `NotAdmitted`."""
        await self.link.ready(timeout)
        two = await self._decide() is ConnectionStep.TWO and await self._open_second(own)
        if self.inbox:
            self.socket.open()
        return two

    async def _decide(self) -> ConnectionStep:
        """Measures only where the setting and the first round trip leave it open."""
        trips = [self.link.send_rate.round_trip]
        while (step := next_step(self._setting, trips)) is ConnectionStep.MEASURE:
            await asyncio.sleep(PAUSE_S)
            trips.append(await _round_trip(self.link))
        return step

    async def _open_second(self, own: Own) -> bool:
        options = self.link.options
        inbox, name = second_inbox(options.inbox), f"{options.name}-bulk"
        link = Link(replace(options, inbox=inbox, name=name))
        task = own(link.run(), "second link")
        try:
            await link.ready(SECOND_TIMEOUT, MOST_ROUNDS)
        except SwarmError as error:
            task.cancel()
            log.warning("one connection for small and large messages, for want of two: %s", error)
            return False
        self.socket.answer_for(link)
        self.lender.follow(link)
        self.bulk = self.routes.over(link, Publisher(link))
        trip = self.link.send_rate.round_trip * 1e3
        log.info("models with large messages have their own connection (%.1f ms away)", trip)
        return True

    def tend(self) -> None:
        """Call about every second."""
        self.lender.tend()
        self.socket.tend()

    async def close(self) -> None:
        """Free what the process holds, and disconnect."""
        self.routes.publisher.close()
        self.bulk.publisher.close()
        self.socket.close()
        await self.lender.close()
        for link in self.all:
            await link.close()

    def _no_listener(self, subject: str, data: bytes, reply: str) -> None:
        """A message came for a stage that is not served here any more. A lane keeps it once its
        sender hears so; fast mode has no lane: the message goes to the nodes that serve it now."""
        if reply:
            self.socket.answer(reply, [NAK], lambda sent: None)
        elif subject.startswith(f"{self._subjects.root}.fresh."):
            with contextlib.suppress(SwarmError):  # the requester asks again
                self.link.publish(subject, data)


async def _round_trip(link: Link) -> float:
    """Seconds of a PING and its PONG; `LONGEST_S` where that takes longer, or the connection is
    lost."""
    asked = time.monotonic()
    try:
        async with asyncio.timeout(LONGEST_S):
            await link.sync()
    except (SwarmError, TimeoutError):
        return LONGEST_S
    trip = time.monotonic() - asked
    link.send_rate.tripped(trip)
    return trip
