"""What comes from this host's processes and not from the lane: it was handed over to this stage.

It is stored only if its sender is told that it was refused, or nothing for a while
(`swarm.transport.handover`). The two copies are matched by the message's id: the one that is stored
later has less budget, and where the stage before was computed twice, they differ in their hops.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from nodes.stage.jobs import Job
from nodes.stage.outbox import Outbox
from swarm.errors import DecodeError
from swarm.lanes import DONE, PASSED_ON, REFUSED, Delivery, Early, Lane
from swarm.local.compact import decode_features
from swarm.local.lending import Lender
from swarm.shm import ShmError
from swarm.wire.messages import Features
from swarm.wire.tensors import Claimed

KEPT = 512  # early messages whose copies may still come
RECENT = 32  # messages that lanes handed out last
# Nanoseconds; one that lay longer in the socket of a process that was stopped, say, may be
# another node's by now.
STALE = 50_000_000
OVERTAKEN = 0.002  # seconds of work in the lanes that may be overtaken
# Nanoseconds; the server remembers ids for as long (`LaneOptions.duplicates`).
FORGOTTEN = 30_000_000_000


def take_in(lanes: Sequence[Lane], run: float) -> bool:
    """Ask for all that waits in a stage's lanes, so that what comes now does not overtake it.
    False: that is to wait there too. lanes: the shared one is the first. run: seconds of one.

    Refused, it would be the next that waits: a lane in which eight requests had once waited for
    runs of 25 ms kept all that followed for seconds.
    """
    shared, *own = lanes
    if own and shared.pending * run > OVERTAKEN:
        return False  # messages are routed: another primary may be the next that is free
    for lane in lanes:
        lane.ask_for_all()
    return True


class Intake:
    """One stage's. busy(): what comes now cannot be taken, or must not. accept(job) begins its
    run."""

    def __init__(
        self,
        out: Outbox,
        claims: Lender | None,
        busy: Callable[[], bool],
        accept: Callable[[Job], None],
    ) -> None:
        self._out = out
        self._claims = claims
        self._busy = busy
        self._accept = accept
        self._early: dict[str, Early] = {}  # by message id
        self._in_hand: set[Early] = set()  # worked on; no copy has come
        self._handed_out: deque[str] = deque(maxlen=RECENT)  # message ids

    def __len__(self) -> int:
        """Messages that are worked on and of which no lane has handed out a copy."""
        return len(self._in_hand)

    def came(self, data: bytes, sent: int, reply: str) -> None:
        """A message came directly; `sent`, as all times here, in ns of `time.monotonic_ns`; who
        sent it waits for a word at `reply`. It is refused whenever anything speaks against it."""
        job = self._take(data, sent, reply)
        if job is None:
            self._out.tell(reply, REFUSED)
            return
        self._out.stats.counters.taken += 1
        try:
            self._accept(job)
        except Exception:
            job.delivery.withdraw()  # its copy would join what nobody works on
            raise

    def _take(self, data: bytes, sent: int, reply: str) -> Job | None:
        now = time.monotonic_ns()
        if now - sent > STALE or self._busy() or not self._room():
            return None
        try:
            return self._job(data, sent, now, reply)
        except (DecodeError, ShmError):
            return None

    def joined(self, copy: Delivery, features: Features) -> bool:
        """Whether a lane's message is in hand, or done, already."""
        early = self._early.get(features.message_id)
        if early is not None and self._join(early, copy):
            # What is not settled may be handed out again.
            if copy.settled and self._claims is not None:
                self._claims.give_back(features.tensors, but=early.opened)
            return True
        self._handed_out.append(features.message_id)
        return False

    def _join(self, early: Early, copy: Delivery) -> bool:
        self._forget(early)
        if copy.received - early.received > FORGOTTEN:
            return False
        self._handed_out.append(early.id)
        if early.join(copy) and self._claims is not None:
            self._claims.done(list(early.opened))
        return True

    def clear(self) -> None:
        """The lanes' copies will be handed out anew, or to others."""
        self._early.clear()

    def give_back(self) -> None:
        """All that is worked on is to be worked on elsewhere."""
        for early in list(self._in_hand):
            early.nak()
        self.clear()

    def _job(self, data: bytes, sent: int, now: int, reply: str) -> Job | None:
        """None for what is in hand already. Raises `DecodeError`, `ShmError`."""
        features = decode_features(data)
        if not self._out.serves(features):
            raise DecodeError("sent for another stage")
        message_id = features.message_id
        # Its copy may have come first, and may even be done, as far as that is known.
        if message_id in self._early or message_id in self._handed_out:
            return None
        ended = self._answered if reply == features.reply else self._ended
        early = Early(message_id, sent, now, ended, reply)
        job = Job.of(early, features)
        if Claimed in map(type, features.tensors.values()):
            if self._claims is None:
                raise DecodeError("this node has no shared memory")
            job.opened = early.opened = self._claims.open(features.tensors)
        self._early[message_id] = early
        self._in_hand.add(early)
        return job

    def _room(self) -> bool:
        """The oldest makes it when it is done: its copy went elsewhere, or there was none."""
        if len(self._early) >= KEPT:
            oldest = next(iter(self._early.values()))
            if not oldest.settled and time.monotonic_ns() - oldest.received <= FORGOTTEN:
                return False
            self._forget(oldest)
        return True

    def _ended(self, early: Early, done: bool) -> None:
        """It was settled, and no copy has come."""
        self._in_hand.discard(early)
        if not done:
            self._forget(early)
            self._out.tell(early.reply, REFUSED, early.published)
        else:
            word = PASSED_ON if early.passed_on else DONE
            self._out.tell(early.reply, word, early.published)

    def _answered(self, early: Early, done: bool) -> None:
        """The same, of a requester's: an answer, to the same subject, is word enough."""
        if done and not early.passed_on:
            self._in_hand.discard(early)
        else:
            self._ended(early, done)

    def _forget(self, early: Early) -> None:
        self._in_hand.discard(early)
        if self._early.get(early.id) is early:
            del self._early[early.id]
