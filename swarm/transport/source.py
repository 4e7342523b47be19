"""All messages for one stage of one node: its lanes, the fast queue, and parcels handed over.

lanes (JetStream) ──► decode ─► match with parcels ─┐
fast queue ─────────► decode ─► once each ──────────┼─► map shared memory ─► accept(delivery)
processes of this host ─► room? ─► decode, map ─────┘
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from swarm.clock import ServerClock
from swarm.errors import DecodeError, NotConnected, Status
from swarm.fleet.priorities import PRIMARY
from swarm.flow.recent import RecentIds
from swarm.link import jetstream
from swarm.model import ModelInfo
from swarm.samehost.compact import decode_features
from swarm.samehost.memory import ShmError
from swarm.subjects import ANY
from swarm.transport.api import Admission, Backlog, Delivery
from swarm.transport.delivery import (
    BaseDelivery,
    DeliveryCounts,
    FastDelivery,
    LaneDelivery,
    ReplyDesk,
)
from swarm.transport.fast import COVER, MOST_WAITING, PRIMARIES, FastMessage, FastQueue
from swarm.transport.handover.policy import admit
from swarm.transport.handover.receiver import HandoverReceiver
from swarm.transport.lane import (
    Lane,
    LaneMessage,
    LaneOptions,
    consumer_config,
    ensure_lanes,
    is_kept,
)
from swarm.transport.routes import Routes
from swarm.wire.messages import Features
from swarm.wire.tensors import Claimed
from swarm.wire.urgency import room_for

log = logging.getLogger("swarm.stage")

# A message handed out so often has probably ended the nodes that got it. A smaller number would
# bury healthy ones: a hung node may get a message once an ack_wait (0.06 s) for as long as its
# pulls stand (1 s), a starved device gets it several times; and a deadly one usually ends with its
# budget.
DEADLY_DELIVERIES = 32
HAND_ON_DELAY = 0.1  # seconds; pulls expire within ten of them
IDLE_LANE = 3.0  # seconds for which a gone node's lane is empty before it is deleted

Accept = Callable[[Delivery], None]


@dataclass(slots=True)
class SourceOptions:
    """How a node serves the lanes of a stage.

    priority: `PRIMARY`, `STANDBY` or `FALLBACK`. credit, most_credit: messages asked for plus in
    hand, at least and at most. lanes: how the lanes are kept. clock: the server's."""

    priority: int = PRIMARY
    credit: int = 4
    most_credit: int = 4
    lanes: LaneOptions = field(default_factory=LaneOptions)
    clock: ServerClock = field(default_factory=ServerClock)


class StageSource:
    """Serves one stage's messages to `accept`. `run()` owns its lanes' tasks.

    backlog(): asked before a message of the fast queue, or of this host, is taken. node: this
    node's id, for failures that it reports.
    """

    def __init__(
        self,
        routes: Routes,
        info: ModelInfo,
        stage: int,
        node: str,
        options: SourceOptions,
        tally: DeliveryCounts,
        accept: Accept,
        backlog: Callable[[], Backlog],
    ) -> None:
        subjects = routes.subjects
        self.info = info
        self.stage = stage
        self.lanes: dict[str, Lane] = {}  # by name; the shared one, `ANY`, is the first
        self._routes = routes
        self._node = node
        self._options = options
        self._tally = tally
        self._accept = accept
        self._backlog = backlog
        self._paused = False
        desk = ReplyDesk(routes, info, stage, subjects.dead(info.model), tally)
        self._desk = desk
        self._receiver = HandoverReceiver(
            desk,
            routes.lender,
            serves=self._serves,
            admit=self._admit_parcel,
            ask_lanes=self._ask_lanes,
            accept=accept,
        )
        group = PRIMARIES if options.priority == PRIMARY else COVER
        fast_subject = subjects.fresh(info.model, info.version, stage)
        self.fast = FastQueue(
            routes.link,
            routes.socket,
            fast_subject,
            group,
            self._from_fast_queue,
            desk.now_ns,
        )
        # Two groups may cover the stage before, and both pass a message on.
        self._seen_fast = RecentIds()
        self._gone_memory = RecentIds()  # messages that were handed back without their memory
        self._told_gone = RecentIds()  # of these, the ones whose requester was told
        self._life = _Life()
        routes.link.on_down.append(self._receiver.clear)
        self._add_lane(ANY)
        # Queue groups know no priorities: a node that covers for others listens only when it must.
        if options.priority == PRIMARY:
            self.fast.open()

    @property
    def in_hand(self) -> int:
        """Messages that this node works on, or keeps until the next one's ack."""
        return sum([lane.in_hand for lane in self.lanes.values()]) + self._receiver.in_hand

    @property
    def waiting(self) -> int:
        """Messages that wait in the stage's lanes, as last seen."""
        return sum([lane.pending for lane in self.lanes.values()])

    @property
    def link_wait(self) -> float:
        """Seconds of `ack_wait` that this node's link needs."""
        return max([lane.link_wait for lane in self.lanes.values()])

    @property
    def link_rate(self) -> float:
        """Bytes a second that this node's link brings, 0.0 where it is near or not known."""
        return min([rate for lane in self.lanes.values() if (rate := lane.link_rate)], default=0.0)

    # --- messages ---------------------------------------------------------------------

    def _from_lane(self, message: LaneMessage) -> None:
        if message.times_delivered > 1:
            self._tally.redelivered += 1
        try:
            features = decode_features(message.data)
        except DecodeError as error:
            self._desk.dead_letter(message.data, f"undecodable: {error}")
            message.term()
            return
        if self._paused:
            self._hand_on(message)
            return
        if self._receiver.join(message, features):
            return
        delivery = LaneDelivery(self._desk, message, features)
        if message.times_delivered >= DEADLY_DELIVERIES:
            text = f"handed out {message.times_delivered} times without an end"
            self._desk.fail(delivery, Status.INTERNAL, text, self.stage, self._node)
            delivery.dead_letter(text)
            return
        self._take(delivery)

    def _hand_on(self, message: LaneMessage) -> None:
        """Paused: pulls that were parked before still bring messages for a moment."""
        for lane in self.lanes.values():
            lane.pause()  # a lane that was opened since would pull it again at once
        # Each parked pull gets the message once more, and the next in line gets it behind them.
        # Before so many deliveries make it look deadly, the rest of the pulls is left to expire.
        often = message.times_delivered >= DEADLY_DELIVERIES // 2
        message.nak(HAND_ON_DELAY if often else 0.0)

    def _from_fast_queue(self, message: FastMessage) -> None:
        try:
            features = decode_features(message.data)
        except DecodeError as error:
            self._desk.dead_letter(message.data, f"undecodable: {error}")
            return
        delivery = FastDelivery(self._desk, message, features)
        if self._paused:
            self._turn_away(delivery, Status.UNAVAILABLE, "this stage is being restarted")
            return
        if features.message_id in self._seen_fast:
            return
        self._seen_fast.add(features.message_id, message.received / 1e9)
        most = room_for(MOST_WAITING, features.urgency)
        if self._serves(features) and self._backlog().waiting >= most:
            self._tally.refused += 1
            text = "as many requests wait here as fast mode may have"
            # A place is free with each run.
            self._turn_away(delivery, Status.RESOURCE_EXHAUSTED, text, self._backlog().run)
            return
        self._take(delivery)

    def _serves(self, features: Features) -> bool:
        info = self.info
        wanted = (info.model, info.version, self.stage)
        return (features.model, features.version, features.stage) == wanted

    def _take(self, delivery: LaneDelivery | FastDelivery) -> None:
        """Give it to the stage, with its shared memory mapped."""
        features = delivery.features
        if not self._serves(features):
            text = f"sent for {features.model}@{features.version} stage {features.stage}"
            self._turn_away(delivery, Status.INVALID_ARGUMENT, text)
            return
        if Claimed in map(type, features.tensors.values()):
            try:
                delivery.opened = self._routes.lender.open(features.tensors)
            except ShmError as error:
                if isinstance(delivery, LaneDelivery) and self._asked_again(delivery):
                    return
                if features.message_id in self._told_gone:
                    delivery.drop()  # a further copy of what was handed back
                    return
                self._told_gone.add(features.message_id, self._routes.clock())
                # The shared memory is gone with its sender: only the requester can send the tensors
                # again.
                self._turn_away(delivery, Status.UNAVAILABLE, str(error))
                return
            except DecodeError as error:
                delivery.dead_letter(str(error))
                return
        self._accept(delivery)

    def _asked_again(self, delivery: LaneDelivery) -> bool:
        """Hand back a message that another node may have done, which freed its memory: it is older
        than `ack_wait`, and lay here behind a stop of this process. One that is done never comes
        again; one that is not comes at once, and is this node's to answer."""
        message_id, link = delivery.features.message_id, self._routes.link
        if message_id in self._gone_memory:
            return False
        if delivery.age <= min([lane.ack_wait for lane in self.lanes.values()]):
            return False
        delivery.hand_back()

        def server_knows(read: asyncio.Future[Any]) -> None:
            # Copies that lay in the socket with it have come by now.
            if not read.cancelled() and read.exception() is None:
                self._gone_memory.add(message_id, self._routes.clock())

        with contextlib.suppress(NotConnected):  # then the lane hands it out again
            link.sync().add_done_callback(server_knows)
        return True

    def _turn_away(
        self, delivery: BaseDelivery, status: Status, text: str, retry_after: float = 0.0
    ) -> None:
        if delivery.fail(status, text, self.stage, self._node, retry_after):
            self._routes.lender.give_back(delivery.features.tensors)

    def _admit_parcel(self) -> Admission:
        """Whether a parcel of this host may be taken.

        While messages wait in the lanes, a parcel is taken and waits behind them. If it was
        refused, its sender would store it in the lane, the next parcel would find a lane that is
        not empty either, and so on. Measured: after eight requests had once waited for runs of
        25 ms, all that followed went by the lane for seconds."""
        if self._paused or not self._routes.link.connected:
            return Admission.REFUSED
        admission = admit(self._backlog(), self._receiver.in_hand, self.waiting)
        routed = len(self.lanes) > 1
        if admission is Admission.BEHIND_LANES and routed and self.lanes[ANY].pending:
            return Admission.REFUSED  # another primary may be the next that is free
        return admission

    def let_pass(self, run: float | None) -> None:
        """Have more messages in hand, where those of high priority pass others; None: no more. run:
        usual seconds of a run."""
        for lane in self.lanes.values():
            lane.let_pass(run)

    def _ask_lanes(self) -> None:
        """Ask for all that waits in the lanes."""
        for lane in self.lanes.values():
            lane.ask_for_all()

    # --- lanes ------------------------------------------------------------------------

    def _add_lane(self, name: str) -> Lane:
        routes, info, options = self._routes, self.info, self._options
        link, subjects = routes.link, routes.subjects
        config = consumer_config(
            subjects, info.model, info.version, self.stage, options.lanes, name
        )
        lane = Lane(
            link,
            subjects.stream(info.model, info.version, self.stage, link.domain),
            config,
            partial(
                ensure_lanes, link, subjects, info.model, info.version, info.last, options.lanes
            ),
            self._from_lane,
            priority=options.priority,
            credit=options.credit,
            max_credit=options.most_credit,
            clock=options.clock,
            message_bytes=info.stages[self.stage - 1].message_bytes,
            is_kept=partial(
                is_kept, link, subjects.whereabouts(info.model, info.version, self.stage)
            ),
            now=routes.clock,
        )
        self.lanes[name] = lane
        routes.socket.listen(self._subject(name), self._receiver.receive)
        return lane

    def _subject(self, lane: str) -> str:
        return self._routes.subjects.features(self.info.model, self.info.version, self.stage, lane)

    def open_lane(self, name: str) -> None:
        """Serve one more lane of the stage: this node's own, or one that lost its node."""
        if name not in self.lanes and self._life.runs:
            self._life.own(name, self._add_lane(name).run())

    async def close_idle_lanes(self, own: str) -> None:
        """Stop serving, and delete, lanes of gone nodes that have been empty for a while."""
        now = self._routes.clock()
        for name, lane in list(self.lanes.items()):
            if name in (ANY, own):
                continue
            if lane.pending or lane.in_hand:
                self._life.idle_since.pop(name, None)
            elif now - self._life.idle_since.setdefault(name, now) > IDLE_LANE:
                await self._delete_lane(name, lane)

    async def _delete_lane(self, name: str, lane: Lane) -> None:
        self._routes.socket.forget(self._subject(name))
        await lane.drain()
        await self._life.end(name)
        await jetstream.delete_consumer(
            self._routes.link, lane.stream, str(lane.config["durable_name"])
        )
        del self.lanes[name]

    # --- life -------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until closed. A lane's failure ends all, and is raised."""
        await self._life.run({name: lane.run() for name, lane in self.lanes.items()})

    async def ready(self, timeout: float) -> None:
        """Wait until every lane pulls. Raises `TimeoutError`."""
        await asyncio.gather(*(lane.ready(timeout) for lane in self.lanes.values()))

    @property
    def waits_for(self) -> str:
        """Why a lane does not pull at present, "" while all do."""
        return next((lane.waits_for for lane in self.lanes.values() if lane.waits_for), "")

    @property
    def priority(self) -> int:
        """Its place among the nodes of the stage."""
        return self._options.priority

    def set_priority(self, priority: int) -> None:
        """Take this place among the nodes of the stage. In fast mode the node stays in the queue
        group that it began in."""
        if priority == self._options.priority:
            return
        self._options.priority = priority
        for lane in self.lanes.values():
            lane.set_priority(priority)

    def pause(self) -> None:
        """Take nothing more."""
        self._paused = True
        for lane in self.lanes.values():
            lane.pause()

    def resume(self) -> None:
        """Take messages again."""
        self._paused = False
        for lane in self.lanes.values():
            lane.resume()

    def hand_back(self) -> None:
        """All messages in hand are to be worked on elsewhere."""
        self._receiver.hand_back()
        for lane in self.lanes.values():
            for message in lane.messages():
                message.nak()

    async def drain(self) -> None:
        """Take nothing more; messages that were on their way have arrived, or are refused."""
        await self.fast.close()
        await asyncio.gather(*(lane.drain() for lane in self.lanes.values()))

    def close(self) -> None:
        """This node serves the stage no more; until now its parcels were refused one by one."""
        for name in self.lanes:
            self._routes.socket.forget(self._subject(name))
        self._routes.link.on_down.remove(self._receiver.clear)
        self._life.close()


class _Life:
    """The tasks of a source's lanes, in one group."""

    def __init__(self) -> None:
        self.idle_since: dict[str, float] = {}  # lanes of gone nodes, by `Routes.clock`
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._closed = asyncio.Event()

    @property
    def runs(self) -> bool:
        return self._group is not None and not self._closed.is_set()

    async def run(self, lanes: dict[str, Coroutine[None, None, None]]) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            group.create_task(self._closed.wait(), name="until closed")
            for name, lane in lanes.items():
                self.own(name, lane)

    def own(self, name: str, lane: Coroutine[None, None, None]) -> None:
        assert self._group is not None
        self._tasks[name] = self._group.create_task(lane, name=f"lane {name}")

    async def end(self, name: str) -> None:
        """Wait for a drained lane's task."""
        self.idle_since.pop(name, None)
        if (task := self._tasks.pop(name, None)) is not None:
            await task

    def close(self) -> None:
        self._closed.set()
