"""The two sides of `swarm.requests.witness` on NATS: notices of what a node has in hand, and the
witness that reads them beside the copies of requests.

A witness has a connection of its own for both, and reads it a few times a second: the copies wait
in the kernel and at the server meanwhile, and no request wakes a process but the one that answers
it. (Measured: a copy that is read at once costs a tenth of a small request.)
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from swarm.errors import DecodeError, SwarmError
from swarm.fleet.advertised import EVERY_MODEL, answerers, served_models
from swarm.flow.bucket import TokenBucket
from swarm.gossip import PeerView
from swarm.link import Link, LinkMessage, LinkOptions
from swarm.periodic import BEAT, beat
from swarm.requests.witness import (
    PATIENCE,
    SECOND_PATIENCE,
    Notice,
    RequestsInHand,
    Witness,
    key_of,
    witnesses,
)
from swarm.subjects import Subjects

log = logging.getLogger("swarm.witness")

# A witness is alone in its queue group: a member that hangs would get a part of its copies.
GROUP = "w"
READ_EVERY = BEAT / 2  # seconds, while there are requests
LOOK_EVERY = 5 * BEAT  # seconds between two looks at who the witnesses are
READ_FOR = 0.05  # seconds of one read at most
READ_STEP = 0.001  # seconds between two looks whether more has come
# Bytes a second of copies that a witness reads, and at once: copies of large requests would take as
# long as answering them. Above that rate it rests, and requests have no witness.
BYTES_PER_SECOND, BYTES_AT_ONCE = 16 << 20, 64 << 20
REST_FOR = 5.0  # seconds

View = Callable[[], Mapping[str, PeerView]]
Take = Callable[[LinkMessage, float], None]  # (request, seconds that it has waited)


class Notices:
    """Tells the witnesses which requests this node has in hand. It never raises: without a
    connection nobody is told."""

    def __init__(self, link: Link, subjects: Subjects, node: str) -> None:
        self._link = link
        self._subjects = subjects
        self._node = node
        self._hands: dict[str, RequestsInHand] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def began(self, model: str, key: bytes) -> None:
        """This node answers a request from now on."""
        hand = self._hands.get(model)
        if hand is None:
            hand = self._hands[model] = RequestsInHand(self._node)
        hand.began(key)
        if model not in self._timers:
            self._arm(model, hand)

    def ended(self, model: str, key: bytes) -> None:
        """It has answered a request that it has begun."""
        self._hands[model].ended(key)

    def dropped(self, model: str, key: bytes) -> None:
        """It cannot answer a request that it has begun: a witness does."""
        self._hands[model].dropped(key)

    def close(self) -> None:
        """Tell all that is to be told, and then nothing more."""
        for model, timer in list(self._timers.items()):
            timer.cancel()
            self._tell(model, self._hands[model])
        self._timers.clear()

    def _arm(self, model: str, hand: RequestsInHand) -> None:
        due = hand.due
        if due is not None:
            loop = asyncio.get_running_loop()
            self._timers[model] = loop.call_later(due, self._tell_and_arm, model, hand)

    def _tell_and_arm(self, model: str, hand: RequestsInHand) -> None:
        del self._timers[model]
        self._tell(model, hand)
        self._arm(model, hand)

    def _tell(self, model: str, hand: RequestsInHand) -> None:
        subject = self._subjects.notices(model)
        if not self._link.grants.may_publish(subject):
            hand.told()  # rights of an older version: gossip says so, and no node is a witness
            return
        try:
            self._link.publish(subject, hand.notice.encode())
            hand.told()
        except SwarmError as error:
            log.debug("witnesses of %s were not told: %s", model, error)


@dataclass
class _Duty:
    """This node is a witness of one model. rank: 0 for the first, 1 for the second."""

    rank: int
    copies: Witness[LinkMessage] = field(default_factory=Witness)
    sids: list[int] = field(default_factory=list)


class Witnessing:
    """`run()` is a witness wherever this node has to be one, until cancelled.

    options: of the node's connection. view(): the nodes as gossip has them. takes: by the first
    tokens of a subject behind the mesh's name (`infer`), what answers a request in another's place.
    may: whether this user may hear requests and notices.
    """

    def __init__(
        self,
        options: LinkOptions,
        subjects: Subjects,
        node: str,
        view: View,
        takes: Mapping[str, Take],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link = Link(replace(options, inbox="", name=f"{options.name} witness"))
        self._subjects = subjects
        self._node = node
        self._view = view
        self._takes = takes
        self._clock = clock
        self._duties: dict[str, _Duty] = {}
        self._bucket = TokenBucket(BYTES_PER_SECOND, BYTES_AT_ONCE)
        self._rests_until = 0.0
        self._look_at = 0.0
        self._came = 0  # messages
        self.taken = self.dropped = self.rests = 0

    @property
    def held(self) -> int:
        """Copies that are kept."""
        return sum(len(duty.copies) for duty in self._duties.values())

    @property
    def is_ready(self) -> bool:
        """Whether it looks after some model, and is connected."""
        return bool(self._duties) and self._link.connected

    async def run(self) -> None:
        linked: asyncio.Task[None] | None = None
        try:
            while True:
                await beat(READ_EVERY if self.held else BEAT)
                now = self._clock()
                if now >= self._look_at:
                    self._look_at = now + LOOK_EVERY
                    self._look(now)
                if self._duties and linked is None:
                    linked = asyncio.create_task(self._link.run(), name="witness link")
                if linked is not None and linked.done():
                    linked.result()  # a fault, which ends who owns this work
                if linked is not None and await self._read():
                    self._act()
        finally:
            if linked is not None:
                linked.cancel()
                await asyncio.gather(linked, return_exceptions=True)

    def look_again(self) -> None:
        """Gossip has news of who answers."""
        self._look_at = 0.0

    def status(self) -> dict[str, object]:
        """For status documents."""
        dropped = self.dropped + sum(duty.copies.dropped for duty in self._duties.values())
        return {
            "of": {model: duty.rank + 1 for model, duty in sorted(self._duties.items())},
            "held": self.held,
            "taken": self.taken,
            "dropped": dropped,
            "rests": self.rests,
        }

    # --- who is a witness -------------------------------------------------------------------

    def _look(self, now: float) -> None:
        wanted: dict[str, int] = {}
        view = list(self._view().values())
        known = answerers(view)
        models = {each.model for each in known} - {EVERY_MODEL}
        for peer in view:
            if peer.state == "alive":
                models |= served_models(peer.values)
        some_died = any(peer.state == "dead" for peer in view)
        found = witnesses(known, sorted(models), some_died)
        if now >= self._rests_until:
            wanted = {
                model: chosen.index(self._node)
                for model, chosen in found.items()
                if self._node in chosen
            }
        for model in self._duties.keys() - wanted.keys():
            self._end(model)
        for model, rank in wanted.items():
            duty = self._duties.get(model)
            if duty is None:
                self._duties[model] = self._begin(model, rank)
            else:
                duty.rank = rank

    def _begin(self, model: str, rank: int) -> _Duty:
        """Hear copies and notices of a model."""
        duty = _Duty(rank)
        root, group = self._subjects.root, f"{GROUP}.{self._node}"
        for kind in self._takes:
            heard = partial(self._heard, duty)
            duty.sids.append(self._link.subscribe(f"{root}.{kind}.{model}", heard, group))
        told = partial(self._told, duty)
        duty.sids.append(self._link.subscribe(self._subjects.notices(model), told))
        return duty

    def _end(self, model: str) -> None:
        duty = self._duties.pop(model)
        self.dropped += duty.copies.dropped
        for sid in duty.sids:
            self._link.unsubscribe(sid)

    # --- what it hears ----------------------------------------------------------------------

    def _heard(self, duty: _Duty, message: LinkMessage) -> None:
        now, size = self._clock(), len(message.data)
        self._came += 1
        if not message.reply:
            return  # nobody waits for an answer
        if not self._bucket.take(now, size + 1):
            self._rest(now)
            return
        duty.copies.heard(key_of(message.reply, message.data), message, size, now)

    def _told(self, duty: _Duty, message: LinkMessage) -> None:
        self._came += 1
        try:
            notice = Notice.decode(message.data)
        except DecodeError as error:
            log.debug("a notice that cannot be read: %s", error)
            return
        duty.copies.told(notice, self._clock())

    def _rest(self, now: float) -> None:
        """The copies are too much to read: look after nothing for a while."""
        if now < self._rests_until:
            return
        self.rests += 1
        self._rests_until = now + REST_FOR
        log.info("the copies of requests are too large to keep: nobody looks after them for 5 s")
        for model in list(self._duties):
            self._end(model)

    def _act(self) -> None:
        now = self._clock()
        view = self._view()

        def gone(node: str) -> bool:
            peer = view.get(node)
            return peer is not None and peer.state != "alive"

        for duty in list(self._duties.values()):
            patience = SECOND_PATIENCE if duty.rank else PATIENCE
            for taken in duty.copies.due(patience, gone, now):
                self.taken += 1
                kind = taken.request.subject[len(self._subjects.root) + 1 :].partition(".")[0]
                self._takes[kind](taken.request, taken.waited)

    async def _read(self) -> bool:
        """All that has come until now, then nothing until the next time; whether it was all."""
        transport = self._link.gather.transport
        if transport is None or not self._link.connected:
            return False
        until, is_all = self._clock() + READ_FOR, False
        transport.resume_reading()
        while self._link.connected and self._clock() < until and not is_all:
            before = self._came
            await asyncio.sleep(READ_STEP)
            is_all = self._came == before
        if self._link.connected and transport is self._link.gather.transport:
            transport.pause_reading()
        return is_all
