"""The server's side of a lane: its durable consumer, and the settings that all its nodes share."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from swarm.clock import RESAMPLE_AFTER, ServerClock, asleep
from swarm.errors import ApiError, DecodeError, PermissionDenied
from swarm.link import Link, jetstream
from swarm.link.server_version import check_consumer
from swarm.subjects import api

log = logging.getLogger("swarm.transport.lane")

# Seconds in which a consumer answers. For one whose server was lost nobody does: the sooner it is
# asked for again, the sooner it is found where it was made anew.
ANSWERS_WITHIN, ANSWERS_WITHIN_CLUSTERED = 3.0, 0.5
MOST_ACK_WAIT = 5.0  # seconds: longer runs are kept alive, not waited for


class ServerConsumer:
    """Makes sure that the consumer exists, and changes its settings.

    config: its configuration (`swarm.transport.lane.streams.consumer_config`). provision: makes
    its stream; what it returns is the stream that has the lane instead, "" for none.
    clock: of the server that leads the stream. round_trip: seconds of the shortest answer of late;
    0.0 before the first.
    """

    def __init__(
        self,
        link: Link,
        stream: str,
        config: dict[str, Any],
        provision: Callable[[], Awaitable[str]],
        clock: ServerClock,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.stream = stream
        self.config = config
        self.name: str = config["durable_name"]
        self.clock = clock
        self.copies = 0  # servers that keep it, 0 before it was seen
        self.made_again = 0  # times that it was found to be another one, on one connection
        self._created = ""  # when it was, by its server; "" where it may have been lost since
        self.round_trip = 0.0
        self._trip_at = 0  # ns
        self._link = link
        self._now_ns = now_ns
        self._provision = provision
        self._own = stream

    @property
    def ack_wait(self) -> float:
        """Seconds of silence after which the server hands a message to another node."""
        return float(self.config["ack_wait"]) / 1e9

    @property
    def pulled_at(self) -> str:
        """Where the server takes pulls for this consumer."""
        return self._link.in_domain(api("CONSUMER.MSG.NEXT", self.stream, self.name))

    @property
    def may_change(self) -> bool:
        """Whether this user may make the consumer, and change its settings."""
        subject = jetstream.create_consumer_subject(self.stream, self.config)
        return self._link.may_call(subject)

    def may_be_lost(self) -> None:
        """The connection, or its server, was lost: that it is another one then is no news."""
        self._created = ""

    async def ensure(self) -> None:
        """Make the consumer, and its stream, where they do not exist.

        Raises `SwarmError`; `PermissionDenied` where they are missing, and this user may not make
        them.
        """
        if not self.may_change:
            await self._find()
            return
        try:
            await self._make()
        except ApiError as error:
            if error.err_code != jetstream.STREAM_NOT_FOUND:
                raise
            self.stream = await self._provision() or self._own
            await self._make()

    async def _make(self) -> None:
        try:
            within = ANSWERS_WITHIN_CLUSTERED if self._link.is_clustered else ANSWERS_WITHIN
            made = jetstream.ensure_consumer(self._link, self.stream, self.config, within)
            await self._learn(made)
        except ApiError as error:
            if error.err_code not in jetstream.CONSUMER_FILTER_TAKEN:
                raise
            await self._adopt(error)

    async def _adopt(self, refusal: ApiError) -> None:
        """Use the consumer that another version of the code made for this lane, by its name."""
        subject = self.config["filter_subject"]
        found = await jetstream.consumer_of(self._link, self.stream, subject)
        if found is None:
            raise refusal
        self.config["durable_name"] = self.name = str(found["name"])
        log.info("%s: the lane's consumer is there already, as %s", self.stream, self.name)
        await self.refresh()

    async def _find(self) -> None:
        """Use the consumer as it is."""
        subject = api("CONSUMER.INFO", self.stream, self.name)
        try:
            await self._learn(jetstream.call(self._link, subject))
        except ApiError as error:
            if error.err_code not in (jetstream.STREAM_NOT_FOUND, jetstream.CONSUMER_NOT_FOUND):
                raise
            raise PermissionDenied(
                f"the consumer {self.name} of {self.stream} is missing, and this user may not make "
                "it: an operator does, with `swarm model push` of that version"
            ) from None

    async def refresh(self) -> int:
        """Take over changed settings; returns the number of messages that wait in the lane.

        Raises `ApiError`, `Unavailable`, `NotConnected`.
        """
        subject = api("CONSUMER.INFO", self.stream, self.name)
        info = await self._learn(jetstream.call(self._link, subject))
        return int(info.get("num_pending", 0))

    async def read_clock(self) -> None:
        """Sample the clock of the stream's leader, where this user may.

        Raises `ApiError`, `Unavailable`, `NotConnected`, `DecodeError`.
        """
        if self.copies <= 1:
            await self.refresh()
            return
        # Of several copies, one server leads the stream, and perhaps another one the consumer.
        subject = api("STREAM.INFO", self.stream)
        if self._link.may_call(subject):
            sent = self._now_ns()
            info = await jetstream.call(self._link, subject)
            self._sample(sent, self._now_ns(), info)

    async def set_ack_wait(self, seconds: float) -> None:
        """Change `ack_wait` for all nodes, where this user may.

        Raises `ApiError`, `Unavailable`, `NotConnected`.
        """
        if not self.may_change:
            log.debug("%s: ack_wait stays %.3f s, as the operator set it", self.name, self.ack_wait)
            return
        change = {"ack_wait": int(seconds * 1e9)}
        await jetstream.change_consumer(self._link, self.stream, self.name, change)
        self.config |= change

    async def lengthen_ack_wait(self) -> None:
        """Double `ack_wait`, up to `MOST_ACK_WAIT`. Raises as `set_ack_wait`."""
        wanted = min(MOST_ACK_WAIT, 2 * self.ack_wait)
        if self.may_change:
            log.warning("%s: ack_wait is now %.3f s", self.name, wanted)
        await self.set_ack_wait(wanted)

    async def _learn(self, answer: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        sent = self._now_ns()
        info = await answer
        received = self._now_ns()
        check_consumer(self.config, self.stream, info)
        self._saw_trip(received - sent, received)
        # Another node may have made or changed the consumer: its settings are the lane's.
        self.config["ack_wait"] = info["config"]["ack_wait"]
        created = str(info.get("created", ""))
        self.made_again += self._created not in ("", created)
        self._created = created
        self.copies = 1 + len((info.get("cluster") or {}).get("replicas") or ())
        if self.copies == 1:  # the server that keeps the consumer keeps the stream
            self._sample(sent, received, info)
        return info

    def _saw_trip(self, trip: int, now: int) -> None:
        old = now - self._trip_at > RESAMPLE_AFTER * 1e9
        if not self.round_trip or old or trip / 1e9 <= self.round_trip:
            self.round_trip, self._trip_at = trip / 1e9, now

    def _sample(self, sent: int, received: int, info: dict[str, Any]) -> None:
        """info: what the stream's leader answered."""
        if not (stamp := info.get("ts")):
            return
        leader = (info.get("cluster") or {}).get("leader")
        try:
            self.clock.sample(sent, received, stamp, leader or self._link.home.name, asleep())
        except ValueError:
            raise DecodeError(f"{self.stream}: the server says {stamp!r:.80} for a time") from None
