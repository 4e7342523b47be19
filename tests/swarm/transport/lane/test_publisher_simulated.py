"""A publisher's rules of time, in simulated time: only the server is imitated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
from support.fake_link import FakeLink
from support.simulated_time import SimulatedLoop

from swarm.errors import NotConnected, SwarmError
from swarm.link import LinkMessage
from swarm.transport.lane import Publisher, may_be_stored
from swarm.transport.lane.publisher import ACK_TIMEOUT, CHECK_AGAIN, NoPubAck

pytestmark = pytest.mark.simulated

TRIP = 0.001  # seconds to the server and back


class Storing(FakeLink):
    """Stores each message; its PubAck lies in the socket after `TRIP`, and is read one turn of the
    loop later. hangs: it stores nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = False

    def carry(self, message: LinkMessage) -> None:
        super().carry(message)
        loop = asyncio.get_running_loop()
        if not self.hangs:
            # The timer is the arrival. What has arrived is read behind the timers that are due.
            loop.call_later(TRIP, loop.call_soon, self._read, message.reply, len(self.sent))

    def _read(self, reply: str, sequence: int) -> None:
        ack = b'{"stream":"s","seq":%d}' % sequence
        self.deliver(LinkMessage(reply, "", None, ack))


class Told(list[tuple[float, SwarmError | None]]):
    """When each message was stored or lost, and why."""

    def __call__(self, error: SwarmError | None, sequence: int) -> None:
        self.append((asyncio.get_running_loop().time(), error))


def stands_still(seconds: float) -> None:
    cast(SimulatedLoop, asyncio.get_running_loop()).stop_for(seconds)


@pytest.fixture
def link() -> Storing:
    return Storing()


@pytest.fixture
def clock() -> Callable[[], float]:
    return lambda: asyncio.get_running_loop().time()


@pytest.mark.parametrize("seconds", [ACK_TIMEOUT + 0.1, 60.0])
async def test_what_was_stored_while_the_process_stood_still_is_not_told_lost(
    link: Storing, clock: Callable[[], float], seconds: float
) -> None:
    publisher, told = Publisher(link, clock), Told()
    for number in range(3):
        publisher.publish("lane", [b""], str(number), told)
    stands_still(seconds)
    await asyncio.sleep(1.0)
    assert [error for _, error in told] == [None] * 3
    publisher.close()


async def test_a_message_without_a_puback_is_lost_soon_after_its_time(
    link: Storing, clock: Callable[[], float]
) -> None:
    publisher, told, link.hangs = Publisher(link, clock), Told(), True
    began = clock()
    publisher.publish("lane", [b""], "1", told)
    await asyncio.sleep(ACK_TIMEOUT - 0.01)
    assert told == []
    stands_still(1.0)
    await asyncio.sleep(0.5)
    ((when, error),) = told
    assert ACK_TIMEOUT <= when - began < ACK_TIMEOUT + 1.2
    assert isinstance(error, NoPubAck)
    assert may_be_stored(error), "the server may have it, and its answer is late"
    publisher.publish("lane", [b""], "2", told)
    await asyncio.sleep(ACK_TIMEOUT + 0.2)
    assert len(told) == 2, "the next one has its time too"
    publisher.publish("lane", [b""], "3", told)
    publisher.close()
    error = told[-1][1]
    assert isinstance(error, NotConnected)
    assert may_be_stored(error)
    assert link.expected == set()


async def test_an_answer_that_comes_too_late_changes_nothing(
    link: Storing, clock: Callable[[], float]
) -> None:
    publisher, told, link.hangs = Publisher(link, clock), Told(), True
    publisher.publish("lane", [b""], "1", told)
    await asyncio.sleep(2 * ACK_TIMEOUT)
    assert len(told) == 1
    link.deliver(LinkMessage(link.replies[0], "", None, b'{"stream":"s","seq":1}'))
    assert len(told) == 1
    publisher.close()


async def test_a_message_that_left_late_has_its_time_from_the_moment_of_its_arrival(
    link: Storing, clock: Callable[[], float]
) -> None:
    publisher, told, link.hangs = Publisher(link, clock), Told(), True
    link.send_rate.tripped(0.5)
    assert link.send_rate.sends(1000, clock())
    publisher.publish("lane", [b""], "1", told)
    await asyncio.sleep(60.0)
    assert told == [], "it waits for its turn on the link"
    link.send_rate.answered(clock())
    arrived = clock()
    await asyncio.sleep(60.0)
    ((when, error),) = told
    assert ACK_TIMEOUT <= when - arrived < ACK_TIMEOUT + 2 * CHECK_AGAIN
    assert isinstance(error, NoPubAck)
    publisher.close()
