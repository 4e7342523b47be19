"""Handing over: what a node of this host takes directly is stored only if it is not soon done.

A message has to be stored before its stage's own one is acked, so that one of the two is always in
a lane. A lane costs the server, and the nodes beside their computing, 0.3 ms of CPU a message; and
most are done within a few milliseconds. So this stage's ack waits for the next one's word instead,
and only what is refused or not done in good time is stored.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from nodes.job import Job
from swarm.claims import Lent
from swarm.direct import Direct
from swarm.lanes import DONE
from swarm.link import Link, LinkMessage
from swarm.tensors import Part

log = logging.getLogger("swarm.stage")

# Seconds after which a message is stored: half as long again as the rest of the pipeline takes,
# and LEAST more. It adds to the time of a failover, so MOST at most.
LEAST, MOST = 0.001, 0.020
LATE = 3  # in a row that had to be stored: what follows takes too long, and for REST seconds ...
REST = 1.0  # ... all is stored at once
REFUSED_FOR = 0.005  # seconds for which nothing more is handed over after a refusal
# With more than FEW at a time the lanes' bursts cost less than words one by one: for BUSY_FOR
# seconds they are left to them. With 2, 4, 8 and 16 in flight all handed over, tiny stages had 40,
# 12, -12 and -14 % more requests a second.
FEW = 3
BUSY_FOR = 0.1
# Seconds by which a look comes late when the loop was blocked: the words may be in the socket then,
# which is read after the timers. Once: a loop may be blocked again and again.
BLOCKED = 0.002


class Handed(NamedTuple):
    """A result on its way: since when (`time.monotonic()`), and the lane where it would be."""

    since: float
    job: Job
    lent: Lent
    subject: str


class Handovers:
    """One stage's. store(job, lent, subject) puts a result into its lane; finish(job): it is safe.

    patience: seconds after which what was handed over is stored.
    """

    def __init__(
        self,
        link: Link,
        direct: Direct,
        store: Callable[[Job, Lent, str], None],
        finish: Callable[[Job], None],
    ) -> None:
        self._link = link
        self._direct = direct
        self._store = store
        self._finish = finish
        self._held: dict[str, Handed] = {}  # by reply subject, in the order of time
        self._timer: asyncio.TimerHandle | None = None
        self._planned = 0.0  # the timer's time.monotonic()
        self._put_off = False
        self._usual = MOST  # seconds to the word
        self._late = 0
        self._not_before = 0.0  # time.monotonic()

    @property
    def patience(self) -> float:
        return min(MOST, LEAST + 1.5 * self._usual)

    def over(self, inbox: str, subject: str, parts: list[Part], job: Job, lent: Lent) -> bool:
        """Hand a message over. False: store it."""
        now = time.monotonic()
        if now < self._not_before:
            return False
        if len(self._held) >= FEW or job.delivery.blocking:
            self._pause(now + BUSY_FOR)
            return False
        reply = self._link.expect(self._told)
        if not self._direct.send(inbox, subject, parts, reply):
            self._link.forget(reply)
            return False
        lent.keep()
        job.delivery.worked()
        self._held[reply] = Handed(now, job, lent, subject)
        if self._timer is None:
            self._wait(now, self.patience)
        return True

    def _pause(self, until: float) -> None:
        self._not_before = max(self._not_before, until)

    def _told(self, message: LinkMessage) -> None:
        handed = self._take(message.subject)
        if handed is None:
            return
        now = time.monotonic()
        handed.lent.unread()
        if message.data == DONE:
            self._usual += (now - handed.since - self._usual) / 8
            self._late = 0
            handed.lent.take_back()
            self._end(handed, done=True)
        else:
            self._pause(now + REFUSED_FOR)
            self._end(handed, done=False)

    def _take(self, reply: str) -> Handed | None:
        self._link.forget(reply)
        return self._held.pop(reply, None)

    def _end(self, handed: Handed, done: bool) -> None:
        """Never raises: nobody else would settle the job, or the others."""
        try:
            if done:
                self._finish(handed.job)
            else:
                self._store(handed.job, handed.lent, handed.subject)
        except Exception:
            self._link.callback_errors += 1
            log.exception("what was handed over could not be passed on: it goes back")
            handed.job.delivery.nak()

    def _give_up(self, reply: str) -> None:
        if (handed := self._take(reply)) is not None:
            self._end(handed, done=False)

    def _wait(self, now: float, seconds: float) -> None:
        self._planned = now + seconds
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        """Store what nobody has said to be done."""
        self._timer = None
        now, patience = time.monotonic(), self.patience
        self._put_off = now - self._planned > BLOCKED and not self._put_off
        if self._put_off:
            self._wait(now, 0.001)
            return
        due = [reply for reply, handed in self._held.items() if now - handed.since >= patience]
        for reply in due:
            self._late += 1
            if self._late == LATE:
                self._late = 0
                self._usual = min(MOST, 2 * self._usual)  # it may take longer now
                self._pause(now + REST)
            self._give_up(reply)
        if self._held:
            oldest = next(iter(self._held.values()))
            self._wait(now, max(0.001, oldest.since + patience - now))

    def close(self) -> None:
        """Store what is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for reply in list(self._held):
            self._give_up(reply)
