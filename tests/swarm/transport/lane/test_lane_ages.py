"""Ages of messages on a server whose clock is set while they lie there."""

from __future__ import annotations

import asyncio
import time

import pytest
from lane_tools import Bench
from support.stepped_clock import SteppedClock, can_step
from support.waiting import GENEROUS, eventually

from nodes.up.embedded_server import EmbeddedServer
from swarm.clock import ClockStep, ServerClock
from swarm.errors import Unavailable
from swarm.transport.lane.ages import ANSWERS_WITHIN, APART, Ages
from swarm.transport.lane.message import LaneMessage


@pytest.mark.integration
@pytest.mark.skipif(not can_step(), reason="this server's clock cannot be set by itself")
@pytest.mark.parametrize("seconds", [-600.0, -0.75, 5.0])
async def test_ages_are_right_on_a_real_server_whose_clock_is_set(
    own_server: EmbeddedServer, bench: Bench, seconds: float
) -> None:
    told: list[ClockStep] = []
    _, got = await bench.lane(credit=1, clock=ServerClock(told.append))
    sender = await bench.sender()
    sender.send("before")
    await eventually(lambda: len(got) == 1)
    SteppedClock(own_server.pid).step(seconds)
    began = time.monotonic()
    sender.send("behind")  # it waits for the first one's end
    await eventually(lambda: sender.acked(2))
    stored = time.monotonic()
    await asyncio.sleep(0.05)  # the time that passes is what is measured
    got[0].ack()
    await eventually(lambda: len(got) == 2)
    message, measured = got[1], asyncio.Event()
    message.measure_age(measured.set)
    await asyncio.wait_for(measured.wait(), GENEROUS)
    [step] = told
    assert step.server == own_server.name
    assert abs(step.seconds - seconds) < 0.5
    # Where the clock was read for the first time behind the step, nobody knows that the message is
    # older than that.
    assert message.least_age is not None
    assert message.least_age <= message.received / 1e9 - began
    sender.send("later")
    await eventually(lambda: sender.acked(3))
    later = time.monotonic()
    await asyncio.sleep(0.05)
    message.ack()
    await eventually(lambda: len(got) == 3)
    measured.clear()
    got[2].measure_age(measured.set)
    await asyncio.wait_for(measured.wait(), GENEROUS)
    least, came = got[2].least_age, got[2].received / 1e9
    assert least is not None
    assert came - later - 0.1 < least <= came - stored


class NoLane:
    """Of a message whose lane nobody asks."""


def message(stored: int = 0, received: int = 0) -> LaneMessage:
    return LaneMessage(NoLane(), f"$JS.ACK.s.c.1.1.1.{stored}.0", b"", received)  # type: ignore[arg-type]


class Reader:
    """Reads a clock in simulated time: `takes` seconds, or never."""

    def __init__(self, takes: float = 0.001) -> None:
        self.takes = takes
        self.error: Exception | None = None
        self.began: list[float] = []

    async def __call__(self) -> None:
        loop = asyncio.get_running_loop()
        self.began.append(loop.time())
        await asyncio.sleep(self.takes)
        if self.error is not None:
            raise self.error


class Running:
    """`Ages` that runs; a context."""

    def __init__(self, reader: Reader, clock: ServerClock | None = None) -> None:
        self.ages = Ages(clock or ServerClock(), reader)
        self.known: list[float] = []

    def want(self) -> None:
        self.ages.measure(lambda: self.known.append(asyncio.get_running_loop().time()))

    async def __aenter__(self) -> Running:
        self._task = asyncio.create_task(self.ages.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


@pytest.mark.simulated
async def test_a_question_answers_for_all_that_came_before_it_and_for_none_that_came_behind() -> (
    None
):
    reader = Reader()
    async with Running(reader) as running:
        for _ in range(100):
            running.want()
        await asyncio.sleep(0.0005)  # the question is under way
        running.want()
        await asyncio.sleep(0.001)
        assert (len(reader.began), len(running.known)) == (1, 100)
        await asyncio.sleep(1.0)
        assert (len(reader.began), len(running.known)) == (2, 101)
        assert reader.began[1] - reader.began[0] == pytest.approx(reader.takes + APART)


@pytest.mark.simulated
@pytest.mark.parametrize("takes", [0.0, 60.0], ids=["refused", "silent"])
async def test_who_waits_for_an_age_hears_in_good_time_that_it_cannot_be_known(
    takes: float,
) -> None:
    reader = Reader(takes)
    reader.error = Unavailable("no leader")
    async with Running(reader) as running:
        began = asyncio.get_running_loop().time()
        running.want()
        await asyncio.sleep(1.0)
        assert [at - began <= ANSWERS_WITHIN for at in running.known] == [True]
        reader.takes, reader.error = 0.001, None
        running.want()
        await asyncio.sleep(1.0)
        assert len(running.known) == 2, "it goes on"


@pytest.mark.simulated
async def test_whoever_waits_is_told_when_the_lane_ends() -> None:
    async with Running(Reader(60.0)) as running:
        running.want()
        await asyncio.sleep(0.1)
        running.want()
    assert len(running.known) == 2


@pytest.mark.simulated
async def test_a_message_from_the_future_makes_the_clock_be_read() -> None:
    clock, reader = ServerClock(), Reader()
    clock.sample(0, 2, "1970-01-01T00:00:00Z")
    async with Running(reader, clock) as running:
        assert running.ages.age(message(stored=0, received=10**9)) == pytest.approx(1.0)
        await asyncio.sleep(0.1)
        assert reader.began == []
        assert running.ages.age(message(stored=5 * 10**9, received=10**9)) == 0.0
        await asyncio.sleep(0.1)
        assert len(reader.began) == 1
