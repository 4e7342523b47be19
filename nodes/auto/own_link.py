"""What this node knows of its link to the server, for plans: the traffic tells, or rare probes.

A node that has just come, and one that has no stage, has no traffic. It sends a message to itself
by way of the server now and then, and takes both ways of the link as alike.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from functools import partial

from nodes.versions.serving import FAST_LINK
from swarm.auto.links import NEAR, NodeLink
from swarm.errors import SwarmError
from swarm.flow.transfers import NEAR_S
from swarm.link import Link, LinkMessage
from swarm.link.awaited import answered
from swarm.link.send_rate import NEAR_FIRST

log = logging.getLogger("swarm.planning")

PROBE = bytes(32 << 10)
PROBE_EVERY = 10.0  # seconds without large messages from here
NEAR_EVERY = 60.0  # seconds between probes of a near server, whatever else is sent
PROBE_WITHIN = 5.0  # seconds; what takes longer is as slow as that
MOVED = 0.25  # share by which a figure has to move, to be told again …
MOVED_AFTER = 5.0  # … and seconds: each change is news to the whole mesh


class OwnLink:
    """`run()` probes until cancelled; `look(brings)` tells what is known. link(): the connection
    that the stages' messages go over."""

    def __init__(
        self, link: Callable[[], Link], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._link = link
        self._clock = clock
        self._alike = 0.0  # bytes a second of both ways, as the last probe saw them
        self._probed = -1  # how many large messages were sent by then
        self._told = NEAR
        self._told_at = -math.inf

    async def run(self) -> None:
        """Probe at once, and then whenever nothing large was sent for a while. A near server is
        probed rarely, so that a link that is slow all the same is known."""
        probes, sent = NEAR_FIRST, self._link().send_rate.sent
        while True:
            for _ in range(probes if self._is_near else self._link().send_rate.sent == sent):
                await self.probe()
            probes, sent = 1, self._link().send_rate.sent
            await asyncio.sleep(NEAR_EVERY if self._is_near else PROBE_EVERY)

    @property
    def _is_near(self) -> bool:
        return self._link().send_rate.round_trip <= NEAR_S

    async def probe(self) -> None:
        """Send a message to this process by way of the server."""
        link = self._link()
        if not link.connected:
            return
        answer: asyncio.Future[LinkMessage] = asyncio.get_running_loop().create_future()
        reply = link.expect(partial(answered, answer))
        asked = self._clock()
        try:
            link.publish(reply, PROBE)
            async with asyncio.timeout(PROBE_WITHIN):
                await answer
        except TimeoutError:
            pass
        except SwarmError as error:
            log.info("the link is not probed: %s", error)
            return
        finally:
            link.forget(reply)
        both = self._clock() - asked - link.send_rate.round_trip
        self._alike = len(PROBE) / max(both / 2, len(PROBE) / 1e12)
        self._probed = link.send_rate.sent

    def look(self, brings: float) -> NodeLink:
        """As of now; the same as before where little has changed, or just now. brings: bytes a
        second that stages' messages come with, 0.0 where there are none."""
        speed = self._link().send_rate
        # Without an answer to a probe, a far link would be told as a fast one, and stay so.
        if not speed.is_far or not self._alike:
            self._told = NEAR
            return NEAR
        up = speed.rate if math.isfinite(speed.rate) else 0.0
        if speed.sent == self._probed:
            up = self._alike  # a probe's PONG comes behind the probe: it tells of both ways
        seen = NodeLink(round(speed.round_trip * 1e6), _slow(brings or self._alike), _slow(up))
        pairs = zip(_figures(self._told), _figures(seen), strict=True)
        has_moved = any(abs(now - before) > MOVED * before for before, now in pairs)
        if has_moved and self._clock() - self._told_at >= MOVED_AFTER:
            self._told, self._told_at = seen, self._clock()
        return self._told


def _figures(link: NodeLink) -> tuple[int, int, int]:
    return link.round_trip_us, link.down, link.up


def _slow(rate: float) -> int:
    return round(rate) if rate < FAST_LINK else 0
