"""A lane's server in simulated time: one consumer, whose `ack_wait` is exact."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from lane_tools import CONSUMER, STREAM, SUBJECT, SUBJECTS
from support.fake_link import FakeLink
from support.simulated_time import SimulatedLoop

from swarm.link import LinkMessage
from swarm.transport.lane import Lane, LaneMessage, LaneOptions, consumer_config
from swarm.transport.lane.message import IN_PROGRESS, NAK

TRIP = 0.0005  # seconds, each way


def now() -> float:
    return asyncio.get_running_loop().time()


def stand_still(seconds: float) -> None:
    """The process stops; its server does not."""
    cast(SimulatedLoop, asyncio.get_running_loop()).stop_for(seconds)


@dataclass
class Kept:
    """A message that the server keeps. due: when it is handed out again."""

    data: bytes
    times: int = 0
    due: float = 0.0


@dataclass(eq=False)
class _Pull:
    """left: messages that have not come."""

    inbox: str
    left: int


class LaneServer(FakeLink):
    """Hands messages out to pulls, and again after `ack_wait` without a word."""

    def __init__(self, ack_wait: float = 0.1) -> None:
        self._hears: dict[str, Callable[[LinkMessage], None]] = {}
        super().__init__()
        self.connected = True
        self.config: dict[str, Any] = consumer_config(
            SUBJECTS, "m", "1", 1, LaneOptions(ack_wait=ack_wait)
        )
        self.words: list[tuple[float, bytes]] = []  # when, and what the lane said of messages
        self.gathered: list[bool] = []  # whether each of them went in one write with others
        self._kept: dict[int, Kept] = {}
        self._waiting: deque[int] = deque()
        self.asked: list[int] = []  # messages, by each pull
        self._pulls: deque[_Pull] = deque()
        self._last = 0

    @property
    def ack_wait(self) -> float:
        return float(self.config["ack_wait"]) / 1e9

    @property
    def kept(self) -> int:
        return len(self._kept)

    def store(self, data: bytes) -> None:
        self._last += 1
        self._kept[self._last] = Kept(data)
        self._waiting.append(self._last)
        self._deal()

    # --- what a lane needs of its link ------------------------------------------------

    def subscribe(self, subject: str, callback: Any, queue: str = "") -> int:
        sid = super().subscribe(subject, callback, queue)
        self._hears[subject] = callback
        return sid

    async def unsubscribe_and_drain(self, sid: int) -> None:
        return

    async def request(self, subject: str, data: Any = b"", *_: Any, **__: Any) -> LinkMessage:
        if ".CONSUMER.CREATE." in subject:
            self.config = json.loads(data)["config"]
        return LinkMessage("", "", None, json.dumps({"config": self.config}).encode())

    def carry(self, message: LinkMessage) -> None:
        self._hand_out_due()
        if ".CONSUMER.MSG.NEXT." in message.subject:
            self._pull(json.loads(message.data), message.reply)
        else:
            self._hear(int(message.subject.split(".")[5]), bytes(message.data), message.reply)
        self._deal()

    def _hear(self, number: int, word: bytes, reply: str) -> None:
        self.words.append((now(), word))
        self.gathered.append(self.gather.corked)
        kept = self._kept.get(number)
        if word == IN_PROGRESS:
            if kept is not None:
                kept.due = now() + self.ack_wait
                self._check_at(kept.due)
            return
        if word.startswith(NAK):
            self._waiting.appendleft(number)
            return
        self._kept.pop(number, None)
        if word.startswith(b"+NXT"):
            self._pull(json.loads(word[5:]), reply)

    def _pull(self, asked: dict[str, Any], inbox: str) -> None:
        pull = _Pull(inbox, int(asked["batch"]))
        self.asked.append(pull.left)
        self._pulls.append(pull)
        asyncio.get_running_loop().call_later(asked["expires"] / 1e9, self._expire, pull)

    def _expire(self, pull: _Pull) -> None:
        if pull in self._pulls:
            self._pulls.remove(pull)
            headers = (
                b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: %d\r\n\r\n" % pull.left
            )
            self._hears[pull.inbox](LinkMessage(pull.inbox, "", headers, b""))

    def _hand_out_due(self) -> None:
        """Whatever this process does late, the server has been in time."""
        for number, kept in self._kept.items():
            if number not in self._waiting and kept.due <= now():
                self._waiting.append(number)
        self._deal()

    def _check_at(self, due: float) -> None:
        asyncio.get_running_loop().call_at(due, self._hand_out_due)

    def _deal(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting and self._pulls:
            number, pull = self._waiting.popleft(), self._pulls[0]
            if (kept := self._kept.get(number)) is None:
                continue
            pull.left -= 1
            if not pull.left:
                self._pulls.popleft()
            kept.times += 1
            kept.due = now() + self.ack_wait
            self._check_at(kept.due)
            reply = f"$JS.ACK.{STREAM}.{CONSUMER}.{kept.times}.{number}.{number}.0.0"
            message = LinkMessage(SUBJECT, reply, None, kept.data)
            # The timer is the arrival; what has arrived is read behind the timers that are due.
            loop.call_later(TRIP, loop.call_soon, self._hears[pull.inbox], message)


async def provision() -> None:
    return


class SimulatedLane:
    """A running lane of such a server, and what came of it; a context."""

    def __init__(self, ack_wait: float = 0.1, **kwargs: Any) -> None:
        self.server = LaneServer(ack_wait)
        self.got: list[LaneMessage] = []
        config = dict(self.server.config)
        self.lane = Lane(self.server, STREAM, config, provision, self.got.append, now=now, **kwargs)

    async def __aenter__(self) -> SimulatedLane:
        self._task = asyncio.create_task(self.lane.run())
        await self.lane.ready(1.0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.lane.drain()
        await self._task
