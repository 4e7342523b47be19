"""Handing parcels over to processes of this host, with the lane behind it.

The decisions are `HandoverPolicy`'s and those of a table (`states`); here they are carried out:
datagrams, acks, one timer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from swarm.errors import ResourceExhausted, SwarmError, Unavailable
from swarm.link import Link, LinkMessage
from swarm.samehost.host_socket import LARGEST_MESSAGE, LIVING, HostSocket
from swarm.transport.api import IN_FLIGHT, Acked, Event, OnEvent, Refused
from swarm.transport.handover.acks import ACK, PASSED_ON
from swarm.transport.handover.policy import HandoverPolicy
from swarm.transport.handover.states import TABLE, Effect, News, ParcelState
from swarm.transport.lane_sender import LaneSender
from swarm.transport.parcel import Parcel
from swarm.wire.hops import Hop
from swarm.wire.tensors import Part

log = logging.getLogger("swarm.handover")

CHECK_AGAIN = 0.001  # seconds; event loops have timers of whole milliseconds
ENDS = (ParcelState.ENDED, ParcelState.ENDED_STORING)


@dataclass(slots=True, eq=False)
class HandedOver:
    """One parcel that a process of this host has, or had (a `Sending`).

    lane: the subject of the lane behind it. own_subject: whether the ack comes to a subject of its
    own, and not to the parcel's reply subject; key: that subject."""

    _owner: HandoverSender
    parcel: Parcel
    on: OnEvent
    lane: str
    own_subject: bool
    key: str = ""
    state: ParcelState = ParcelState.IN_FLIGHT

    @property
    def over(self) -> bool:
        """Whether its last event has been told."""
        return self.state in ENDS

    def on_ack(self, verb: Part) -> None:
        self._owner.on_ack(self, verb)

    def on_no_responders(self) -> None:
        """The socket tells its sender at once that nobody listens, so the server's word does not
        come."""

    def answered(self, hops: tuple[Hop, ...]) -> None:
        self._owner.answered(self)

    def drop(self) -> None:
        self._owner.drop(self)


class HandoverSender:
    """Hands over the parcels of one stage, or of one requester, to the next stage.

    stage: the one before it, also of a requester.
    """

    def __init__(
        self,
        link: Link,
        socket: HostSocket,
        lane: LaneSender,
        stage: int,
        last: int,
        clock: Callable[[], float] = time.monotonic,
        requests: bool = False,
    ) -> None:
        self._link = link
        self._socket = socket
        self._lane = lane
        self._clock = clock
        # A requester hears of a later stage, too, nothing but the last one's answer.
        self._policy = HandoverPolicy(0, last - stage) if requests else HandoverPolicy(stage, last)
        self._from_requester = requests
        self._in_flight: dict[str, HandedOver] = {}  # by the subject of the ack
        self._timer: asyncio.TimerHandle | None = None
        self._planned = 0.0  # when the timer is due
        self._second_check = False
        socket.on_gone.append(self._gone)

    @property
    def in_flight(self) -> int:
        """Parcels that other processes have."""
        return self._policy.in_flight

    def accepts(self, peer: str, run: float) -> bool:
        """Whether the process takes one more parcel at present; run: usual seconds of a run."""
        return self._policy.accepts(peer, run, self._clock())

    def count_stored(self) -> None:
        """A parcel went to the lane, since `accepts` said no."""
        self._policy.stored(self._clock())

    def send(self, parcel: Parcel, on: OnEvent, peer: str, subject: str, run: float) -> HandedOver:
        """Hand the parcel over to the process `peer`, or store it where that fails. subject: of the
        lane that the parcel is for. run: usual seconds of a run."""
        handed = HandedOver(self, parcel, on, subject, not self._from_requester)
        try:
            parts = parcel.compact()
        except SwarmError as error:
            handed.state = ParcelState.ENDED
            on(Refused(error))
            return handed
        now = self._clock()
        if sum(map(len, parts)) > LARGEST_MESSAGE:
            self._policy.stored(now)
            self._store(handed, ParcelState.STORING)
            return handed
        if handed.own_subject:
            handed.key = self._link.expect(self._acked)
        else:
            handed.key = parcel.features.reply
        # A lone parcel goes first: behind a long run, with cold caches, the rest takes 0.03 ms.
        together = self._link.bursting
        if not together and not self._socket.send(peer, subject, parts, handed.key):
            self._policy.unreachable(peer, now)
            self._forget(handed)
            self._store(handed, ParcelState.STORING)
            return handed
        if parcel.loan.claims:
            parcel.loan.keep()
        self._in_flight[handed.key] = handed
        due = self._policy.handed_over(handed.key, peer, run, now, together)
        try:
            on(IN_FLIGHT)
        except Exception:
            self._failed(handed)
        if handed.over:
            return handed
        if self._timer is None or due < self._planned:
            self._check_at(due)
        if together:
            posted = partial(self._posted, handed)
            self._socket.post(peer, subject, parts, posted, handed.key)
        return handed

    # --- what comes of it -------------------------------------------------------------

    def on_ack(self, handed: HandedOver, verb: Part) -> None:
        """What the process says that has, or had, the parcel."""
        if handed.over:
            return
        if verb in (ACK, PASSED_ON):
            self._policy.acked(handed.key, self._clock())
            self._happened(handed, News.DONE, Acked(verb == PASSED_ON))
        else:
            self._policy.refused(handed.key, self._clock())
            self._happened(handed, News.REFUSED)

    def answered(self, handed: HandedOver) -> None:
        """The request was answered."""
        if not handed.over:
            self._policy.answered(handed.key, self._clock())
            self._happened(handed, News.LET_GO)

    def drop(self, handed: HandedOver) -> None:
        """Nobody waits for the parcel. Its loan stays: a process may read it."""
        if not handed.over:
            self._policy.dropped(handed.key)
            self._happened(handed, News.LET_GO)

    def _acked(self, message: LinkMessage) -> None:
        handed = self._in_flight.get(message.subject)
        if handed is not None:
            self.on_ack(handed, message.data)

    def _posted(self, handed: HandedOver, sent: bool) -> None:
        # The send that failed may have shown that the process has ended: then it is stored already.
        if not sent and not handed.over:
            self._policy.refused(handed.key, self._clock())
            self._happened(handed, News.REFUSED)

    def _gone(self, peer: str) -> None:
        """That process has ended: its parcels are stored at once."""
        for key in self._policy.gone(peer, self._clock()):
            self._happened(self._in_flight[key], News.GONE)

    def _happened(self, handed: HandedOver, news: News, event: Event | None = None) -> None:
        """By the table. event: what its sender is told. Never raises: the other parcels' events
        must come."""
        followed = TABLE.get((handed.state, news))
        if followed is None:
            return
        handed.state, loan = followed.state, handed.parcel.loan
        if handed.over:
            self._forget(handed)
        for effect in followed.effects:
            if effect is Effect.TELL:
                assert event is not None
                self._tell(handed, event)
            elif effect is Effect.STORE:
                self._store(handed, handed.state)
            elif effect is Effect.FREE:
                handed.parcel.released()
            elif effect is Effect.UNREAD:
                loan.unread()
            else:
                loan.take_back()

    def _store(self, handed: HandedOver, state: ParcelState) -> None:
        """Put the parcel into its lane. Until that is done, the ack of a late process counts."""
        handed.state = state
        if not handed.parcel.wanted():
            self._happened(handed, News.UNWANTED)
            return
        late = state is ParcelState.STORING_LATE
        try:
            self._lane.send(handed.lane, handed.parcel, partial(self._stored, handed), late)
        except Exception:
            self._failed(handed)

    def _stored(self, handed: HandedOver, event: Event) -> None:
        news = News.STORED
        if isinstance(event, Refused):
            full = isinstance(event.error, ResourceExhausted)
            news = News.FULL if full else News.NOT_STORED
        self._happened(handed, news, event)

    def _forget(self, handed: HandedOver) -> None:
        if self._in_flight.get(handed.key) is handed:
            del self._in_flight[handed.key]
        if handed.own_subject and handed.key:
            self._link.forget(handed.key)

    def _tell(self, handed: HandedOver, event: Event) -> None:
        """Never raises: the other parcels' events must come."""
        try:
            handed.on(event)
        except Exception:
            self._failed(handed)

    def _failed(self, handed: HandedOver) -> None:
        """A defect, which must not cost the other parcels their events: this parcel goes back."""
        self._link.callback_errors += 1
        log.exception("a parcel that was handed over could not be stored, or its event failed")
        self.drop(handed)
        try:
            handed.on(Refused(Unavailable("a defect in the sender; its log has the error")))
        except Exception:
            self._link.callback_errors += 1
            log.exception("nor could its sender be told")

    # --- checks -----------------------------------------------------------------------

    def _check_at(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._planned = due
        seconds = max(CHECK_AGAIN, due - self._clock())
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check)

    def _check(self) -> None:
        self._timer = None
        now = self._clock()
        if self._policy.is_due(now):
            if not self._second_check:
                # Where the loop was blocked, the acks lie in the socket, which is read after
                # timers.
                self._second_check = True
                self._check_at(now)
                return
            self._act(now)
        self._second_check = False
        if self._policy.in_flight:
            self._check_at(self._policy.next_due)

    def _act(self, now: float) -> None:
        ask, store = self._policy.check(now)
        for peer in ask:
            self._ask(peer)
        for key in store:
            self._happened(self._in_flight[key], News.LATE)

    def _ask(self, peer: str) -> None:
        """Whether the process lives: any answer says so. One that is gone, or full, is silent."""
        reply = ""

        def lives(_: LinkMessage) -> None:
            self._link.forget(reply)
            self._policy.lives(peer, self._clock())

        reply = self._link.expect(lives)
        asyncio.get_running_loop().call_later(1.0, self._link.forget, reply)
        self._socket.send(peer, LIVING, [], reply)

    def close(self) -> None:
        """Nothing is handed over any more: what is in flight is stored."""
        self._socket.on_gone.remove(self._gone)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for key in self._policy.close():
            self._happened(self._in_flight[key], News.LATE)
