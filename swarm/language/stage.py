"""One stage of one node: steps in, runs, steps out. Pure: no clock, no socket.

The shell calls `take` and `heard` with messages, `plan` when the thread is free, `computed` behind
a run, `gone` when a node is dead or hangs, and `tick` about ten times a second; after each it sends
what `flush` returns. All times are seconds of one monotonic clock.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from swarm.errors import Internal, InvalidArgument, SwarmError, error_for
from swarm.language.admission import WaitingRequest
from swarm.language.choice import SlotCandidate, choose, holder, with_room
from swarm.language.effects import Outbox
from swarm.language.following import due, rest, said
from swarm.language.grammar import Grammars
from swarm.language.limits import USUAL, LanguageLimits, Shape
from swarm.language.prefixes import PrefixCopy
from swarm.language.request import Opening
from swarm.language.session import Chunk, ComputedDrafts, Session
from swarm.language.slots import Slots
from swarm.language.steps import (
    Alive,
    Failed,
    Forward,
    Full,
    Holds,
    MissingTokens,
    Moved,
    Stale,
    TokenStep,
    Word,
)
from swarm.language.tail import Tail
from swarm.language.text import Decode
from swarm.language.turns import StageRun, plan
from swarm.language.vocabulary import sorted_out

log = logging.getLogger("swarm.language")

REPEAT_AFTER = 0.1  # seconds in which the same question and the same repetition are not made twice
SHUN_FOR = 3.0  # seconds for which a node that failed gets no session
PROBE_WITHIN = 0.4  # seconds in which a living process answers a probe


class StageCore:
    """peers(stage): the living nodes of another stage. decode: token ids as text, for the last
    stage; None without a tokenizer. grammars: by schema, for the last stage. counts: since the
    start, for people."""

    def __init__(
        self,
        stage: int,
        last: int,
        node: str,
        shape: Shape,
        peers: Callable[[int], Sequence[SlotCandidate]],
        limits: LanguageLimits = USUAL,
        decode: Decode | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        self.stage, self.last, self.node = stage, last, node
        self.shape = shape
        self.sessions: dict[str, Session] = {}
        self.counts: Counter[str] = Counter()
        self.kept_bytes = self.pending_bytes = 0
        self.draining = False
        self._peers = peers
        self._limits = limits
        self._tail = Tail(node, decode, grammars) if stage == last else None
        self._out = Outbox()
        self._slots = Slots(shape, limits, self.sessions, self.counts, self.drop)
        self._probed: dict[str, float] = {}  # by node: when its answer is overdue
        self._shunned: dict[str, float] = {}  # by node: until when

    @property
    def served(self) -> int:
        """Sessions, without those that are followed."""
        return sum(not session.follows for session in self.sessions.values())

    @property
    def is_idle(self) -> bool:
        """Whether there is no session, and nobody who waits for one."""
        return not self.sessions

    def prepares(self) -> list[WaitingRequest]:
        """See `HeadCore`: other stages have none."""
        return []

    # --- in ---------------------------------------------------------------------------

    def take(self, message: Forward, now: float) -> None:
        """Steps came from the stage before."""
        if message.probe:
            self._out.word(message.back, Alive())
        for key, epoch in message.closed.items():
            self._slots.remember_end(key, epoch, now)
            self.close(key)
        for key in message.left:
            self.drop(key)
        steps, misfits = sorted_out(message, self.shape, self.stage, self.node)
        for failed in misfits:  # the sender alone hears so: it may not be the sender's session
            self.counts["misfits"] += 1
            self._out.word(message.back, Full(failed.session) if message.follow else failed)
        for step in steps:
            if message.follow:
                self._follow(step, message.back, now)
            else:
                self._take(step, message.back, message.probe, now)

    def _take(self, step: TokenStep, back: str, probe: bool, now: float) -> None:
        session = self.sessions.get(step.session)
        if session is not None and step.epoch < session.epoch:
            self._out.word(back, Stale(session.key, session.epoch))
            return
        if session is None and step.epoch <= (ended := self._slots.ended(step.session)):
            # A sender that hung while another one brought the session to its end.
            self._out.word(back, Stale(step.session, ended + 1))
            return
        if session is None:
            if step.opening is None or not self._slots.may_begin(step.position, step.prefix):
                self._out.word(back, MissingTokens(step.session, 0))
                return
            session = self._open(step.session, step.opening, step.epoch, now, step.prefix)
            if session is None:
                self.counts["refused"] += 1
                self._out.word(back, Full(step.session))
                return
            if session.held != step.position:
                self._out.word(back, MissingTokens(step.session, session.held))
                return
        session.touched, session.back = now, back
        if step.opening is not None:
            session.opening, session.epoch = step.opening, step.epoch
            session.route |= step.route
            session.announce = True
        if session.follows:
            self._serve(session, now)
        if step.accepted:
            session.learn(step.position - len(step.accepted), step.accepted)
            self.kept_bytes += session.settle(step.position)
        if step.position > session.reach:
            self._lacks(session, session.reach, now)
            return
        session.learn(step.position, step.ids)
        if step.end <= session.reach and self._is_done(session, step, probe, now):
            return
        self._wait(session, step)

    def _follow(self, step: TokenStep, back: str, now: float) -> None:
        """A step of a session that another node serves: it is computed, and nothing is sent on."""
        session = self.sessions.get(step.session)
        if session is None:
            if step.epoch <= self._slots.ended(step.session):
                return
            if step.opening is None or not self._slots.may_begin(step.position, step.prefix):
                self._out.word(back, Holds(step.session, 0))
                return
            session = self._open(step.session, step.opening, step.epoch, now, step.prefix, True)
            if session is None:
                self._out.word(back, Full(step.session))
                return
        if not session.follows:
            return  # it is served here by now
        if step.epoch < session.epoch:
            self._out.word(back, Stale(session.key, session.epoch))
            return
        session.touched, session.back, session.owes = now, back, True
        if step.opening is not None:
            session.opening, session.epoch = step.opening, step.epoch
            session.route |= step.route
        if step.position <= session.reach < step.end:
            session.learn(step.position, step.ids)
            step.known = step.end + 1  # the next token is not for a follower to ask for
            self._wait(session, step)

    def _serve(self, session: Session, now: float) -> None:
        """The node that served a session is gone: it goes on here, behind what is held."""
        session.follows, session.announce = False, True
        self.counts["taken_over"] += 1
        self.pending_bytes -= sum(step.nbytes for step in session.pending)
        session.pending.clear()  # its sender sends again what it did not hear to be held
        if self._tail is None:
            session.sent = session.held
            self._find_next(session, now)

    def _wait(self, session: Session, step: TokenStep) -> None:
        for waiting in session.pending:
            if waiting.end == step.end:
                waiting.known = max(waiting.known, step.known)
                return
        if self.pending_bytes + step.nbytes > self._limits.pending_bytes:
            self.counts["dropped"] += 1
            return
        self.pending_bytes += step.nbytes
        session.pending.append(step)

    def _is_done(self, session: Session, step: TokenStep, probe: bool, now: float) -> bool:
        """Whether a repeated step needs no run."""
        if self._tail is not None:
            return not step.asks or self._tail.repeat(session, step.end, self._out)
        if step.asks and session.kept.end == step.end and step.position <= session.sent:
            self._forward(session, session.kept.chunks[-1], step.known, now, probe)
            return True
        return not step.asks and step.end <= session.sent

    def drain(self) -> None:
        """Take no new session; those that are only followed leave."""
        self.draining = True
        self._slots.make_room(self.shape.slots)

    # --- turns ------------------------------------------------------------------------

    def plan(self, now: float) -> list[StageRun]:
        """The runs of the next turn; none while there is nothing to do."""
        runs = plan(self._ready(now))
        for run in runs:
            for session, step in run.steps:
                session.running, session.ran, session.reaches = True, now, step.end
                session.guess = None  # the run may write where its drafts are
                self._begun(session, step)
        return runs

    def _ready(self, now: float) -> list[tuple[Session, TokenStep]]:
        """The next step of each session, those that ran the longest ago first."""
        waiting = [s for s in self.sessions.values() if s.pending and not s.running]
        # Those that are only followed compute while no others do.
        waiting = [s for s in waiting if not s.follows] or waiting
        waiting.sort(key=lambda session: session.ran)
        for session in waiting:
            while session.pending and session.pending[0].position > session.held:
                self._begun(session, session.pending[0])
                self._lacks(session, session.held, now)
        return [(session, session.pending[0]) for session in waiting if session.pending]

    def _begun(self, session: Session, step: TokenStep) -> None:
        session.pending.popleft()
        self.pending_bytes -= step.nbytes

    def copies(self) -> list[PrefixCopy]:
        """What is to be copied, in order, before the runs of the latest `plan`."""
        return self._slots.copies()

    def computed(self, run: StageRun, rows: np.ndarray, now: float) -> None:
        """A run ended. rows: as `shards.language.kv_stage.KvStage.run` returns them."""
        for at, (session, step) in enumerate(run.steps):
            session.running = False
            if session.closed:
                self._slots.leaving.discard(session.slot)
                continue
            if step.end > len(session.ids):
                continue  # the client asked again, and has fewer
            try:
                self._made(session, step, rows[at].copy() if len(run.steps) > 1 else rows[at], now)
            except Exception as error:
                log.error("stage %d: a session failed", self.stage, exc_info=error)
                self._end_defect(session, error)
        self.counts["runs"] += 1

    def _made(self, session: Session, step: TokenStep, rows: np.ndarray, now: float) -> None:
        """What a run gave for one session."""
        # At position 0 a slot begins anew: what lies behind is computed again, in order. Drafts
        # replace what lay behind.
        anew = step.position == 0 or bool(step.drafts)
        session.held = step.end if anew else max(session.held, step.end)
        if step.drafts:
            hidden = None if self._tail else rows[len(step.ids) :]
            session.guess = ComputedDrafts(step.end, step.drafts, hidden)
        session.owes = session.follows
        if self._tail is None:
            self._pass_on(session, step, rows)
        elif step.asks:
            self._ask_tail(session, step, rows, now)

    def failed(self, run: StageRun, error: Exception) -> None:
        """A run raised, the part of one session as a rule: it ends, and its client is told."""
        for session, _ in run.steps:
            session.running = False
            self._slots.leaving.discard(session.slot)
            self._end_defect(session, error)

    def _end_defect(self, session: Session, error: Exception) -> None:
        if not session.closed:
            session.held = 0  # what its slot holds is not known: no other session begins with it
            self._end_failed(session, Internal(f"stage {self.stage} on {self.node}: {error}"))

    def _end_failed(self, session: Session, error: SwarmError) -> None:
        if session.follows:  # the node that serves it goes on
            self._out.word(session.back, Full(session.key))
            self.drop(session.key)
            return
        self._out.word(session.opening.head, Failed(session.key, str(error), error.status))
        self.close(session.key)

    def _ask_tail(self, session: Session, step: TokenStep, logits: np.ndarray, now: float) -> None:
        """logits: [vocabulary], or with drafts [1 + drafts, vocabulary]."""
        assert self._tail is not None
        for index, row in enumerate(np.atleast_2d(logits), step.end):
            self.counts["tokens"] += 1
            try:
                is_last = self._tail.choose(session, index, row, self._out)
            except InvalidArgument as error:
                self._end_failed(session, error)
                return
            if is_last:
                self.close(session.key)
                return
            at = index - step.end
            if at == len(step.drafts) or step.drafts[at] != session.ids[index]:
                return
            self.counts["accepted"] += 1

    def _pass_on(self, session: Session, step: TokenStep, rows: np.ndarray) -> None:
        chunk = Chunk(step.position, rows[: len(step.ids)])
        self.kept_bytes += session.kept.put(chunk)
        while self.kept_bytes > self._limits.kept_bytes and (freed := session.kept.drop_first()):
            self.kept_bytes -= freed
        if session.follows:
            return
        # Behind a gap nothing is sent: what is lacking comes first, and that was perhaps not heard.
        if step.position > max(session.sent, session.offered):
            self._lacks(session, session.sent, session.ran)
        elif step.asks or step.end > session.sent:
            guess = session.guess if step.asks else None
            self._forward(session, chunk, step.known, session.ran, guess=guess)

    # --- out --------------------------------------------------------------------------

    def flush(self) -> Outbox:
        """What is to be sent since the last call."""
        out, self._out = self._out, Outbox()
        return out

    def _forward(
        self,
        session: Session,
        chunk: Chunk,
        known: int,
        now: float,
        probe: bool = False,
        guess: ComputedDrafts | None = None,
    ) -> None:
        if not session.to and not self._find_next(session, now):
            return  # `tick` looks again
        opens = chunk.position == 0 or probe or session.announce
        session.announce = False
        step = self._step(session, chunk, known, opens, guess)
        self._out.step(session.to, step, probe)
        session.offered = step.end + len(step.drafts)
        session.sent = max(session.sent, chunk.end)
        if probe:
            self._probed.setdefault(session.to, now + PROBE_WITHIN)

    def _step(
        self,
        session: Session,
        chunk: Chunk,
        known: int,
        opens: bool,
        guess: ComputedDrafts | None = None,
    ) -> TokenStep:
        rows = chunk.rows
        if guess is not None and guess.rows is not None:
            rows = np.concatenate([rows, guess.rows])
        return TokenStep(
            session.key,
            session.epoch,
            chunk.position,
            known,
            tuple(session.ids[chunk.position : chunk.end]),
            rows,
            session.opening if opens else None,
            session.route if opens else {},
            tuple(session.ids[: chunk.position])
            if opens and 0 < chunk.position == session.shared
            else (),
            () if guess is None else guess.ids,
            tuple(session.ids[session.sent : chunk.position]),
        )

    def _find_next(self, session: Session, now: float, follower: str = "") -> bool:
        """Choose a node of the next stage; whether there is one. follower: holds most of it."""
        avoid = session.refused | {n for n, until in self._shunned.items() if until > now}
        hint = session.route.get(self.stage + 1, follower)
        session.to = choose(session.key, self._peers(self.stage + 1), avoid, hint)
        if not session.to:
            return False
        if hint != session.to:
            session.route[self.stage + 1] = session.to
            self._out.word(session.back, Moved(session.key, self.stage + 1, session.to))
        return True

    def _rebind(self, session: Session, now: float) -> bool:
        """Go on with another node of the next stage; whether there is one."""
        stream, session.stream = session.stream, None
        session.to, session.sent, session.offered = "", 0, 0
        if not self._find_next(session, now, "" if stream is None else stream.node):
            return False
        self.counts["rebound"] += 1
        have = 0
        if stream is not None and session.to == stream.node and session.kept.chunks:
            # The last chunk goes again: it asks for the token that is missing.
            have = min(stream.held, session.kept.chunks[-1].position)
            session.announce = True
        self._resend(session, have, now)
        return True

    def _resend(self, session: Session, have: int, now: float) -> None:
        """Send what the next stage lacks, in the chunks in which it was computed."""
        session.resent = (now, have, session.to)
        session.sent, session.offered = have, 0
        if session.held <= have:
            return
        if not session.kept.chunks or session.kept.start > have:
            self._lacks(session, have, now)
            return
        # Of a prompt whose chunks are still coming no chunk but the last one asks for a token.
        known = max(len(session.ids), session.opening.prompt)
        for chunk in session.kept.since(have):
            self._forward(session, chunk, known, now)

    def _lacks(self, session: Session, have: int, now: float) -> None:
        """Tokens from `have` on are needed from the stage before."""
        asked, since = session.asked
        if since == have and now - asked < REPEAT_AFTER:
            return
        session.asked = (now, have)
        self._out.word(session.back, MissingTokens(session.key, have))

    # --- back -------------------------------------------------------------------------

    def heard(self, node: str, words: Sequence[Word], now: float) -> None:
        """A node of a later stage says something."""
        for word in words:
            if isinstance(word, Alive):
                self._probed.pop(node, None)
            elif (session := self.sessions.get(word.session)) is not None:
                self._heard(node, session, word, now)
            elif isinstance(word, MissingTokens):
                self._out.leave(node, word.session)

    def _heard(self, node: str, session: Session, word: Word, now: float) -> None:
        match word:
            case MissingTokens(_, have) if node == session.to:
                at, since, to = session.resent
                if (since, to) != (have, node) or now - at >= REPEAT_AFTER:
                    self._resend(session, min(have, session.held), now)
            case MissingTokens(key):
                self._out.leave(node, key)
            case Holds(_, have):
                said(session, node, have, now)
            case Full() if session.stream is not None and node == session.stream.node:
                rest(session, now)
            case Failed(_, text, status) if node == session.to:
                self._end_failed(session, error_for(status, text))
            case Full() if node == session.to:
                session.refused.add(node)
                session.route.pop(self.stage + 1, None)
                if not self._rebind(session, now):
                    self._no_room(session)
            case Stale(_, epoch) if epoch > session.epoch:
                self._out.word(session.back, word)
                self.drop(session.key)
            case Moved(_, stage, at_node):
                session.route[stage] = at_node
                self._out.word(session.back, word)

    def _no_room(self, session: Session) -> None:
        """No node of the next stage has a slot: a new session hears so, an old one waits."""
        if len(session.ids) <= session.opening.prompt:
            self._out.word(session.back, Full(session.key))
            self.drop(session.key)

    # --- nodes come and go, time passes -------------------------------------------------

    def gone(self, node: str, now: float) -> None:
        """A node is dead, or hangs: its sessions go on elsewhere."""
        self._probed.pop(node, None)
        self._shunned[node] = now + SHUN_FOR
        for session in list(self.sessions.values()):
            if session.stream is not None and session.stream.node == node:
                session.stream = None
            if session.route.get(self.stage + 1) == node:
                del session.route[self.stage + 1]
            if session.to == node:
                self._rebind(session, now)

    def tick(self, now: float) -> None:
        """Time has passed."""
        for node in [node for node, until in self._probed.items() if until <= now]:
            self.counts["hung"] += 1
            self.gone(node, now)
        self._shunned = {n: until for n, until in self._shunned.items() if until > now}
        self._slots.forget_ended(now)
        leaving = self._leaving_nodes()
        for session in list(self.sessions.values()):
            if now - session.touched > self._limits.idle:
                self.counts["evicted"] += 1
                self.drop(session.key)
            elif session.follows:
                self._tell_held(session)
            elif self._tail is None and not session.to and session.held > session.shared:
                session.refused.clear()
                self._rebind(session, now)
            elif session.to in leaving:
                self._leave(session, now)
        if self._tail is None and self.sessions:
            self._stream(now)

    def _tell_held(self, session: Session) -> None:
        if session.owes:
            session.owes = False
            self._out.word(session.back, Holds(session.key, session.held))

    def _stream(self, now: float) -> None:
        """Send followers what the next stage has had meanwhile."""
        nodes = self._peers(self.stage + 1)
        for parcel in due(self.sessions.values(), nodes, self._shunned.keys(), now):
            session, chunk = parcel.session, parcel.chunk
            opens = chunk.position in (0, session.shared)
            known = max(len(session.ids), session.opening.prompt)
            self._out.follow(parcel.node, self._step(session, chunk, known, opens))

    def _leaving_nodes(self) -> set[str]:
        if self._tail is not None or not self.sessions:
            return set()
        return {each.node for each in self._peers(self.stage + 1) if each.draining}

    def _leave(self, session: Session, now: float) -> None:
        """A node of the next stage drains: go on elsewhere, if there is an elsewhere."""
        others = choose(session.key, self._peers(self.stage + 1), set(self._shunned))
        if others:
            self._out.leave(session.to, session.key)
            session.route.pop(self.stage + 1, None)
            self._rebind(session, now)

    def _open(
        self,
        key: str,
        opening: Opening,
        epoch: int,
        now: float,
        ids: Sequence[int] = (),
        follows: bool = False,
    ) -> Session | None:
        """See `Slots.open`; what a session's beginning shares is used at the next stages too, as
        far as known."""
        if self.draining:
            return None
        session, had = self._slots.open(key, opening, epoch, now, ids, follows)
        if session is None or not session.shared or self._tail is not None:
            return session
        if to := self._holder(session.ids, had):
            session.route.setdefault(self.stage + 1, to)
        return session

    def _holder(self, ids: list[int], known: str) -> str:
        """The node of the next stage that is to go on behind a beginning; "" where none that has
        room holds it. known: the node that held it for another session."""
        wanted = self._slots.prefixes.marks(ids)
        able = with_room(self._peers(self.stage + 1), set(self._shunned))
        if any(each.node == known for each in able):
            return known
        node, chunks = holder(wanted, able)
        return node if chunks == len(wanted) else ""

    def close(self, key: str) -> None:
        """A session has ended: its slot is free, here and at the stages behind."""
        session = self.sessions.get(key)
        if session is not None:
            self._slots.remember_end(key, session.epoch, session.touched)
            if session.to:
                self._out.close(session.to, key, session.epoch)
            if session.stream is not None:
                self._out.close(session.stream.node, key, session.epoch)
        self.drop(key)

    def drop(self, key: str) -> None:
        """A session leaves its slot here."""
        session = self.sessions.pop(key, None)
        if session is None:
            return
        session.closed = True
        self._slots.leave(session)
        self.kept_bytes -= session.kept.clear()
        self.pending_bytes -= sum(step.nbytes for step in session.pending)
        if self._tail is not None:
            self._tail.forget(key)

    def marks(self) -> bytes:
        """The beginnings that other nodes may send sessions here for."""
        return self._slots.marks()

    @property
    def kv_bytes(self) -> int:
        """Of the tokens that are held."""
        held = sum(session.held for session in self.sessions.values())
        return held * self.shape.kv_bytes_per_token
