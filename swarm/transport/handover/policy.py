"""When to hand over, when to take over, and when to store after all: decisions without a clock, a
socket or a timer.

A parcel that is handed over is *in flight*: the next process works on it, its sender keeps it. It
ends by

- that process's ack (`acked`) or nak (`refused`), or the request's answer;
- the end of that process (`gone`);
- a *check* at the time `due`, which finds that the process hangs or that the parcel is late.

Runs are long or short, processes many or few: so the patience for an ack follows the length of a
run and the number of runs before it. Where runs are long, a process that says nothing for longer
than one is *asked whether it lives*: its event loop answers, beside the run. Where they are short
nobody is asked, since the patience ends as soon.

All times are seconds of `time.monotonic()`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from swarm.flow.backoff import Backoff
from swarm.flow.latency import Usual
from swarm.transport.api import Admission, Backlog


@dataclass(frozen=True, slots=True)
class HandoverConfig:
    """How long senders wait for acks, and how much they hand over. Times in seconds."""

    least_patience: float = 0.010
    """Patience beside the runs. A killed process keeps its sockets until its memory is freed, and
    its lane would give it the message again, for an ack_wait. Measured: with 1 ms that happened in
    10 of 24 kills, with 10 ms in none of 48."""

    most_patience: float = 2.0
    """The longest patience."""

    usual_deviations: float = 4.0
    """A short run's ack takes as long as event loops wait for a processor: its usual time and so
    many of its usual deviations, as of a retransmission timer (RFC 6298, 2) …"""

    most_for_short: float = 0.020
    """… up to so long. Measured on a loaded machine: without it a fifth of parcels is stored."""

    late_in_a_row: int = 3
    """Late parcels in a row, those at one check counting once, after which their processes are
    given a pause. Measured with 16 in flight on a loaded machine: with 1, 15 % are stored, with 3,
    1.5 %."""

    crowd: int = 3
    """Parcels in flight above which event loops wait for each other …"""

    crowded_for: float = 0.1
    """… also for so long after …"""

    crowded_patience: float = 0.060
    """… with this patience for the runs of all stages: as long as a lane would wait (ack_wait)."""

    most_in_flight: int = 256
    """Parcels of one sender in flight at a time."""

    most_work_in_flight: float = 1.0
    """Their runs, together."""

    silent_runs: float = 1.5
    """A process is asked whether it lives after a silence of so many runs. Measured around a
    stopped ResNet-50 stage: without the question the longest gap was 0.12-0.27 s."""

    silent_least: float = 0.020
    """The least such silence."""

    answer_within: float = 0.025
    """The time that the process has for its answer."""

    refused_pause: float = 0.005
    """Nothing more is handed over for so long after a refusal, doubled by each that follows.
    Measured with runs of 25 ms: 5 ms spared nothing, since the process was as busy as before."""

    refused_pause_most: float = 0.320
    """The longest such pause."""

    hang_pause: float = 1.0
    """Nothing is handed over for so long to a process that hangs; also the longest pause after a
    late parcel, and the age up to which stored parcels are counted as being before the next one."""

    most_at_hand: int = 256
    """Parcels in hand and messages in the lanes, up to which a stage takes more from this host."""

    most_work_at_hand: float = 1.0
    """Work that waits here or there, up to which it does: each sender hands over a second of work
    at most, but there may be many."""

    most_overtaken: float = 0.002
    """Work in the lanes that a parcel may overtake."""


HANDOVER = HandoverConfig()


def admit(backlog: Backlog, parcels: int, in_lanes: int) -> Admission:
    """Whether a stage takes one more parcel. It may wait there, but not overtake the messages of a
    lane, which are asked for first.

    parcels: messages in hand that processes of this host handed over. in_lanes: messages that wait
    in the stage's lanes."""
    if backlog.closed or parcels + in_lanes >= HANDOVER.most_at_hand:
        return Admission.REFUSED
    in_lanes_s = in_lanes * backlog.run
    if backlog.waiting * backlog.run + in_lanes_s > HANDOVER.most_work_at_hand:
        return Admission.REFUSED
    return Admission.BEHIND_LANES if in_lanes_s > HANDOVER.most_overtaken else Admission.ADMITTED


@dataclass(slots=True)
class _Peer:
    """A process of this host that is, or was, handed something."""

    refusals: Backoff
    in_flight: int = 0
    heard: float = -inf  # of it, for the last time
    asked: float = -inf  # since when an answer is due; -inf: no question is open
    paused_until: float = -inf


class _Parcel(NamedTuple):
    """One parcel in flight: to whom, since when, until when, and after which silence to ask."""

    peer: str
    since: float
    until: float
    quiet: float


class Check(NamedTuple):
    """The outcome of a check: whom to ask whether it lives, and which parcels to store, by key."""

    ask: tuple[str, ...]
    store: tuple[str, ...]


class HandoverPolicy:
    """One sender's parcels for the stage behind `stage` (0: a requester's) of `last` stages."""

    def __init__(self, stage: int, last: int) -> None:
        self._config = config = HANDOVER
        self._stages_behind = last - stage
        # The stage before waits longer than this one: for this one to store the parcel, if need be.
        self._crowded_patience = config.crowded_patience * (1 - stage / (2 * max(1, last)))
        # A requester hears nothing of the first stage but the answer of the last one.
        self._silent_runs = config.silent_runs + (0 if stage else last - 1)
        self._parcels: dict[str, _Parcel] = {}
        self._peers: dict[str, _Peer] = {}
        self._crowded_until = -inf
        self._ack_time = Usual(config.most_for_short)  # from handing over to the ack
        self._late = 0  # in a row
        self._late_at = -inf
        self._stored: deque[float] = deque(maxlen=config.most_in_flight)
        self._closed = False

    # --- questions --------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Parcels that other processes have."""
        return len(self._parcels)

    def accepts(self, peer: str, run: float, now: float) -> bool:
        """Whether one more parcel may be handed to that process; run: usual seconds of a run."""
        in_flight, config = len(self._parcels), self._config
        if self._closed or in_flight >= config.most_in_flight:
            return False
        if in_flight * run >= config.most_work_in_flight:
            return False
        known = self._peers.get(peer)
        return known is None or now >= known.paused_until

    def due(self, key: str) -> float:
        """When the parcel is to be checked."""
        parcel = self._parcels[key]
        peer = self._peers[parcel.peer]
        if peer.asked > -inf:
            return min(parcel.until, peer.asked + self._config.answer_within)
        return min(parcel.until, self._silent_at(parcel, peer))

    @property
    def next_due(self) -> float:
        """When the next check is due; `inf` while nothing is in flight."""
        return min(map(self.due, self._parcels), default=inf)

    def is_due(self, now: float) -> bool:
        """Whether a check would find anything to do."""
        return any(self.due(key) <= now for key in self._parcels)

    # --- events -----------------------------------------------------------------------

    def handed_over(self, key: str, peer: str, run: float, now: float, together: bool) -> float:
        """A parcel was handed over. together: with others, in one burst. The time at which it is to
        be checked."""
        config = self._config
        before = self._stored_lately(now) if self._stored else 0
        runs = len(self._parcels) + self._stages_behind + before
        usual = self._ack_time.ewma + max(
            config.least_patience, config.usual_deviations * self._ack_time.deviation
        )
        patience = max(config.least_patience + 2 * run * runs, min(config.most_for_short, usual))
        if together or len(self._parcels) >= config.crowd:
            self._crowded_until = now + config.crowded_for
        if now < self._crowded_until:
            patience = max(patience, self._crowded_patience)
        # No question is asked about a parcel that would be given up by then anyway. On a loaded
        # machine many event loops are silent for longer than a short run, and live.
        asked = patience > self._crowded_patience
        quiet = max(config.silent_least, self._silent_runs * run) if asked else inf
        until = now + min(config.most_patience, patience)
        self._parcels[key] = _Parcel(peer, now, until, quiet)
        known = self._peers.get(peer) or self._new_peer(peer, now)
        known.in_flight += 1
        return until if known.asked > -inf else min(until, now + quiet)

    def stored(self, now: float) -> None:
        """A parcel went to the lane instead: it is before the next one."""
        self._stored.append(now)

    def acked(self, key: str, now: float) -> None:
        """The process has acknowledged the parcel: it is alive, and can take more."""
        if (removed := self._remove(key)) is not None:
            parcel, peer = removed
            peer.heard, peer.asked = now, -inf
            self._in_time(parcel, peer, now)

    def answered(self, key: str, now: float) -> None:
        """The request's answer came. This does not show that the process that had the parcel is
        alive: it may hang by now."""
        if (removed := self._remove(key)) is not None:
            self._in_time(*removed, now)

    def refused(self, key: str, now: float) -> None:
        """The parcel's process does not take it, or gives it up."""
        if (removed := self._remove(key)) is not None:
            peer = removed[1]
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
        """That process has ended: the parcels that it had, to be stored at once."""
        keys = tuple(key for key, parcel in self._parcels.items() if parcel.peer == peer)
        for key in keys:
            del self._parcels[key]
            self._stored.append(now)
        self._peers.pop(peer, None)
        return keys

    def dropped(self, key: str) -> None:
        """Nobody waits for the parcel any more."""
        self._remove(key)

    def check(self, now: float) -> Check:
        """Ask the silent processes whether they live, and give up parcels that are late or at a
        process that hangs."""
        config = self._config
        asked = {name: peer.asked for name, peer in self._peers.items() if peer.asked > -inf}
        # Also one whose silent parcels have ended since: it was asked, and has said nothing.
        hanging = {name for name, at in asked.items() if at + config.answer_within <= now}
        silent = {
            parcel.peer
            for parcel in self._parcels.values()
            if self._silent_at(parcel, self._peers[parcel.peer]) <= now
        }
        ask = tuple(silent - asked.keys())
        for name in ask:
            self._peers[name].asked = now
        given_up = tuple(
            key
            for key, parcel in self._parcels.items()
            if parcel.until <= now or parcel.peer in hanging
        )
        if any(self._parcels[key].since > self._late_at for key in given_up):
            self._late += 1
            self._late_at = now
        for key in given_up:
            self._give_up(key, hanging, now)
        if self._late >= config.late_in_a_row:
            self._late = 0
            if self._ack_time.ewma < config.most_for_short:
                self._ack_time.add(2 * self._ack_time.ewma)  # acks may take longer now
        return Check(ask, given_up)

    def close(self) -> tuple[str, ...]:
        """Nothing is handed over any more: the parcels in flight, to be stored."""
        keys = tuple(self._parcels)
        self._closed = True
        self._parcels.clear()
        self._peers.clear()
        return keys

    # --- within -----------------------------------------------------------------------

    def _new_peer(self, name: str, now: float) -> _Peer:
        # A process has a new name at each start: those that ended must not add up.
        remembered = now - self._config.hang_pause
        self._peers = {
            n: p for n, p in self._peers.items() if p.in_flight or p.paused_until > remembered
        }
        peer = self._peers[name] = _Peer(
            Backoff(self._config.refused_pause, self._config.refused_pause_most)
        )
        return peer

    def _remove(self, key: str) -> tuple[_Parcel, _Peer] | None:
        parcel = self._parcels.pop(key, None)
        if parcel is None:
            return None
        peer = self._peers[parcel.peer]
        peer.in_flight -= 1
        if not peer.in_flight:
            peer.asked = -inf
        return parcel, peer

    def _give_up(self, key: str, hanging: set[str], now: float) -> None:
        longest = self._config.hang_pause
        peer = self._peers[self._parcels[key].peer]
        asked = peer.asked
        removed = self._remove(key)
        assert removed is not None
        parcel = removed[0]
        self._stored.append(now)
        if parcel.peer in hanging:
            peer.paused_until = max(peer.paused_until, now + longest)
            peer.asked = -inf
            return
        if self._late < self._config.late_in_a_row:
            return
        # One long run in a hundred takes longer than usual. Where the process was heard meanwhile,
        # the pause is as long as the parcel was waited for: the next second of parcels need not be
        # stored for it. Late short runs mean that event loops wait for a processor.
        lives = asked == -inf and parcel.quiet < inf
        pause = min(longest, parcel.until - parcel.since) if lives else longest
        peer.paused_until = max(peer.paused_until, now + pause)

    def _in_time(self, parcel: _Parcel, peer: _Peer, now: float) -> None:
        self._late = 0
        if now >= self._crowded_until:
            self._ack_time.add(now - parcel.since)
        if peer.paused_until > -inf and now >= peer.paused_until:
            peer.refusals.reset()

    def _silent_at(self, parcel: _Parcel, peer: _Peer) -> float:
        return max(parcel.since, peer.heard) + parcel.quiet

    def _pause_refused(self, peer: _Peer, now: float) -> None:
        if now < peer.paused_until:
            return  # together with the one before
        if now - peer.paused_until >= self._config.refused_pause_most:
            peer.refusals.reset()
        peer.paused_until = now + peer.refusals.next()

    def _stored_lately(self, now: float) -> int:
        while self._stored and self._stored[0] < now - self._config.hang_pause:
            self._stored.popleft()
        return len(self._stored)
