"""Handing over: what a node of this host takes directly is stored only if it is not soon done.

A message has to be stored before who sends it lets go of it: a stage, which acks its own one then,
or a requester. A lane costs the server, and the nodes beside their computing, 0.3 ms of CPU a
message; and most are done within a few milliseconds. So a stage's ack waits for the next one's word
instead, a requester waits for its answer as it does anyway, and only what is refused or not done in
good time is stored.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Generic, NamedTuple, Protocol, TypeVar

from swarm.lanes import DONE, PASSED_ON
from swarm.link import Link, LinkMessage
from swarm.local.host_socket import LARGEST_MESSAGE, LIVING, HostSocket
from swarm.local.lending import Loan
from swarm.model import ModelInfo
from swarm.wire.tensors import Part

log = logging.getLogger("swarm.handover")

T = TypeVar("T")
Given = TypeVar("Given", contravariant=True)

# Seconds after which a message is stored: the usual time to the word and four times its usual
# deviation, or LEAST (RFC 6298, 2). It adds to the time of a failover, so MOST at most. A process
# that is killed has its sockets until its memory is freed, some ms, and its lane would give it the
# message again, for an ack_wait: with 1 ms, that happened in 10 of 24 kills, with 10 in none of 48.
LEAST, MOST = 0.010, 0.020
# While more than FEW are under way, and for BUSY_FOR seconds after, the time that a lone one takes
# means nothing: MANY seconds for all stages' runs, which is what a lane would wait (ack_wait).
FEW, MANY = 3, 0.060
BUSY_FOR = 0.1
# Times in a row that something had to be stored: it takes too long, for REST seconds all is stored
# at once. Of long runs, the first time; if its process lives, only for as long as that one was
# waited for, and twice as long each time that no word comes between. (One run in a hundred that
# took longer than usual had all of the next second stored.)
LATE, REST = 3, 1.0
# Seconds for which nothing more is handed over after a refusal: twice as long each time, until a
# word comes or nothing was refused for so long. Behind runs of 25 ms all that 5 ms spared was tried
# in vain again, at two datagrams and two turns of a loop a message.
REFUSED_FOR, REFUSED_MOST = 0.005, 0.320
# Messages at a time, and no more than are computed within AHEAD seconds: their words come in time.
HELD, AHEAD = 256, 0.025
# Runs of more than SHORT seconds are waited for twice as long as they take, for what is under way
# before too, and no more are handed over than this makes LONGEST seconds.
SHORT, LONGEST = 0.001, 2.0
# What was stored within the last REST seconds may be before it too, MOST_BEFORE seconds of runs
# at most. (Not waited for, one that was handed over behind eight in its lane was late, so that what
# came within REST was stored, and the next one was late again: it went on for seconds.)
MOST_BEFORE = 0.5
# Meanwhile a process that hangs would keep a queue. One that says nothing for as long as QUIET such
# runs, or SILENT seconds, is asked whether it lives: its loop answers, beside the longest run. If
# it does not in ANSWER seconds, all is stored. (Waiting for words alone, three runs for each stage
# behind, the longest gap around a stopped ResNet-50 stage was 0.12-0.27 s.)
QUIET, SILENT, ANSWER = 1.5, 0.020, 0.025
_NEVER = 0.0, 0.0
PAUSES = 64  # processes of which it is known that they refused; forgotten, it costs one refusal
# Seconds by which a look comes late when the loop was blocked: the words may be in the socket then,
# which is read after the timers. Once: a loop may be blocked again and again.
BLOCKED = 0.002


class Handed(NamedTuple, Generic[T]):
    """A message on its way to a process, whether the word comes to a subject of its own, since
    when, until when it is waited for (`time.monotonic()`), after how many seconds of silence that
    process is asked whether it lives, and the lane where it would be."""

    inbox: str
    own: bool
    since: float
    until: float
    quiet: float
    item: T
    lent: Loan
    subject: str


class Keeper(Protocol[Given]):
    """Who hands over, and keeps what it handed over until it is done."""

    def handed(self, item: Given) -> None:
        """It is on its way."""
        ...

    def done(self, item: Given, passed_on: bool) -> None:
        """It is safe: all is done, or it was passed on to a later lane."""
        ...

    def store(self, item: Given, lent: Loan, subject: str, late: bool) -> None:
        """It was refused, or is late, and may be done yet: put it into its lane."""
        ...

    def lost(self, item: Given) -> None:
        """One of the others raised."""
        ...


class Handovers(Generic[T]):
    """One stage's, to the next one; stage 0: a requester's.

    many: seconds after which what is handed over beside many others is stored. patience: the same
    for a lone one.
    """

    def __init__(
        self,
        link: Link,
        direct: HostSocket,
        keeper: Keeper[T],
        info: ModelInfo,
        stage: int,
    ) -> None:
        self._link = link
        self._direct = direct
        self._keeper = keeper
        # Whoever handed a message to this stage waits longer: for this stage to store it, if so.
        self.many = MANY * (1 - stage / (2 * max(1, info.last)))
        self._stages = info.last - stage  # behind this one: all have to be done for a word
        # An answer is no word of the first stage: a lone requester has it by then.
        self._quiet = QUIET if stage else QUIET + info.last - 1
        self._held: dict[str, Handed[T]] = {}  # by reply subject
        self._timer: asyncio.TimerHandle | None = None
        self._planned = 0.0  # the timer's time.monotonic()
        self._put_off = False
        self._usual = MOST  # seconds to the word
        self._deviation = 0.0
        self._late = 0
        self._late_at = 0.0
        self._busy_until = 0.0  # time.monotonic()
        self._long = False  # the runs
        # When the last ones were stored: they are before what is handed over now.
        self._stored: deque[float] = deque(maxlen=HELD)
        # While something is held, by process: its last word, and when it was asked whether it
        # lives (`time.monotonic()`, and where it answers).
        self._heard: dict[str, float] = {}
        self._asked: dict[str, tuple[float, str]] = {}
        # By process: until when it is given nothing (`time.monotonic()`), and how long that was.
        self._pauses: dict[str, tuple[float, float]] = {}
        direct.on_gone.append(self._gone)

    @property
    def patience(self) -> float:
        return min(MOST, self._usual + max(LEAST, 4 * self._deviation))

    def takes(self, inbox: str, usual: float) -> bool:
        """Whether `over` is to be tried, before a message is encoded for it. False: store it."""
        now = time.monotonic()
        if now >= self._pauses.get(inbox, _NEVER)[0] and len(self._held) < _most(usual):
            return True
        self._stored.append(now)
        return False

    def over(
        self,
        inbox: str,
        subject: str,
        parts: list[Part],
        item: T,
        lent: Loan,
        usual: float,
        reply: str = "",
    ) -> bool:
        """Hand a message over. False: store it. usual: seconds of a run of the stages behind.
        reply: where the caller waits for the word, and passes it on to `told`."""
        now = time.monotonic()
        if sum(map(len, parts)) > LARGEST_MESSAGE:
            self._stored.append(now)
            return False
        self._long = usual >= SHORT
        own = not reply
        if own:
            reply = self._link.expect(self._word)
        # A lone one goes first: behind a long run, with cold caches, the rest takes 0.03 ms.
        together = self._link.bursting
        if not together and not self._direct.send(inbox, subject, parts, reply):
            if own:
                self._link.forget(reply)
            self._pause(inbox, now, REFUSED_FOR, REFUSED_MOST)
            self._stored.append(now)
            return False
        lent.keep()
        self._keeper.handed(item)
        quiet = inf
        if self._long:
            before = min(MOST_BEFORE, usual * self._before(now))
            until = now + LEAST + 2 * (usual * (len(self._held) + self._stages) + before)
            quiet = max(SILENT, self._quiet * usual)
        else:
            if len(self._held) >= FEW or together:
                self._busy_until = now + BUSY_FOR
            until = now + (self.many if now < self._busy_until else self.patience)
        handed = self._held[reply] = Handed(inbox, own, now, until, quiet, item, lent, subject)
        due = self._due(handed)
        if self._timer is None or due < self._planned:
            self._wait(due)
        if together:
            self._direct.post(inbox, subject, parts, partial(self._posted, reply), reply)
        return True

    def _posted(self, reply: str, sent: bool) -> None:
        if not sent and (handed := self._take(reply)) is not None:
            self._turned_down(handed, time.monotonic())

    def _pause(self, inbox: str, now: float, seconds: float, most: float) -> None:
        """Hand nothing more to that process for some time: `seconds`, or if the last time was less
        than `most` ago twice as long as then, up to `most`."""
        until, before = self._pauses.get(inbox, _NEVER)
        if now >= until:  # else together with the one before
            again = now - until < most
            self._rest(inbox, now, min(most, max(seconds, 2 * before if again else 0.0)))

    def _rest(self, inbox: str, now: float, seconds: float = REST) -> None:
        if len(self._pauses) >= PAUSES:
            self._pauses.clear()
        self._pauses[inbox] = (now + seconds, seconds)

    def _word(self, message: LinkMessage) -> None:
        self.told(message.subject, message.data)

    def told(self, reply: str, word: Part) -> None:
        """What became of a message; of one that is not waited for any more, nothing."""
        if (handed := self._take(reply)) is None:
            return
        now = time.monotonic()
        if self._held and (self._long or self._asked):
            self._lives(handed.inbox, now)
            if self._planned - now < handed.quiet / 2:
                # Not to look in vain: a look of its own is a turn of the loop beside a run.
                due = min(map(self._due, self._held.values()))
                if due > self._planned:
                    self._put_off = False
                    self._wait(due)
        if word not in (DONE, PASSED_ON):
            self._turned_down(handed, now)
        else:
            self._in_time(handed, now)
            handed.lent.unread()
            handed.lent.take_back()
            self._end(handed, partial(self._keeper.done, handed.item, word == PASSED_ON))

    def answered(self, reply: str) -> None:
        """It is done, as the answer of the last stage says: no word of the next one, which may hang
        since."""
        if (handed := self._take(reply)) is not None:
            self._in_time(handed, time.monotonic())

    def _in_time(self, handed: Handed[T], now: float) -> None:
        self._late = 0
        if handed.inbox in self._pauses and now >= self._pauses[handed.inbox][0]:
            del self._pauses[handed.inbox]
        if now >= self._busy_until:
            off = now - handed.since - self._usual
            self._deviation += (abs(off) - self._deviation) / 4
            self._usual += off / 8

    def _turned_down(self, handed: Handed[T], now: float) -> None:
        handed.lent.unread()
        self._pause(handed.inbox, now, REFUSED_FOR, REFUSED_MOST)
        self._store(handed, late=False)

    def _gone(self, inbox: str) -> None:
        """That process has ended: what it was handed goes elsewhere at once."""
        for reply in [reply for reply, handed in self._held.items() if handed.inbox == inbox]:
            self._posted(reply, False)

    def drop(self, reply: str) -> None:
        """Nobody waits for it any more. What was lent for it stays so."""
        self._take(reply)

    def _take(self, reply: str) -> Handed[T] | None:
        handed = self._held.pop(reply, None)
        if handed is not None and handed.own:
            self._link.forget(reply)
        if not self._held:
            if self._long and self._timer is not None:
                # A look for nothing would be a turn of the loop beside somebody's run.
                self._timer.cancel()
                self._timer, self._put_off = None, False
            if self._heard or self._asked:
                self._heard.clear()
                for inbox in list(self._asked):
                    self._forget_asked(inbox)
        return handed

    def _lives(self, inbox: str, now: float) -> None:
        self._heard[inbox] = now
        self._forget_asked(inbox)

    def _forget_asked(self, inbox: str) -> None:
        if (asked := self._asked.pop(inbox, None)) is not None:
            self._link.forget(asked[1])

    def _ask(self, inbox: str, now: float) -> None:
        """Whether it lives: any answer says so."""
        reply = self._link.expect(lambda _: self._lives(inbox, time.monotonic()))
        self._asked[inbox] = now, reply
        self._direct.send(inbox, LIVING, [], reply)  # one that is gone, or full, does not answer

    def _pause_late(self, handed: Handed[T], now: float) -> None:
        if self._long and handed.inbox not in self._asked:
            self._pause(handed.inbox, now, handed.until - handed.since, REST)
        else:
            self._rest(handed.inbox, now)

    def _before(self, now: float) -> int:
        """Messages that were stored, and may be before what is handed over."""
        while self._stored and self._stored[0] < now - REST:
            self._stored.popleft()
        return len(self._stored)

    def _store(self, handed: Handed[T], late: bool) -> None:
        self._stored.append(time.monotonic())
        self._end(
            handed, partial(self._keeper.store, handed.item, handed.lent, handed.subject, late)
        )

    def _end(self, handed: Handed[T], end: Callable[[], None]) -> None:
        """Never raises: nobody else would settle it, or the others."""
        try:
            end()
        except Exception:
            self._link.callback_errors += 1
            log.exception("what was handed over could not be passed on: it goes back")
            self._keeper.lost(handed.item)

    def _give_up(self, reply: str) -> None:
        if (handed := self._take(reply)) is not None:
            self._store(handed, late=True)

    def _due(self, handed: Handed[T]) -> float:
        """When it is stored, or its process is asked."""
        if asked := self._asked.get(handed.inbox):
            return min(handed.until, asked[0] + ANSWER)
        return min(handed.until, self._silent(handed))

    def _silent(self, handed: Handed[T]) -> float:
        """Since when its process has said nothing for too long."""
        return max(handed.since, self._heard.get(handed.inbox, 0.0)) + handed.quiet

    def _wait(self, until: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._planned = until
        seconds = max(0.001, until - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        """Store what nobody has said to be done."""
        self._timer = None
        now = time.monotonic()
        self._put_off = now - self._planned > BLOCKED and not self._put_off
        if self._put_off:
            self._wait(now)
            return
        silent = {handed.inbox for handed in self._held.values() if self._silent(handed) <= now}
        for inbox in silent - self._asked.keys():
            self._ask(inbox, now)
        due = [reply for reply, handed in self._held.items() if self._due(handed) <= now]
        if any(self._held[reply].since > self._late_at for reply in due):
            self._late += 1  # as one, what was under way at once
            self._late_at = now
        if self._late >= (1 if self._long else LATE):
            self._late = 0
            self._usual = min(MOST, 2 * self._usual)  # it may take longer now
            late = [self._held[reply] for reply in due]
            for handed in sorted(late, key=lambda handed: handed.since - handed.until):
                self._pause_late(handed, now)  # of each process the one that was waited for longest
        for inbox in [inbox for inbox, (at, _) in self._asked.items() if at + ANSWER <= now]:
            self._forget_asked(inbox)
            self._rest(inbox, now)
        for reply in due:
            self._give_up(reply)
        if self._held:
            self._wait(min(map(self._due, self._held.values())))

    def close(self) -> None:
        """Store what is left."""
        self._direct.on_gone.remove(self._gone)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for reply in list(self._held):
            self._give_up(reply)


def _most(usual: float) -> int:
    """How many runs of `usual` seconds are handed over at a time."""
    worth = AHEAD if usual < SHORT else LONGEST / 2
    return int(min(HELD, worth / max(usual, 1e-6)))
