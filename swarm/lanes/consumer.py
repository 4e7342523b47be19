"""A lane's receiving end: the standing pull.

The node keeps `credit` messages asked for or in hand, never more: that is the bound on its
own queue, and on what a hung node can hold back. An ack asks for the next message in the
same publish (`+NXT`), so a message costs one publish to settle and none to pull. Pulls
carry a priority: 0 primary, 1 standby, 2 fallback; the server gives a message to the
lowest number that has a pull parked.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from swarm.clock import ServerClock
from swarm.errors import ApiError, NotConnected, SwarmError
from swarm.flow.latency import LatencyWindow
from swarm.lanes.message import ACK, ACK_AND_NEXT, WORKING, LaneMessage
from swarm.link import Link, LinkMessage, jetstream
from swarm.periodic import BEAT, next_beat
from swarm.priorities import PRIMARY
from swarm.subjects import api

log = logging.getLogger("swarm.lanes")

GROUP = "g"
EXPIRES = 1.0  # seconds; a vanished node's parked pulls attract messages no longer than this
TUNE_EVERY = 0.1  # seconds
# Seconds of traffic to ask for in advance. A round trip takes a few milliseconds; asking for
# more than that lets messages come in bursts (a quarter less CPU a request at 2000 a second).
AHEAD = 0.03
REST = 3 * BEAT  # seconds between looks at a lane of which nothing is in hand
# Seconds in hand from which it pays to put off the next look at once: setting a timer again takes
# 3 us, a turn of the loop for nothing, beside the next stage's run, 0.1 ms.
SLOW = 0.002
SINGLE = 4  # credit up to which each ack asks for the next message itself
MOST_ACK_WAIT = 5.0  # seconds: longer runs are kept alive, not waited for
GRACE = 1.0  # seconds; a pull that is unanswered so long past its expiry was lost


class Lane:
    """`run()` owns it; `on_message(message)` is called inside the read, and must not block.

    config: the consumer's configuration (`swarm.lanes.streams.consumer_config`).
    provision: makes sure that the stream exists. credit: messages asked for plus in hand; it
    follows the rate of messages up to max_credit.
    """

    def __init__(
        self,
        link: Link,
        stream: str,
        config: dict[str, Any],
        provision: Callable[[], Any],
        on_message: Callable[[LaneMessage], None],
        *,
        priority: int = PRIMARY,
        credit: int = 4,
        max_credit: int = 0,
        clock: ServerClock | None = None,
    ) -> None:
        self.link = link
        self.stream = stream
        self.config = config
        self.credit = credit
        self._least_credit = credit
        self._most_credit = max(credit, max_credit)
        self._delivered = 0
        self._tuned = (0.0, 0)  # when last looked, and what was delivered by then
        self._most_at_once = 0  # messages since then
        self.clock = clock or ServerClock()
        self._messages: dict[int, LaneMessage] = {}  # by stream sequence, in order of arrival
        self._held: set[int] = set()  # of them, those whose result another node has
        self.pending = 0  # messages waiting in the lane, as last seen
        self.paused = False
        self.redelivered = 0
        self.overdue = 0  # messages that came again while they were held: ack_wait is too short
        self.holding = LatencyWindow()  # seconds from arrival to the end of the work
        self._provision = provision
        self._on_message = on_message
        self._asked: deque[float] = deque()  # when each message asked for was asked for
        self._inbox = f"{link.options.inbox}.pull.{id(self):x}"
        self._next = api("CONSUMER.MSG.NEXT", stream, config["durable_name"])
        self._pull = {"expires": int(EXPIRES * 1e9), "group": GROUP, "priority": priority}
        self._one = json.dumps({"batch": 1, **self._pull}).encode()
        self._and_next = b"+NXT " + self._one
        self._sid = 0
        self._stopping = False
        self._too_short = False  # ack_wait
        self._resting = False  # nothing in hand: no need to look often
        self._looked = 0.0
        self._timer: asyncio.TimerHandle | None = None  # while the lane is attended to
        self._attended = False
        self._renew = asyncio.Event()
        self._ready = asyncio.Event()

    @property
    def in_hand(self) -> int:
        """Messages that came and are not settled."""
        return len(self._messages)

    def messages(self) -> list[LaneMessage]:
        """The messages in hand, in order of arrival."""
        return list(self._messages.values())

    @property
    def ack_wait(self) -> float:
        """Seconds until what this node holds is handed to another."""
        return float(self.config["ack_wait"]) / 1e9

    async def ready(self, timeout: float) -> None:
        """Wait until the lane pulls for the first time. Raises `TimeoutError`."""
        await asyncio.wait_for(self._ready.wait(), timeout)

    async def run(self) -> None:
        """Provision, pull, keep alive; again after each reconnect. Ends by `drain()`."""
        self._sid = self.link.subscribe(self._inbox, self._receive)
        self.link.on_down.append(self._down)
        self.link.on_up.append(self._renew.set)
        try:
            while not self._stopping:
                self._renew.clear()
                try:
                    if self._too_short:
                        await self._lengthen_ack_wait()
                    else:
                        await self._ensure()
                    self._replenish()
                except SwarmError as error:
                    log.info("%s: waiting: %s", self.config["durable_name"], error)
                    await self._pause(0.1)
                    continue
                self._ready.set()
                await self._attend()
        finally:
            self.link.on_down.remove(self._down)
            self.link.on_up.remove(self._renew.set)
            self.link.unsubscribe(self._sid)

    async def _attend(self) -> None:
        """Until the lane must be provisioned anew. The looks are a timer and not a task that it
        wakes: every few milliseconds, that was a quarter of what an idle node does."""
        self._looked = time.monotonic()
        self._attended = True
        try:
            self._look()
            await self._renew.wait()
        finally:
            self._attended = False
            self._plan_look()

    def _look(self) -> None:
        """Keep long runs alive, follow the rate, replace lost pulls."""
        now = time.monotonic_ns()
        self._plan_look()
        if self._messages:
            self._keep_alive(now)
        self._tune(now / 1e9)
        # Judged by the look before: after a stop of this process the answers may lie in
        # the socket still, unread.
        lost, self._looked = self._looked - EXPIRES - GRACE, now / 1e9
        while self._asked and self._asked[0] < lost:
            self._asked.popleft()
        if self._resting:
            # With the rest of the credit, when that expires: one pull a second instead of two,
            # each of which wakes the node and the server.
            self._replenish_half()
        else:
            self._replenish()

    def _plan_look(self) -> None:
        """The next look, instead of the one that was to come; none for a lane that is being renewed
        or has ended, whose last messages may still be settled."""
        self._resting = not self._messages
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._attended:
            loop = asyncio.get_running_loop()
            due = next_beat(REST) if self._resting else loop.time() + self.ack_wait / 3
            self._timer = loop.call_at(due, self._look)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._renew.wait()

    async def _ensure(self) -> None:
        try:
            await self._timed(jetstream.ensure_consumer(self.link, self.stream, self.config))
        except ApiError as error:
            if error.err_code != jetstream.STREAM_NOT_FOUND:
                raise
            await self._provision()
            await self._timed(jetstream.ensure_consumer(self.link, self.stream, self.config))

    async def _timed(self, answer: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        """An answer about the consumer, and from it a sample of the server's clock."""
        sent = time.monotonic_ns()
        info = await answer
        if stamp := info.get("ts"):
            self.clock.sample(sent, time.monotonic_ns(), stamp)
        # Another node may have made or changed it: its settings are the lane's.
        self.config["ack_wait"] = info["config"]["ack_wait"]
        return info

    async def set_ack_wait(self, seconds: float) -> None:
        """Change after how long a silent node's messages are handed on, for all its nodes."""
        config = self.config | {"ack_wait": int(seconds * 1e9)}
        await jetstream.update_consumer(self.link, self.stream, config)
        self.config = config

    async def _lengthen_ack_wait(self) -> None:
        """The loop is so busy that even keeping alive came too late: all work is done twice."""
        self._too_short = False
        wanted = min(MOST_ACK_WAIT, 2 * self.ack_wait)
        log.warning("%s: ack_wait is now %.3f s", self.config["durable_name"], wanted)
        await self.set_ack_wait(wanted)

    async def refresh(self) -> None:
        """Sample the server's clock again, and take over changed settings."""
        subject = api("CONSUMER.INFO", self.stream, self.config["durable_name"])
        info = await self._timed(jetstream.call(self.link, subject))
        self.pending = int(info.get("num_pending", 0))

    def _down(self) -> None:
        # What was held will be handed out again; acks from before would reach a stream
        # that may have been made anew, where the numbers mean other messages.
        self._messages.clear()
        self._held.clear()
        self._asked.clear()

    def _keep_alive(self, now: int) -> None:
        threshold = now - int(self.ack_wait / 3 * 1e9)
        due = [message for message in self._messages.values() if message.touched <= threshold]
        if not due:
            return
        self.link.gather.begin(len(due))  # in one write
        try:
            for message in due:
                message.touched = now
                self.link.publish(message.reply, WORKING)
        except NotConnected:
            return  # the lane is renewed on reconnect
        finally:
            self.link.gather.end()

    def _tune(self, now: float) -> None:
        """Let the credit follow the rate: what comes within AHEAD seconds, but not much more than
        there is at once. One message alone, asked for so often, would be handed to a hung node as
        often, one ack_wait each."""
        since, before = self._tuned
        if now - since >= TUNE_EVERY:
            rate = (self._delivered - before) / (now - since)
            wanted = min(int(rate * AHEAD), 2 * self._most_at_once)
            self.credit = min(self._most_credit, max(self._least_credit, wanted))
            self._tuned = (now, self._delivered)
            self._most_at_once = 0

    def _wants(self) -> int:
        """Messages to ask for now."""
        if self.paused or self._stopping:
            return 0
        return self.credit - len(self._messages) + len(self._held) - len(self._asked)

    def ask_for_all(self) -> None:
        """Ask for what was last seen to wait, whatever the credit: what is behind it comes another
        way."""
        wanted, self.pending = self.pending - len(self._asked), 0
        if wanted > 0 and not self.paused and not self._stopping:
            self._ask(wanted)

    def _replenish(self) -> None:
        if (wanted := self._wants()) > 0:
            self._ask(wanted)

    def _ask(self, wanted: int) -> None:
        body = self._one if wanted == 1 else json.dumps({"batch": wanted, **self._pull}).encode()
        try:
            self.link.publish(self._next, body, self._inbox)
        except NotConnected:
            return  # the lane is renewed on reconnect
        self._asked.extend([time.monotonic()] * wanted)

    def _replenish_half(self) -> None:
        """Many: ask for half of the credit at a time. The server parses one pull instead of
        sixteen, and delivers in bursts, each of which costs a node one read and one write."""
        if self._wants() * 2 >= self.credit:
            self._replenish()

    def _receive(self, received: LinkMessage) -> None:
        if received.subject == self._inbox:
            self._pull_ended(received)
            return
        if self._asked:
            self._asked.popleft()
        message = LaneMessage(self, received.reply, received.data, time.monotonic_ns())
        self.pending = message.pending
        self._delivered += 1
        if message.times_delivered > 1:
            self.redelivered += 1
            if (ours := self._messages.get(message.sequence)) is not None:
                self._again(ours, message)
                return
        self._messages[message.sequence] = message
        at_once = len(self._messages) - len(self._held) + message.pending
        self._most_at_once = max(self._most_at_once, at_once)
        if self._resting:
            self._plan_look()
        try:
            self._on_message(message)
        except Exception:
            # Kept, it would be kept alive for ever and cost this node one of its credits.
            message.nak(self.ack_wait)
            raise

    def _again(self, ours: LaneMessage, again: LaneMessage) -> None:
        """In hand already: computed once all the same."""
        if again.received - ours.received > self.config["ack_wait"]:
            # Else both came at once, after a stop of this process.
            self.overdue += 1
            self._too_short = True
            self._renew.set()
        ours.reply, ours.touched = again.reply, again.received
        ours.times_delivered = again.times_delivered
        self._replenish()

    def _pull_ended(self, message: LinkMessage) -> None:
        status, headers = message.status, message.headers or b""
        if status == b"408":
            for _ in range(min(_pending_messages(headers), len(self._asked))):
                self._asked.popleft()
            # Single ones become pulls of many again, and those of an idle lane one: as long as half
            # of the credit is parked, the rest waits for that to run out too.
            if not self._resting or 2 * len(self._asked) < self.credit:
                self._replenish_half()
            return
        self._asked.clear()
        if status in (b"503", b"404") or b"Deleted" in headers or b"Leadership" in headers:
            self._renew.set()  # stream or consumer is gone: provision anew
        elif status == b"409":
            log.warning("pull refused: %s", headers.decode(errors="replace").strip())

    # --- for `LaneMessage` ------------------------------------------------------------

    def age_of(self, message: LaneMessage) -> float:
        """See `LaneMessage.age`."""
        return self.clock.age(message.stored, message.received) / 1e9

    def keeps(self, message: LaneMessage) -> bool:
        """See `LaneMessage.settled`."""
        return self._messages.get(message.sequence) is message

    def hold(self, message: LaneMessage, at_ns: int) -> None:
        """See `LaneMessage.held`."""
        message.done_at = message.done_at or at_ns or time.monotonic_ns()
        if self._messages.get(message.sequence) is message:
            self._held.add(message.sequence)
            self._replenish_half()

    def unhold(self, message: LaneMessage) -> None:
        """See `LaneMessage.unheld`."""
        message.done_at = 0
        if self._messages.get(message.sequence) is message:
            self._held.discard(message.sequence)

    def settle(self, message: LaneMessage, verb: bytes) -> bool:
        """See `LaneMessage.ack`."""
        if self._messages.get(message.sequence) is not message:
            return False
        del self._messages[message.sequence]
        self._held.discard(message.sequence)
        now = time.monotonic()
        if not self._messages and not self._resting and now - message.received / 1e9 > SLOW:
            self._plan_look()
        if self.credit <= SINGLE or not self._delivered & 3:  # of many, a quarter will do
            ended = message.done_at / 1e9 or now
            self.holding.add(ended - message.received / 1e9, now)
        try:
            if verb is ACK_AND_NEXT and self.credit <= SINGLE and self._wants() > 0:
                # One publish to settle and to ask: the cheapest while messages are few.
                self.link.publish(message.reply, self._and_next, self._inbox)
                self._asked.append(now)
                return True
            self.link.publish(message.reply, ACK if verb is ACK_AND_NEXT else verb)
            self._replenish_half()
        except NotConnected:
            return False  # it will be handed out again, and deduplicated
        return True

    def pause(self) -> None:
        """Ask for nothing more until `resume()`; parked pulls run out within `EXPIRES`."""
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self._replenish()

    async def drain(self) -> None:
        """Stop asking; what the server had handed out already still arrives. Then `run` ends."""
        self._stopping = True
        await self.link.unsubscribe_and_drain(self._sid)
        self._renew.set()


def _pending_messages(headers: bytes) -> int:
    _, _, rest = headers.partition(b"Nats-Pending-Messages: ")
    digits = rest.partition(b"\r\n")[0]
    return int(digits) if digits.isdigit() else 1
