"""A lane with its publisher, as the tests of the lanes use them."""

from __future__ import annotations

import asyncio
from typing import Any

from real_server import Links
from support.waiting import GENEROUS

from swarm.errors import NoResponders, SwarmError, Unavailable
from swarm.link import Link, jetstream
from swarm.subjects import Subjects, api
from swarm.transport.lane import (
    Lane,
    LaneMessage,
    LaneOptions,
    Publisher,
    consumer_config,
    ensure_lanes,
)

SUBJECTS = Subjects("test")
STREAM = SUBJECTS.stream("m", "1", 1)
SUBJECT = SUBJECTS.features("m", "1", 1)
CONSUMER = SUBJECTS.consumer("m", 1)


class Bench:
    """Makes lanes over links of their own, and ends them."""

    def __init__(self, links: Links, url: str, options: LaneOptions) -> None:
        self.links = links
        self.url = url
        self.options = options
        self.provisioned = 0
        self.provision_fails = 0  # so many times from now on
        self._tasks: dict[Lane, asyncio.Task[None]] = {}

    async def lane(self, ack: bool = False, **kwargs: Any) -> tuple[Lane, list[LaneMessage]]:
        """A running lane on a link of its own, and the messages that it delivers.

        ack: settle each message as it comes.
        """
        link = await self.links.connect(self.url)
        got: list[LaneMessage] = []

        async def provision() -> None:
            if self.provision_fails:
                self.provision_fails -= 1
                raise Unavailable("not yet")
            self.provisioned += 1
            await ensure_lanes(link, SUBJECTS, "m", "1", 1, self.options)

        def delivered(message: LaneMessage) -> None:
            got.append(message)
            if ack:
                message.ack()

        config = consumer_config(SUBJECTS, "m", "1", 1, self.options)
        lane = Lane(link, STREAM, config, provision, delivered, **kwargs)
        self._tasks[lane] = asyncio.get_running_loop().create_task(lane.run())
        await lane.ready(5.0)
        await link.flush()  # the pull is parked now
        return lane, got

    async def end(self, lane: Lane) -> None:
        """Drain a lane, and wait until its run is over."""
        await lane.drain()
        await asyncio.wait_for(self._tasks[lane], GENEROUS)

    async def sender(self) -> Sender:
        return Sender(await self.links.connect(self.url))

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        results = await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        failures = [r for r in results if isinstance(r, Exception)]
        assert not failures, f"a lane ended by an exception: {failures}"


class Sender:
    """Publishes into the lane; every outcome is kept."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.publisher = Publisher(link)
        self.outcomes: dict[str, list[tuple[SwarmError | None, int]]] = {}

    def send(self, message_id: str, data: bytes | None = None, subject: str = SUBJECT) -> None:
        calls = self.outcomes.setdefault(message_id, [])
        self.publisher.publish(
            subject,
            [message_id.encode() if data is None else data],
            message_id,
            lambda error, sequence: calls.append((error, sequence)),
        )

    def acked(self, count: int) -> bool:
        return sum(map(len, self.outcomes.values())) == count

    async def stored(self) -> int:
        """Messages that the stream holds."""
        info = await jetstream.call(self.link, api("STREAM.INFO", STREAM))
        return int(info["state"]["messages"])

    async def emptied(self) -> bool:
        """Whether the lane is empty soon: the server settles acks behind its answers to pings."""
        return await self.comes_down_to(0)

    async def comes_down_to(self, count: int) -> bool:
        """Whether the stream soon holds `count` messages: all acks of the others have arrived."""
        for _ in range(500):
            if await self.stored() == count:
                return True
            await asyncio.sleep(0.01)
        return False

    async def sees_the_end_of(self, lane: Lane) -> None:
        """Wait until the server knows that a lane's connection has ended: only then are its pulls
        gone. A question to that connection is refused from then on."""
        while True:
            try:
                await self.link.request(f"{lane.link.server_inbox}.none", timeout=0.05)
            except NoResponders:
                return
            except TimeoutError:
                continue


def bodies(got: list[LaneMessage]) -> list[bytes]:
    return [bytes(delivery.data) for delivery in got]
