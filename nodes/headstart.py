"""Head starts: messages that come from this host while the server still stores them.

The lane's copy is what counts: it is acked when the work is done, and it is worked on like any
other whatever becomes of the early one. They are matched by their bytes, or by the message's id:
where the stage before was computed twice, two copies differ in their hops.
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

KEPT = 32  # early messages whose copies have not come
RECENT = 32  # messages that lanes handed out last
# Nanoseconds; one that lay longer in the socket of a process that was stopped, say, may be
# another node's by now.
STALE = 50_000_000
# Nanoseconds; the server remembers ids for as long (`LaneOptions.duplicates`).
FORGOTTEN = 30_000_000_000


class HeadStarts:
    """One stage's. busy(): a run could not begin at once, or must not. accept(job) begins it."""

    def __init__(
        self,
        out: Outbox,
        claims: Claims | None,
        busy: Callable[[], bool],
        accept: Callable[[Job], None],
    ) -> None:
        self._out = out
        self._claims = claims
        self._busy = busy
        self._accept = accept
        self._early: dict[str, Early] = {}  # by message id
        self._by_bytes: dict[bytes, Early] = {}
        self._handed_out: deque[tuple[int, str]] = deque(maxlen=RECENT)  # ns, message id

    def came(self, data: bytes, sent: int) -> None:
        """A message came directly; `sent`, as all times here, in ns of `time.monotonic_ns`. Without
        a word it is left to its lane whenever anything speaks against it."""
        now = time.monotonic_ns()
        if now - sent > STALE or self._busy() or not self._room():
            return
        try:
            job = self._job(data, sent, now)
        except (DecodeError, ShmError):
            return
        if job is None:
            return
        self._out.stats.counters.head_starts += 1
        try:
            self._accept(job)
        except Exception:
            job.delivery.withdraw()  # its copy would join what nobody works on
            raise

    def same(self, copy: Delivery) -> bool:
        """Whether a lane's message is in hand, or done, already, byte by byte: the usual case, for
        which it need not be decoded (0.06 ms behind a long run)."""
        if not self._early or type(copy.data) is not bytes or len(copy.data) > LARGEST:
            return False
        early = self._by_bytes.get(copy.data)
        return early is not None and self._join(early, copy)

    def joined(self, copy: Delivery, features: Features) -> bool:
        """The same, by its id."""
        early = self._early.get(features.message_id)
        if early is not None and self._join(early, copy):
            # Of the other run of the stage before. What is not settled may be handed out again.
            if copy.settled and self._claims is not None:
                self._claims.give_back(features.tensors)
            return True
        self._handed_out.append((copy.received, features.message_id))
        return False

    def _join(self, early: Early, copy: Delivery) -> bool:
        self._withdrawn(early)
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

    def _job(self, data: bytes, sent: int, now: int) -> Job | None:
        """None for what is in hand already. Raises `DecodeError`, `ShmError`."""
        features = Features.decode(data)
        if not self._out.serves(features):
            raise DecodeError("sent for another stage")
        message_id = features.message_id
        if message_id in self._early or self._overtaken(message_id, sent):
            return None
        early = Early(message_id, data, sent, now, self._withdrawn)
        job = Job.of(early, features)
        if any(type(value) is Claimed for value in features.tensors.values()):
            if self._claims is None:
                raise DecodeError("this node has no shared memory")
            job.opened = early.opened = self._claims.open(features.tensors)
        self._early[message_id] = self._by_bytes[data] = early
        return job

    def _overtaken(self, message_id: str, sent: int) -> bool:
        """Whether the copy came first (it may even be done), as far as that is known."""
        recent = self._handed_out
        unknown = len(recent) == RECENT and recent[0][0] >= sent
        return unknown or any(known == message_id for _, known in recent)

    def _room(self) -> bool:
        """Where there is none, one that is done but whose copy has not come makes it for the next:
        that copy went elsewhere."""
        if len(self._early) < KEPT:
            return True
        oldest = next(iter(self._early.values()))
        if oldest.settled or time.monotonic_ns() - oldest.received > FORGOTTEN:
            self._withdrawn(oldest)
        return False

    def _withdrawn(self, early: Early) -> None:
        if self._early.get(early.id) is early:
            del self._early[early.id]
            self._by_bytes.pop(early.data, None)
