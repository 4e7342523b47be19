"""Receiving what processes of this host hand over, beside the lanes that may bring copies of it.

A parcel that is handed over is stored only if its sender is told that it was refused, or nothing
for a while. The two copies are matched by the message's id: the one that is stored later has less
budget, and where the stage before was computed twice, they differ in their hops.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from swarm.errors import DecodeError
from swarm.samehost.compact import decode_features
from swarm.samehost.lending import Lender
from swarm.samehost.memory import ShmError
from swarm.transport.api import Admission
from swarm.transport.delivery import BaseDelivery, ReplyDesk
from swarm.transport.handover.acks import ACK, NAK, PASSED_ON
from swarm.transport.lane import LaneMessage
from swarm.wire.messages import Features
from swarm.wire.tensors import Claimed

MOST_KNOWN = 512  # parcels whose copies may still come
LAST_HANDED_OUT = 32  # messages that lanes handed out last, which are remembered
# Nanoseconds; a parcel that lay longer in the socket, of a process that was stopped, say, may be
# another node's by now.
STALE_AFTER = 50_000_000
# Nanoseconds; the server remembers ids for as long (`LaneOptions.duplicates`).
COPY_COMES_WITHIN = 30_000_000_000


Key = tuple[str, int]  # a message of this stage: id of the request, attempt


class HandoverDelivery(BaseDelivery):
    """A parcel that a process of this host handed over. Until the lane's copy comes (`join`), its
    end is told to its sender; from then on it is the copy's end."""

    __slots__ = (
        "_behind_answer",
        "_copy",
        "_off_credit_at",
        "_on_end",
        "_over",
        "_reply",
        "age",
        "key",
        "received",
    )

    direct = True
    times_delivered = 1

    def __init__(
        self,
        desk: ReplyDesk,
        features: Features,
        sent: int,
        received: int,
        reply: str,
        on_end: Callable[[HandoverDelivery, bool], None],
    ) -> None:
        """sent, received: ns of the desk's clock. reply: where the sender waits for the ack.
        on_end(taken, done): it ended before a copy came."""
        super().__init__(desk, features)
        self.key: Key = (features.id, features.attempt)
        self.received = received
        self.age = (received - sent) / 1e9
        self._reply = reply
        self._on_end = on_end
        self._copy: LaneMessage | None = None
        self._over = False
        self._off_credit_at = 0  # ns
        self._behind_answer = False

    @property
    def least_age(self) -> float:
        """its way was timed by this host's clock alone."""
        return self.age

    @property
    def ended(self) -> bool:
        return self._over if self._copy is None else self._copy.ended

    def join(self, copy: LaneMessage) -> None:
        """The lane's copy came while the work goes on: the end of the work is the copy's end."""
        self._copy = copy
        if self._off_credit_at:
            copy.release_credit(max(self._off_credit_at, copy.received))

    def answered_by_server(self) -> None:
        """The ack to the sender must not overtake the answer."""
        self._behind_answer = True

    def release_credit(self) -> None:
        if self._copy is not None:
            self._copy.release_credit()
        else:
            self._off_credit_at = self._desk.now_ns()

    def take_credit(self) -> None:
        self._off_credit_at = 0
        if self._copy is not None:
            self._copy.take_credit()

    def ack(self, passed_on: bool) -> bool:
        """Its sender frees the shared memory when it hears so."""
        if self._copy is not None:
            if not self._copy.ack():
                return False
            self._release()
            return True
        # An answer to the subject of the ack is ack enough.
        if passed_on or self._reply != self.features.reply:
            self._end(True, PASSED_ON if passed_on else ACK)
        else:
            self._end(True, b"")
        return False

    def hand_back(self, delay: float = 0.0) -> None:
        """The lane's copy is worked on, here or elsewhere."""
        if not self.withdraw() and self._copy is not None:
            self._copy.nak(delay)

    def dead_letter(self, reason: str) -> None:
        """The lane's copy is not handed out again; one that has not come is judged by itself."""
        if not self.withdraw() and self._copy is not None:
            self._desk.dead_letter(self._copy.data, reason)
            self._copy.term()

    def withdraw(self) -> bool:
        """the sender has the parcel again, and stores it."""
        if self._copy is not None:
            return False
        self._end(False, NAK)
        return True

    def _end(self, done: bool, verb: bytes) -> None:
        if self._over:
            return
        self._over = True
        self._on_end(self, done)
        if verb:
            self._desk.acknowledge(self._reply, verb, self._behind_answer)


class Finished:
    """A parcel whose work is done, while a copy may still come. Of its message it keeps the claims,
    and no tensors: those of all finished parcels together would fill the memory."""

    __slots__ = ("_lender", "key", "opened", "received")

    ended = True

    def __init__(self, taken: HandoverDelivery, lender: Lender) -> None:
        self.key = taken.key
        self.received = taken.received
        self.opened = taken.opened
        self._lender = lender

    def join(self, copy: LaneMessage) -> None:
        """The lane's copy came: there is nothing left to do for it."""
        if copy.ack():
            self._lender.done(self.opened)


class HandoverReceiver:
    """One stage's. serves(features): whether they were sent for this stage. admit(): whether one
    more parcel may be taken. ask_lanes() asks for what waits in the lanes. accept(delivery) begins
    the work."""

    def __init__(
        self,
        desk: ReplyDesk,
        lender: Lender,
        serves: Callable[[Features], bool],
        admit: Callable[[], Admission],
        ask_lanes: Callable[[], None],
        accept: Callable[[HandoverDelivery], None],
    ) -> None:
        self._desk = desk
        self._lender = lender
        self._serves = serves
        self._admit = admit
        self._ask_lanes = ask_lanes
        self._accept = accept
        self._known: dict[Key, HandoverDelivery | Finished] = {}  # while a copy may still come
        self._in_hand: set[HandoverDelivery] = set()  # worked on; no copy has come
        self._handed_out: deque[Key] = deque(maxlen=LAST_HANDED_OUT)

    @property
    def in_hand(self) -> int:
        """Parcels that are worked on, and of which no lane has handed out a copy."""
        return len(self._in_hand)

    def receive(self, data: bytes, sent: int, reply: str) -> None:
        """A parcel came; `sent`: ns of the desk's clock. It is refused whenever anything
        speaks against it: its sender stores it then."""
        taken = self._take(data, sent, reply)
        if taken is None:
            self._desk.acknowledge(reply, NAK, False)
            return
        self._desk.tally.taken += 1
        try:
            self._accept(taken)
        except Exception:
            taken.withdraw()  # the lane's copy would join a parcel that nobody works on
            raise

    def join(self, copy: LaneMessage, features: Features) -> bool:
        """Match a lane's message with the parcels that were handed over: whether it is in hand, or
        done, already."""
        key = (features.id, features.attempt)
        taken = self._known.get(key)
        if taken is not None and self._join(taken, copy):
            # A message that has not ended may be handed out again, and needs its memory.
            if copy.ended:
                self._lender.give_back(features.tensors, but=taken.opened)
            return True
        self._handed_out.append(key)
        return False

    def clear(self) -> None:
        """The lanes' copies will be handed out anew, or to other nodes."""
        self._known.clear()

    def hand_back(self) -> None:
        """All parcels that are worked on are to be worked on elsewhere."""
        for taken in list(self._in_hand):
            taken.hand_back()
        self.clear()

    def _take(self, data: bytes, sent: int, reply: str) -> HandoverDelivery | None:
        now = self._desk.now_ns()
        if now - sent > STALE_AFTER:
            return None
        admission = self._admit()
        if admission is Admission.REFUSED or not self._make_room(now):
            return None
        if admission is Admission.BEHIND_LANES:
            self._ask_lanes()
        try:
            features = decode_features(data)
            if not self._serves(features):
                return None
            key = (features.id, features.attempt)
            # Its copy may have come first, and may even be done, as far as that is known.
            if key in self._known or key in self._handed_out:
                return None
            taken = HandoverDelivery(self._desk, features, sent, now, reply, self._ended)
            if Claimed in map(type, features.tensors.values()):
                taken.opened = self._lender.open(features.tensors)
        except (DecodeError, ShmError):
            return None
        self._known[key] = taken
        self._in_hand.add(taken)
        return taken

    def _make_room(self, now: float) -> bool:
        """Forget the oldest parcel if it is done: its copy went elsewhere, or there was none.
        False: it is not done, and there is no room."""
        if len(self._known) >= MOST_KNOWN:
            oldest = next(iter(self._known.values()))
            if not oldest.ended and now - oldest.received <= COPY_COMES_WITHIN:
                return False
            self._forget(oldest)
        return True

    def _join(self, taken: HandoverDelivery | Finished, copy: LaneMessage) -> bool:
        self._forget(taken)
        if copy.received - taken.received > COPY_COMES_WITHIN:
            return False
        self._handed_out.append(taken.key)
        taken.join(copy)
        return True

    def _ended(self, taken: HandoverDelivery, done: bool) -> None:
        """It ended, and no copy has come."""
        if done and self._known.get(taken.key) is taken:
            self._in_hand.discard(taken)
            self._known[taken.key] = Finished(taken, self._lender)
        else:
            self._forget(taken)

    def _forget(self, taken: HandoverDelivery | Finished) -> None:
        if isinstance(taken, HandoverDelivery):
            self._in_hand.discard(taken)
        if self._known.get(taken.key) is taken:
            del self._known[taken.key]
