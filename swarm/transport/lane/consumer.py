"""A lane's receiving end: it keeps messages asked for, and settles those that came.

The node keeps `credit` messages asked for or at work, never more. An ack asks for the next message
in the same publish (`+NXT`), so a message costs one publish to settle and none to pull. Pulls carry
a priority: 0 primary, 1 standby, 2 fallback; the server gives a message to the lowest number that
has a pull standing there.

    server ──► _receive ──► Unacked: in hand ──► on_message ──► … ──► LaneMessage.ack ──► settle
       ▲                                                                              │
       └──── a pull, or +NXT ◄──── Pulls: asked for already ◄──── Credit: room ◄──────┘
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from swarm.clock import ServerClock, nanoseconds
from swarm.errors import (
    ApiError,
    NoLeader,
    NotConnected,
    PermissionDenied,
    ResourceExhausted,
    ServerTooOld,
    SwarmError,
)
from swarm.fleet.priorities import PRIMARY
from swarm.flow.latency import LatencyWindow
from swarm.link import Link, LinkMessage
from swarm.transport.lane.ages import Ages
from swarm.transport.lane.credit import Credit
from swarm.transport.lane.link_speed import LinkSpeed
from swarm.transport.lane.message import ACK, ACK_AND_NEXT, IN_PROGRESS, LaneMessage
from swarm.transport.lane.pulls import Pulls, expires_for, unanswered
from swarm.transport.lane.rounds import Rounds
from swarm.transport.lane.server_consumer import ServerConsumer
from swarm.transport.lane.tuning import Stops
from swarm.transport.lane.unacked import Unacked

log = logging.getLogger("swarm.transport.lane")

RETRY_PROVISIONING = 0.1  # seconds
RETRY_DENIED = 2.0  # seconds; somebody else has to make the consumer
# Seconds in hand from which the next round is put off at once when a message is settled. Setting
# the timer again takes 3 us; a round for nothing, beside the next stage's run, 0.1 ms.
LONG_IN_HAND = 0.002
GIVEN_UP_AFTER = 20.0  # seconds; whoever makes a lost lane anew has done it, or no node will
MOST_TRIPS = 5  # round trips until a link that looks far is taken to be far


async def always() -> bool:
    """Of a lane whose server cannot be lost for long."""
    return True


class Lane:
    """`run()` owns it; `on_message(message)` is called inside the read, and must not block.

    config: the consumer's configuration (`swarm.transport.lane.streams.consumer_config`).
    provision: makes sure that the stream exists (`ensure_lanes`). credit: messages asked for plus
    at work; it follows the rate of messages up to max_credit, and is less behind a slow link.
    clock: of the server that leads the stream, where lanes of the stream share it. message_bytes:
    of a message, as far as it is known before the first. is_kept(): whether any server of a cluster
    has the lane. now(): seconds, monotonic. lost_at: since when no server has it, by `now`; 0.0
    while one has. waits_for: why it does not pull at present, "" while it does.

    Its arguments are many because four of them describe the consumer at the server, which all nodes
    of the lane share, and four this node's part in it. Its attributes are eighteen: six that
    other rooms read, six parts with one idea each, and the signals from the callbacks to `run`.
    """

    def __init__(
        self,
        link: Link,
        stream: str,
        config: dict[str, Any],
        provision: Callable[[], Awaitable[str]],
        on_message: Callable[[LaneMessage], None],
        *,
        priority: int = PRIMARY,
        credit: int = 4,
        max_credit: int = 0,
        clock: ServerClock | None = None,
        message_bytes: int = 0,
        is_kept: Callable[[], Awaitable[bool]] = always,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.link = link
        self.pending = 0  # messages waiting in the lane, as last seen
        self.paused = False
        self.redelivered = 0
        self.lost_at = 0.0
        self.waits_for = ""
        self.overdue = 0  # messages that came again while in hand: ack_wait is too short
        self.holding = LatencyWindow()  # seconds from arrival to the end of the work
        self._now = now
        self._now_ns = nanoseconds(now)
        clock = clock or ServerClock()
        self._consumer = ServerConsumer(link, stream, config, provision, clock, self._now_ns)
        self._ages = Ages(clock, self._consumer.read_clock)
        self._credit = Credit(credit, max_credit)
        self._pulls = Pulls(
            self._consumer.pulled_at,
            f"{link.server_inbox}.pull.{id(self):x}",
            priority,
        )
        self._unacked = Unacked()
        self._link_speed = LinkSpeed(message_bytes)
        self._rounds = Rounds(self._tend)
        self._stops = Stops()
        self._on_message = on_message
        self._is_kept = is_kept
        self._sid = 0
        self._stopping = False
        self._renew = asyncio.Event()
        self._ready = asyncio.Event()

    @property
    def stream(self) -> str:
        """The name of its stream."""
        return self._consumer.stream

    @property
    def config(self) -> dict[str, Any]:
        """The configuration of its consumer, as the server has it."""
        return self._consumer.config

    @property
    def ack_wait(self) -> float:
        """Seconds of silence after which the server hands a message to another node."""
        return self._consumer.ack_wait

    @property
    def copies(self) -> int:
        """Servers that keep the lane, 0 before it was seen."""
        return self._consumer.copies

    @property
    def made_again(self) -> int:
        """How often its consumer, or its stream, was found to have vanished and to be there anew,
        while the server was there."""
        return self._consumer.made_again

    @property
    def credit(self) -> int:
        """Messages that may be asked for or at work at present."""
        return self._credit.size

    @property
    def asked(self) -> int:
        """Messages that are asked for and have not come."""
        return len(self._pulls.standing)

    @property
    def in_hand(self) -> int:
        """Messages that came and are not settled."""
        return len(self._unacked)

    def messages(self) -> list[LaneMessage]:
        """The messages in hand, in order of arrival."""
        return self._unacked.messages()

    # --- life -------------------------------------------------------------------------

    async def run(self) -> None:
        """Provision, pull, keep alive; again after each reconnect. Ends by `drain()`."""
        measuring = asyncio.create_task(self._ages.run(), name=f"ages of {self._consumer.name}")
        measuring.add_done_callback(lambda task: self._renew.set())
        try:
            await self._run(measuring)
        finally:
            measuring.cancel()
            await asyncio.wait([measuring])

    async def _run(self, measuring: asyncio.Task[None]) -> None:
        self._sid = self.link.subscribe(self._pulls.inbox, self._receive)
        self.link.on_down.append(self._down)
        self.link.on_up.append(self._renew.set)
        self.link.on_fewer.append(self._ask_anew)
        overdue = 0
        try:
            while not self._stopping:
                self._renew.clear()
                if measuring.done():
                    measuring.result()  # a defect, which ends the lane
                try:
                    if self.overdue > overdue and not self.lost_at:
                        # The loop is so busy that even keeping alive comes too late.
                        overdue = self.overdue
                        await self._consumer.lengthen_ack_wait()
                    else:
                        await self._ensure()
                        self._pulls.subject = self._consumer.pulled_at
                    await self._follow_link()
                    self._replenish()
                except SwarmError as error:
                    denied = isinstance(error, PermissionDenied | ServerTooOld)
                    if str(error) != self.waits_for:
                        level = logging.WARNING if denied else logging.INFO
                        log.log(level, "%s: waiting: %s", self._consumer.name, error)
                    self.waits_for = str(error)
                    pause = RETRY_DENIED if denied else RETRY_PROVISIONING
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(pause):
                            await self._renew.wait()
                    continue
                self._ready.set()
                self.waits_for = ""
                try:
                    self._tend()
                    await self._renew.wait()
                finally:
                    self._rounds.stop()
        finally:
            self.link.on_down.remove(self._down)
            self.link.on_up.remove(self._renew.set)
            self.link.on_fewer.remove(self._ask_anew)
            self.link.unsubscribe(self._sid)

    async def _ensure(self) -> None:
        """Make sure that the server has the lane. Raises as `ServerConsumer.ensure`, and `NoLeader`
        where the server that had it is away."""
        if self._consumer.copies and self.link.home.cluster and not await self._is_kept():
            if not self.lost_at:
                # The numbers of these messages mean others in a lane that is made anew.
                self._down()
                self.lost_at = self._now()
            if self._now() - self.lost_at < GIVEN_UP_AFTER:
                # The server's API would not answer for the one that is away.
                raise NoLeader("the server that keeps the lane is away")
        await self._consumer.ensure()
        self.lost_at = 0.0

    def _ask_anew(self) -> None:
        """A server of the cluster was lost, perhaps with what was asked for there: only a new
        question tells."""
        self._pulls.clear()
        self._replenish()

    async def ready(self, timeout: float) -> None:
        """Wait until the lane pulls for the first time. Raises `TimeoutError`."""
        async with asyncio.timeout(timeout):
            await self._ready.wait()

    def pause(self) -> None:
        """Ask for nothing more until `resume()`; standing pulls run out by themselves."""
        self.paused = True

    def resume(self) -> None:
        """Ask again."""
        self.paused = False
        self._replenish()

    async def drain(self) -> None:
        """Stop asking; messages that the server has sent already still arrive. `run` ends."""
        self._stopping = True
        await self.link.unsubscribe_and_drain(self._sid)
        self._renew.set()

    def let_pass(self, run: float | None) -> None:
        """See `Credit.let_pass`."""
        self._credit.let_pass(run)

    def set_priority(self, priority: int) -> None:
        """Take this place among the nodes of the lane, once the standing pulls have ended."""
        self._pulls.set_priority(priority)

    async def refresh(self) -> None:
        """Read the clock of the stream's leader again, and take over changed settings.

        Raises `ApiError`, `Unavailable`, `NotConnected`, `DecodeError`.
        """
        self.pending = await self._consumer.refresh()
        self._ages.measure()
        await self._follow_link()

    def suit(self, nodes: int) -> None:
        """Suit a fleet of so many living nodes: in a large one pulls stand for longer. Not in
        another server's domain: a link that is cut on the way forgets them without a word."""
        if self.link.domain == self.link.server_domain:
            self._pulls.last(expires_for(nodes))

    async def set_ack_wait(self, seconds: float) -> None:
        """Change `ack_wait`, for all nodes of the lane. Raises as `refresh`."""
        await self._consumer.set_ack_wait(seconds)

    @property
    def link_wait(self) -> float:
        """Seconds of `ack_wait` that this node's link needs, whatever others need."""
        return self._link_speed.wait(self._credit.size, self._now())

    @property
    def link_rate(self) -> float:
        """Bytes a second that the link brings, 0.0 where it is near or not known."""
        return self._link_speed.rate

    async def _follow_link(self) -> None:
        """Let the credit and `ack_wait` follow the link. Raises as `refresh`."""
        speed, trips = self._link_speed, 0
        speed.saw_round_trip(self._consumer.round_trip)
        while speed.needs_trips and trips < MOST_TRIPS:
            trips += 1
            self.pending = await self._consumer.refresh()
            speed.saw_round_trip(self._consumer.round_trip)
        self._credit.bound(speed.credit(self.holding.ewma))
        if (wanted := self.link_wait) > self.ack_wait:
            speed.asks_for(wanted)
            if self._consumer.may_change:
                log.info("%s: ack_wait is now %.3f s, for the link", self.stream, wanted)
            try:
                await self._consumer.set_ack_wait(wanted)
            except ApiError as error:  # the lane is served all the same
                log.warning("%s: ack_wait stays as it is: %s", self._consumer.name, error)

    def _down(self) -> None:
        self._consumer.may_be_lost()
        # The server hands out again the messages in hand. An ack of them would reach a stream
        # that may have been made anew, where the numbers mean other messages.
        self._unacked.clear()
        self._pulls.clear()
        self._link_speed.lost()

    def _tend(self) -> None:
        """Keep long runs alive, follow the rate, replace lost pulls."""
        now, idle = self._now_ns(), not self._unacked
        self._look_for_stop()
        self._plan_round()
        if not idle:
            self._say_in_progress(now)
        self._credit.bound(self._link_speed.credit(self.holding.ewma))
        self._credit.tune(now / 1e9)
        self._pulls.forget_lost(now / 1e9)
        if idle:
            # One pull a second instead of two, each of which wakes the node and the server: the
            # rest of the credit is asked for when the standing pull runs out.
            self._replenish_half()
        else:
            self._replenish()

    def _look_for_stop(self) -> None:
        """A round that is due and did not come: this process stood still, and the server has handed
        out again what is in hand."""
        due = self._rounds.due
        if due is None or not self._rounds.are_often:
            return
        if asyncio.get_running_loop().time() - due > self.ack_wait * 2 / 3:
            self._stops.ended(due, self._now())

    def _plan_round(self) -> None:
        self._rounds.plan(len(self._unacked) > 0, self.ack_wait)

    def _say_in_progress(self, now: int) -> None:
        """now: ns of `time.monotonic_ns`."""
        due = self._unacked.untouched_since(now - int(self.ack_wait / 3 * 1e9))
        if not due:
            return
        self.link.gather.begin(len(due))  # in one write
        try:
            for message in due:
                message.touched = now
                self.link.publish(message.reply, IN_PROGRESS)
        except (NotConnected, ResourceExhausted):
            return  # the lane is renewed on reconnect
        finally:
            self.link.gather.end()

    # --- asking -----------------------------------------------------------------------

    def ask_for_all(self) -> None:
        """Ask for all messages that were last seen to wait, whatever the credit."""
        wanted, self.pending = self.pending - len(self._pulls.standing), 0
        if wanted > 0 and not self.paused and not self._stopping:
            self._ask(wanted)

    def _free_credit(self) -> int:
        """Messages to ask for."""
        if self.paused or self._stopping:
            return 0
        return self._credit.in_all - self._unacked.at_work - len(self._pulls.standing)

    def _replenish(self) -> None:
        if (free := self._free_credit()) > 0:
            self._ask(free)

    def _replenish_half(self) -> None:
        """Ask for half of the credit at a time."""
        if (free := self._free_credit()) > 0 and self._credit.is_half(free):
            self._ask(free)

    def _ask(self, count: int) -> None:
        pulls = self._pulls
        try:
            self.link.publish(pulls.subject, pulls.body(count), pulls.inbox)
        except (NotConnected, ResourceExhausted):
            return  # the lane is renewed on reconnect, and asks again at its rounds
        pulls.asked(count, self._now())

    # --- receiving --------------------------------------------------------------------

    def _receive(self, received: LinkMessage) -> None:
        if received.subject == self._pulls.inbox:
            self._pull_ended(received)
            return
        asked_at = self._pulls.answered()
        if not received.data:
            # Between accounts the server takes an answer without a body for the last one, and sends
            # the rest of its pull to nobody: it is asked for again at once, not when it expires.
            self._pulls.clear()
        message = LaneMessage(self, received.reply, received.data, self._now_ns())
        self.pending = message.pending
        if asked_at is not None and self._link_speed.is_seen_by(message):
            self._see_link(message, message.received / 1e9 - asked_at)
        unacked = self._unacked
        if message.times_delivered > 1:
            self.redelivered += 1
            if (ours := unacked.find(message.sequence)) is not None:
                self._redelivered(ours, message)
                return
            if self._link_speed.was_acked(message):
                # The ack follows the result over the same connection, and settles this copy too.
                self._count_overdue()
                self._replenish()
                return
        unacked.add(message)
        self._credit.arrived(unacked.at_work + message.pending)
        if self._rounds.are_seldom:
            self._plan_round()
        try:
            self._on_message(message)
        except Exception:
            # If it stayed in hand, it would be kept alive for ever and take one of this node's
            # credits.
            message.nak(self.ack_wait)
            raise

    def _see_link(self, message: LaneMessage, since_asked: float) -> None:
        self._link_speed.arrived(message, message.age, since_asked)
        self._credit.bound(self._link_speed.credit(self.holding.ewma))
        wait = self.link_wait
        if wait > self.ack_wait and self._link_speed.is_news(wait):
            self._renew.set()

    def _count_overdue(self) -> None:
        """A message comes again behind its ack, or while it is in hand: `ack_wait` is too short."""
        self.overdue += 1
        self._link_speed.was_late(self.ack_wait, self._now())
        self._renew.set()

    def _redelivered(self, ours: LaneMessage, again: LaneMessage) -> None:
        """A message in hand is not worked on twice; the server waits for the newest reply."""
        self._look_for_stop()
        # Else both lay in the socket together, or this process stood still until a moment ago.
        apart = again.received - ours.received > self.ack_wait * 1e9
        if apart and again.received / 1e9 - self._stops.until > self.ack_wait:
            self._count_overdue()
        ours.reply, ours.touched = again.reply, again.received
        ours.times_delivered = again.times_delivered
        self._replenish()

    def _pull_ended(self, end: LinkMessage) -> None:
        status, headers = end.status, end.headers or b""
        if status == b"408":
            self._pulls.ended(unanswered(headers))
            # Single pulls become one pull for many again. Where the lane is idle, the rest of its
            # credit waits until less than half of it stands at the server.
            if not self._rounds.are_seldom or not self._credit.is_half(len(self._pulls.standing)):
                self._replenish_half()
            return
        self._pulls.clear()
        if status in (b"503", b"404") or b"Deleted" in headers or b"Leadership" in headers:
            self._renew.set()  # stream or consumer is gone: provision anew
        elif status == b"409":
            log.warning("pull refused: %s", headers.decode(errors="replace").strip())

    # --- for `LaneMessage` ------------------------------------------------------------

    def age(self, message: LaneMessage) -> float:
        """See `LaneMessage.age`."""
        return self._ages.age(message)

    def least_age(self, message: LaneMessage) -> float | None:
        """See `LaneMessage.least_age`."""
        return self._ages.least(message)

    def measure_ages(self, then: Callable[[], None] | None) -> None:
        """See `LaneMessage.measure_age`."""
        self._ages.measure(then)

    def has(self, message: LaneMessage) -> bool:
        """See `LaneMessage.ended`."""
        return self._unacked.has(message)

    def release_credit(self, message: LaneMessage, at_ns: int) -> None:
        """See `LaneMessage.release_credit`."""
        message.done_at = message.done_at or at_ns or self._now_ns()
        if self._unacked.has(message):
            self._unacked.release_credit(message)
            self._replenish_half()

    def take_credit(self, message: LaneMessage) -> None:
        """See `LaneMessage.take_credit`."""
        message.done_at = 0
        if self._unacked.has(message):
            self._unacked.take_credit(message)

    def end(self, message: LaneMessage, verb: bytes) -> bool:
        """See `LaneMessage.ack`."""
        if not self._unacked.remove(message):
            return False
        now, received = self._now(), message.received / 1e9
        if verb is ACK_AND_NEXT:
            self._link_speed.acked(message, now)
        if self._rounds.are_often and not self._unacked and now - received > LONG_IN_HAND:
            self._plan_round()
        credit = self._credit
        # Of many, a quarter will do; over a stop of this process, none.
        if (credit.fused or not credit.arrived_in_all & 3) and received > self._stops.until:
            self.holding.add((message.done_at / 1e9 or now) - received, now)
        try:
            if verb is ACK_AND_NEXT:
                if credit.fused and self._free_credit() > 0:
                    self.link.publish(message.reply, self._pulls.ack_and_next, self._pulls.inbox)
                    self._pulls.asked(1, now)
                    return True
                verb = ACK
            self.link.publish(message.reply, verb)
            self._replenish_half()
        except (NotConnected, ResourceExhausted):
            return False  # it will be handed out again, and deduplicated
        return True
