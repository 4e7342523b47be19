"""What comes from this host's processes and not from the lane: head starts, what is handed over.

A head start is stored beside it: the lane's copy is what counts. It is acked when the work is done,
and it is worked on like any other whatever becomes of the early one. What is handed over is stored
only if its sender is told that it was refused, or nothing for a while (`nodes.handover`). The two
copies are matched by their bytes, or by the message's id: what is stored later has less budget, and
where the stage before was computed twice, they differ in their hops.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from nodes.job import Job
from nodes.outbox import Outbox
from swarm.claims import Claims
from swarm.direct import LARGEST
from swarm.errors import DecodeError
from swarm.lanes import Delivery, Early
from swarm.messages import Features
from swarm.shm import ShmError
from swarm.tensors import Claimed

KEPT = 512  # early messages whose copies may still come
RECENT = 32  # messages that lanes handed out last
# Nanoseconds; one that lay longer in the socket of a process that was stopped, say, may be
# another node's by now.
STALE = 50_000_000
# Nanoseconds; the server remembers ids for as long (`LaneOptions.duplicates`).
FORGOTTEN = 30_000_000_000


class HeadStarts:
    """One stage's. busy(handed): what comes now cannot be taken, or must not; `handed` if it was
    handed over. accept(job) begins its run."""

    def __init__(
        self,
        out: Outbox,
        claims: Claims | None,
        busy: Callable[[bool], bool],
        accept: Callable[[Job], None],
    ) -> None:
        self._out = out
        self._claims = claims
        self._busy = busy
        self._accept = accept
        self._early: dict[str, Early] = {}  # by message id
        self._by_bytes: dict[bytes, Early] = {}
        self._in_hand: set[Early] = set()  # worked on; no copy has come
        self._handed_out: deque[tuple[int, str]] = deque(maxlen=RECENT)  # ns, message id

    def __len__(self) -> int:
        """Messages that are worked on and of which no lane has handed out a copy."""
        return len(self._in_hand)

    def came(self, data: bytes, sent: int, reply: str = "") -> None:
        """A message came directly; `sent`, as all times here, in ns of `time.monotonic_ns`; who
        sent it waits for a word at `reply`. It is left to its lane whenever anything speaks against
        it."""
        job = self._take(data, sent, reply)
        if job is None:
            self._out.tell(reply, done=False)
            return
        self._out.stats.counters.head_starts += 1
        try:
            self._accept(job)
        except Exception:
            job.delivery.withdraw()  # its copy would join what nobody works on
            raise

    def _take(self, data: bytes, sent: int, reply: str) -> Job | None:
        now = time.monotonic_ns()
        if now - sent > STALE or self._busy(reply != "") or not self._room():
            return None
        try:
            return self._job(data, sent, now, reply)
        except (DecodeError, ShmError):
            return None

    def same(self, copy: Delivery) -> bool:
        """Whether a lane's message is in hand, or done, already, byte by byte: after a head
        start it is, as a rule, and need not be decoded (0.06 ms behind a long run)."""
        if not self._by_bytes or type(copy.data) is not bytes or len(copy.data) > LARGEST:
            return False
        early = self._by_bytes.get(copy.data)
        return early is not None and self._join(early, copy)

    def joined(self, copy: Delivery, features: Features) -> bool:
        """The same, by its id: of what was handed over, or of another run of the stage before."""
        early = self._early.get(features.message_id)
        if early is not None and self._join(early, copy):
            # What is not settled may be handed out again.
            if copy.settled and self._claims is not None:
                self._claims.give_back(features.tensors, but=early.opened)
            return True
        self._handed_out.append((copy.received, features.message_id))
        return False

    def _join(self, early: Early, copy: Delivery) -> bool:
        self._forget(early)
        if copy.received - early.received > FORGOTTEN:
            return False
        self._handed_out.append((copy.received, early.id))
        if early.join(copy) and self._claims is not None:
            self._claims.done(list(early.opened))
        return True

    def clear(self) -> None:
        """The lanes' copies will be handed out anew, or to others."""
        self._early.clear()
        self._by_bytes.clear()

    def give_back(self) -> None:
        """All that is worked on is to be worked on elsewhere."""
        for early in list(self._in_hand):
            early.nak()
        self.clear()

    def _job(self, data: bytes, sent: int, now: int, reply: str) -> Job | None:
        """None for what is in hand already. Raises `DecodeError`, `ShmError`."""
        features = Features.decode(data)
        if not self._out.serves(features):
            raise DecodeError("sent for another stage")
        message_id = features.message_id
        if message_id in self._early or self._overtaken(message_id, sent, reply):
            return None
        # What is stored later has another budget, and so other bytes.
        early = Early(message_id, b"" if reply else data, sent, now, self._ended, reply)
        job = Job.of(early, features)
        if any(type(value) is Claimed for value in features.tensors.values()):
            if self._claims is None:
                raise DecodeError("this node has no shared memory")
            job.opened = early.opened = self._claims.open(features.tensors)
        self._early[message_id] = early
        if not reply:
            self._by_bytes[data] = early
        self._in_hand.add(early)
        return job

    def _overtaken(self, message_id: str, sent: int, reply: str) -> bool:
        """Whether the copy came first (it may even be done), as far as that is known."""
        recent = self._handed_out
        unknown = not reply and len(recent) == RECENT and recent[0][0] >= sent
        return unknown or any(known == message_id for _, known in recent)

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
        self._out.tell(early.reply, done, early.published)

    def _forget(self, early: Early) -> None:
        self._in_hand.discard(early)
        if self._early.get(early.id) is early:
            del self._early[early.id]
            self._by_bytes.pop(early.data, None)
