"""When to hand over, when to take over, and when to store after all: decisions without a clock, a
socket or a timer.

A parcel that is handed over is *held*: the next process works on it, its sender keeps it. It ends
by

- a word of that process (`ended`), or the request's answer;
- the end of that process (`gone`);
- a *look* at the time `due`, which finds that the process hangs or that the parcel is late.

Runs are long or short, processes many or few: so the patience for a word follows the length of a
run and the number of runs before it. A process that says nothing for longer than a run should take
is *asked whether it lives*: its event loop answers, beside the longest run.

All times are seconds of `time.monotonic()`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from swarm.flow.backoff import Backoff
from swarm.flow.latency import Usual
from swarm.transport.api import Admission, Backlog

# Seconds of patience beside the runs. A killed process keeps its sockets until its memory is freed,
# and its lane would give it the message again, for an ack_wait. Measured: with 1 ms that happened
# in 10 of 24 kills, with 10 ms in none of 48.
LEAST_PATIENCE = 0.010
# Seconds of patience at most.
MOST_PATIENCE = 2.0
# A short run's word takes as long as event loops wait for a processor: its usual time and
# USUAL_DEVIATIONS of its usual deviation, as of a retransmission timer (RFC 6298, 2), up to
# MOST_FOR_SHORT seconds. Measured on a loaded machine: without it a fifth of all parcels is stored.
USUAL_DEVIATIONS = 4
MOST_FOR_SHORT = 0.020
# Late parcels in a row, those at one look counting once, after which their processes are given a
# pause. Measured with 16 in flight on a loaded machine: with 1, 15 % are stored, with 3, 1.5 %.
LATE_IN_A_ROW = 3
# Beside more held parcels than CROWD, and CROWDED_FOR seconds after, event loops wait for each
# other: CROWDED_PATIENCE seconds for the runs of all stages, as long as a lane would wait
# (ack_wait).
CROWD = 3
CROWDED_FOR = 0.1
CROWDED_PATIENCE = 0.060
# Parcels held at a time, and seconds of runs that they stand for.
MOST_HELD = 256
MOST_WORK_HELD = 1.0
# A process is asked whether it lives after a silence of so many runs, and at least so many seconds;
# it has ANSWER_WITHIN seconds. Measured around a stopped ResNet-50 stage: without the question the
# longest gap was 0.12-0.27 s.
SILENT_RUNS = 1.5
SILENT_LEAST = 0.020
ANSWER_WITHIN = 0.025
# Seconds for which nothing more is handed over after a refusal, doubled by each refusal that
# follows. Measured with runs of 25 ms: 5 ms spared nothing, since the process was as busy as
# before.
REFUSED_PAUSE = 0.005
REFUSED_PAUSE_MOST = 0.320
# Seconds for which nothing is handed over to a process that hangs; also the longest pause after a
# late parcel, and the age up to which stored messages are counted as being before the next one.
HANG_PAUSE = 1.0

# Parcels in hand and messages in the lanes, and seconds of work that waits here or there, up to
# which a stage takes more from this host. (Each sender hands over a second of work at most, but
# there may be many.)
MOST_AT_HAND = 256
MOST_WORK_AT_HAND = 1.0
# Seconds of work in the lanes that a parcel may overtake.
MOST_OVERTAKEN = 0.002


def admit(backlog: Backlog, parcels: int, in_lanes: int) -> Admission:
    """Whether a stage takes one more parcel. It may wait there, but not overtake the messages of a
    lane, which are asked for first.

    parcels: messages in hand that processes of this host handed over. in_lanes: messages that wait
    in the stage's lanes."""
    if backlog.closed or parcels + in_lanes >= MOST_AT_HAND:
        return Admission.REFUSED
    in_lanes_s = in_lanes * backlog.run
    if backlog.waiting * backlog.run + in_lanes_s > MOST_WORK_AT_HAND:
        return Admission.REFUSED
    return Admission.BEHIND_LANES if in_lanes_s > MOST_OVERTAKEN else Admission.ADMITTED


@dataclass(slots=True)
class _Peer:
    """A process of this host that is, or was, handed something."""

    held: int = 0
    heard: float = -inf  # its last word
    asked: float = -inf  # since when an answer is due; -inf: no question is open
    paused_until: float = -inf
    refusals: Backoff = field(default_factory=lambda: Backoff(REFUSED_PAUSE, REFUSED_PAUSE_MOST))


class _Kept(NamedTuple):
    """One held parcel: to whom, since when, until when, and after which silence to ask."""

    peer: str
    since: float
    until: float
    quiet: float


class Look(NamedTuple):
    """The outcome of a look: whom to ask whether it lives, and which parcels to store, by key."""

    ask: tuple[str, ...]
    store: tuple[str, ...]


class HandoverPolicy:
    """One sender's parcels for the stage behind `stage` (0: a requester's) of `last` stages."""

    def __init__(self, stage: int, last: int) -> None:
        self._stages_behind = last - stage
        # The stage before waits longer than this one: for this one to store the parcel, if need be.
        self._crowded_patience = CROWDED_PATIENCE * (1 - stage / (2 * max(1, last)))
        # A requester hears nothing of the first stage but the answer of the last one.
        self._silent_runs = SILENT_RUNS if stage else SILENT_RUNS + last - 1
        self._kept: dict[str, _Kept] = {}
        self._peers: dict[str, _Peer] = {}
        self._crowded_until = -inf
        self._word = Usual(MOST_FOR_SHORT)  # the time from handing over to the word
        self._late = 0  # in a row
        self._late_at = -inf
        self._stored: deque[float] = deque(maxlen=MOST_HELD)
        self._closed = False

    # --- questions --------------------------------------------------------------------

    @property
    def held(self) -> int:
        """Parcels that are held."""
        return len(self._kept)

    def accepts(self, peer: str, run: float, now: float) -> bool:
        """Whether one more parcel may be handed to that process; run: usual seconds of a run."""
        if self._closed or len(self._kept) >= MOST_HELD or len(self._kept) * run >= MOST_WORK_HELD:
            return False
        known = self._peers.get(peer)
        return known is None or now >= known.paused_until

    def due(self, key: str) -> float:
        """When the parcel is to be looked at."""
        kept = self._kept[key]
        peer = self._peers[kept.peer]
        if peer.asked > -inf:
            return min(kept.until, peer.asked + ANSWER_WITHIN)
        return min(kept.until, self._silent_at(kept, peer))

    @property
    def next_due(self) -> float:
        """When the next look is due; `inf` while nothing is held."""
        return min(map(self.due, self._kept), default=inf)

    def is_due(self, now: float) -> bool:
        """Whether a look would find anything to do."""
        return any(self.due(key) <= now for key in self._kept)

    # --- events -----------------------------------------------------------------------

    def handed(self, key: str, peer: str, run: float, now: float, together: bool) -> float:
        """A parcel was handed over. together: with others, in one burst. The time at which it is to
        be looked at."""
        before = self._stored_lately(now) if self._stored else 0
        runs = len(self._kept) + self._stages_behind + before
        usual = self._word.ewma + max(LEAST_PATIENCE, USUAL_DEVIATIONS * self._word.deviation)
        patience = max(LEAST_PATIENCE + 2 * run * runs, min(MOST_FOR_SHORT, usual))
        if together or len(self._kept) >= CROWD:
            self._crowded_until = now + CROWDED_FOR
        if now < self._crowded_until:
            patience = max(patience, self._crowded_patience)
        # A parcel that is given up as soon as that anyway is not asked for. On a loaded machine
        # many event loops are silent for longer than a short run, and live.
        asked = patience > self._crowded_patience
        quiet = max(SILENT_LEAST, self._silent_runs * run) if asked else inf
        until = now + min(MOST_PATIENCE, patience)
        self._kept[key] = _Kept(peer, now, until, quiet)
        known = self._peers.get(peer) or self._new_peer(peer, now)
        known.held += 1
        return until if known.asked > -inf else min(until, now + quiet)

    def stored(self, now: float) -> None:
        """A parcel went to the lane instead: it is before the next one."""
        self._stored.append(now)

    def ended(self, key: str, now: float) -> None:
        """The parcel's process says that all is done: it lives, and takes more."""
        if (taken := self._take(key)) is not None:
            kept, peer = taken
            peer.heard, peer.asked = now, -inf
            self._in_time(kept, peer, now)

    def answered(self, key: str, now: float) -> None:
        """The request's answer came. It does not say that the process that had the parcel lives: it
        may hang since."""
        if (taken := self._take(key)) is not None:
            self._in_time(*taken, now)

    def refused(self, key: str, now: float) -> None:
        """The parcel's process does not take it, or gives it up."""
        if (taken := self._take(key)) is not None:
            peer = taken[1]
            peer.heard, peer.asked = now, -inf
            self._stored.append(now)
            self._pause_refused(peer, now)

    def unreachable(self, peer: str, now: float) -> None:
        """Nothing could be sent to that process: its socket is full, or there is none."""
        self._stored.append(now)
        known = self._peers.get(peer) or self._new_peer(peer, now)
        self._pause_refused(known, now)

    def lives(self, peer: str, now: float) -> None:
        """That process answered the question whether it lives."""
        known = self._peers.get(peer)
        if known is not None:
            known.heard, known.asked = now, -inf

    def gone(self, peer: str, now: float) -> tuple[str, ...]:
        """That process has ended: the parcels that it held, to be stored at once."""
        keys = tuple(key for key, kept in self._kept.items() if kept.peer == peer)
        for key in keys:
            del self._kept[key]
            self._stored.append(now)
        self._peers.pop(peer, None)
        return keys

    def dropped(self, key: str) -> None:
        """Nobody waits for the parcel any more."""
        self._take(key)

    def look(self, now: float) -> Look:
        """Ask the silent, and give up what is late or with a process that hangs."""
        asked = {name: peer.asked for name, peer in self._peers.items() if peer.asked > -inf}
        # Also one whose silent parcels have ended since: it was asked, and has said nothing.
        hanging = {name for name, at in asked.items() if at + ANSWER_WITHIN <= now}
        silent = {
            kept.peer
            for kept in self._kept.values()
            if self._silent_at(kept, self._peers[kept.peer]) <= now
        }
        ask = tuple(silent - asked.keys())
        for name in ask:
            self._peers[name].asked = now
        given_up = tuple(
            key for key, kept in self._kept.items() if kept.until <= now or kept.peer in hanging
        )
        if any(self._kept[key].since > self._late_at for key in given_up):
            self._late += 1
            self._late_at = now
        for key in given_up:
            self._give_up(key, hanging, now)
        if self._late >= LATE_IN_A_ROW:
            self._late = 0
            if self._word.ewma < MOST_FOR_SHORT:
                self._word.add(2 * self._word.ewma)  # the word may take longer now
        return Look(ask, given_up)

    def close(self) -> tuple[str, ...]:
        """Nothing is handed over any more: the parcels that are held, to be stored."""
        keys = tuple(self._kept)
        self._closed = True
        self._kept.clear()
        self._peers.clear()
        return keys

    # --- within -----------------------------------------------------------------------

    def _new_peer(self, name: str, now: float) -> _Peer:
        # A process has a new name at each start: those that ended must not add up.
        remembered = now - HANG_PAUSE
        self._peers = {
            n: p for n, p in self._peers.items() if p.held or p.paused_until > remembered
        }
        peer = self._peers[name] = _Peer()
        return peer

    def _take(self, key: str) -> tuple[_Kept, _Peer] | None:
        kept = self._kept.pop(key, None)
        if kept is None:
            return None
        peer = self._peers[kept.peer]
        peer.held -= 1
        if not peer.held:
            peer.asked = -inf
        return kept, peer

    def _give_up(self, key: str, hanging: set[str], now: float) -> None:
        peer = self._peers[self._kept[key].peer]
        asked = peer.asked
        taken = self._take(key)
        assert taken is not None
        kept = taken[0]
        self._stored.append(now)
        if kept.peer in hanging:
            peer.paused_until = max(peer.paused_until, now + HANG_PAUSE)
            peer.asked = -inf
            return
        if self._late < LATE_IN_A_ROW:
            return
        # One long run in a hundred takes longer than usual. Where the process was heard meanwhile,
        # the pause is as long as the parcel was waited for: the next second of parcels need not be
        # stored for it. Late short runs mean that event loops wait for a processor.
        lives = asked == -inf and kept.quiet < inf
        pause = min(HANG_PAUSE, kept.until - kept.since) if lives else HANG_PAUSE
        peer.paused_until = max(peer.paused_until, now + pause)

    def _in_time(self, kept: _Kept, peer: _Peer, now: float) -> None:
        self._late = 0
        if now >= self._crowded_until:
            self._word.add(now - kept.since)
        if peer.paused_until > -inf and now >= peer.paused_until:
            peer.refusals.reset()

    def _silent_at(self, kept: _Kept, peer: _Peer) -> float:
        return max(kept.since, peer.heard) + kept.quiet

    def _pause_refused(self, peer: _Peer, now: float) -> None:
        if now < peer.paused_until:
            return  # together with the one before
        if now - peer.paused_until >= REFUSED_PAUSE_MOST:
            peer.refusals.reset()
        peer.paused_until = now + peer.refusals.next()

    def _stored_lately(self, now: float) -> int:
        while self._stored and self._stored[0] < now - HANG_PAUSE:
            self._stored.popleft()
        return len(self._stored)
