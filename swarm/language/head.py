"""What stage 1 does beside its layers: it admits sessions, feeds ids, and waits for tokens. Pure.

It is the clock of its sessions: a token that does not come in good time makes it repeat the last
step as a probe, which each stage passes on, and which finds the node that is dead, hung or behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from swarm.errors import (
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    ResourceExhausted,
    Status,
    SwarmError,
    Unavailable,
    error_for,
)
from swarm.flow.bucket import Spending
from swarm.flow.latency import LatencyWindow, Usual
from swarm.language.admission import AGAIN_AFTER, SlotAdmission, WaitingRequest
from swarm.language.choice import SlotCandidate, choose, holder, with_room
from swarm.language.effects import Ended, Guessing, Pass, Tell
from swarm.language.grammar import Grammars
from swarm.language.keys import id_of
from swarm.language.limits import USUAL, LanguageLimits, Shape
from swarm.language.request import GenerateRequest, Opening
from swarm.language.session import Session
from swarm.language.speculation import Benefit, Drafter, DraftQuestion, Lookup, Speculation, waits
from swarm.language.stage import StageCore
from swarm.language.steps import (
    MOST_DRAFTS,
    Alive,
    Failed,
    Gone,
    Token,
    TokenStep,
    Word,
    chunk_end,
    chunk_start,
)
from swarm.language.text import Decode
from swarm.language.turns import StageRun
from swarm.language.vocabulary import check_ids

# A token is late after so many times its usual time, and after these seconds at least and at most.
LATE_FACTOR, SOONEST_LATE, LATEST_LATE = 4.0, 0.25, 2.0


@dataclass(slots=True)
class Led:
    """What stage 1 knows of a session besides. fed: ids `[0, fed)` have been given to the layers.
    waits: since when all are fed, and the next one is awaited; None while it is not. status: with
    which it ends. round: when the last question began, with how many ids, and the source of its
    drafts; None where the duration of that question must not be learned from. guess: the draft
    model's, for the next question."""

    request: GenerateRequest
    deadline: float
    began: float
    drafter: Drafter
    fed: int = 0
    waits: float | None = None
    probes: int = 0
    last_token: float | None = None
    status: Status = Status.OK
    round: tuple[float, int, Benefit | None] | None = None
    guess: DraftQuestion | None = None


class HeadCore(StageCore):
    """words_to: where later stages send tokens. version: of the model. tokenizer: SHA-256 of its
    file, "" where it has none. drafter: makes what guesses the ids of one session.
    has_draft_model: `Guessing` is answered. first_token, between_tokens: seconds, as seen here."""

    def __init__(
        self,
        last: int,
        node: str,
        shape: Shape,
        peers: Callable[[int], Sequence[SlotCandidate]],
        words_to: str,
        version: str = "",
        tokenizer: str = "",
        limits: LanguageLimits = USUAL,
        decode: Decode | None = None,
        grammars: Grammars | None = None,
        drafter: Callable[[], Drafter] = Lookup,
        has_draft_model: bool = False,
    ) -> None:
        super().__init__(1, last, node, shape, peers, limits, decode, grammars)
        self.led: dict[str, Led] = {}
        self.admission = SlotAdmission(shape.slots, limits.shares)
        self._prepares: list[WaitingRequest] = []
        self._spending = Spending()
        self.speculation, self.drafter = Speculation(has_draft_model), drafter
        self.first_token, self.between_tokens = LatencyWindow(), LatencyWindow()
        self._words_to = words_to
        self._version, self._tokenizer = version, tokenizer
        self._round = Usual(start=SOONEST_LATE / LATE_FACTOR)

    # --- admission --------------------------------------------------------------------

    def ask(self, request: GenerateRequest, reply: str, now: float, *, others: bool = True) -> None:
        """A client asks. request: with a session; its text may be text yet. others: whether
        another node may be asked for it. A refusal goes to the client."""
        try:
            check_ids(request, self.shape.vocabulary)
        except InvalidArgument as error:
            self._refuse(request, reply, error)
            return
        session = self.sessions.get(request.session)
        if session is not None:
            if request.epoch > session.epoch:
                self._adopt(session, request, reply)
            self._accept(session)
        elif request.session in self.admission:
            pass  # its text is being read
        elif request.routed and not self._may_hold(request) and (to := self._elsewhere(request)):
            self._out.passes.append(Pass(to, replace(request, head=to), reply))
        elif self.admission.is_full(request):
            self._refuse(request, reply, self.admission.refusal(request.agent))
        elif others and (node := self._whose(request)):
            self._out.passes.append(Pass(node, request, reply))
        else:
            self._ask(request, reply, now)

    def _ask(self, request: GenerateRequest, reply: str, now: float) -> None:
        """A new session of this node, if it has a slot, soon or now."""
        admission = self.admission
        try:
            self._check(request)
            if wait := self._spending.owes(request.agent, now):
                text = f"agent {request.agent!r} may use {self._limits.quota:g} tokens a second"
                raise ResourceExhausted(text, wait)
            if self.draining:
                self._late(WaitingRequest(request, reply))
                return
            if self._may_hold(request):
                admission.hold(request.session, request.agent)
                self._prepares.append(WaitingRequest(request, reply))
            else:
                full = self.free <= 0 and bool(self._elsewhere(request))
                admission.wait(request, reply, now, elsewhere=full)
        except SwarmError as error:
            self._refuse(request, reply, error)

    def _may_hold(self, request: GenerateRequest) -> bool:
        """Whether a request would get a slot now."""
        free = self.free > 0 and not self.draining
        return free and self.admission.may_hold(request.agent)

    def _nearer(self, request: GenerateRequest) -> str:
        """Another node of stage 1 that holds more of a new prompt's beginning, as far as known, and
        has room; "" for none."""
        if not self._limits.reuse or request.routed or request.head:
            return ""
        ids = request.prompt[: self._slots.prefixes.below(len(request.prompt))]
        _, mine = self._slots.prefixes.longest(ids, self.sessions.values())
        busy = self.admission.held - 1  # without this one
        able = with_room(
            [
                replace(each, sessions=busy) if each.node == self.node else each
                for each in self._peers(1)
            ],
            set(self._shunned),
        )
        others = [each for each in able if each.node != self.node]
        node, chunks = holder(self._slots.prefixes.marks(ids), others)
        return node if chunks > mine // self._slots.prefixes.size else ""

    def _elsewhere(self, request: GenerateRequest) -> str:
        """Another node that may have a slot for a request that came here; "" for none."""
        if request.head:
            return ""  # it was passed on already
        others = [each for each in self._peers(1) if each.node != self.node]
        return choose(request.session, others, set(self._shunned))

    def _late(self, asked: WaitingRequest) -> None:
        """A request has waited long enough: it goes elsewhere, or is refused."""
        request, reply = asked.request, asked.reply
        if node := self._elsewhere(request):
            self._out.passes.append(Pass(node, replace(request, head=node), reply))
        elif self.draining:
            self._refuse(request, reply, Unavailable(f"{self.node} is leaving: ask again"))
        else:
            self._refuse(request, reply, self.admission.refusal(request.agent))

    @property
    def free(self) -> int:
        """Slots that no session has, and none will have that is being prepared."""
        return self.shape.slots - self.admission.held - len(self._slots.leaving)

    def _admit(self) -> None:
        """Give free slots to those that wait."""
        if not self.draining:
            self._prepares += self.admission.next(self.free)

    def prepares(self) -> list[WaitingRequest]:
        """Requests that have a slot since the last call: token ids are to be made of each one's
        text now, for `prepared`."""
        found, self._prepares = self._prepares, []
        return found

    def prepared(self, request: GenerateRequest, reply: str, now: float) -> None:
        """A request of `prepares` has token ids as its prompt, and a seed."""
        try:
            if request.session not in self.admission:
                return  # its client has gone, or this node drains and another one has it
            if node := self._nearer(request):
                self.counts["routed"] += 1
                self.admission.free(request.session)
                self._out.passes.append(Pass(node, replace(request, routed=True), reply))
                self._admit()
                return
            session = self._begin(request, reply, now)
        except SwarmError as error:
            self.unprepared(request, reply, error)
        else:
            self._accept(session)

    def unprepared(self, request: GenerateRequest, reply: str, error: SwarmError) -> None:
        """A request of `prepares` cannot be answered."""
        self.admission.free(request.session)
        self._refuse(request, reply, error)
        self._admit()

    def _spend(self, agent: str, tokens: int, now: float) -> None:
        if self._limits.quota:
            self._spending.spend(agent, self._limits.quota, tokens, now)

    def _accept(self, session: Session) -> None:
        """Tell the client that its session is here, and the key that it did not draw itself."""
        opening, key = session.opening, self.led[session.key].request.key
        accepted = {
            "v": 1,
            "session": session.id,
            "node": self.node,
            "accepted": True,
            "prompt_tokens": opening.prompt,
            "max_tokens": opening.most,
            "seed": opening.sampling.seed,
            "epoch": session.epoch,
            "version": self._version,
            "tokenizer": self._tokenizer,
        }
        accepted |= {"key": key} if key else {}
        self._out.tells.append(Tell(session.key, opening.reply, accepted, opening.json))

    def _refuse(self, request: GenerateRequest, reply: str, error: SwarmError) -> None:
        self.counts["refused"] += 1
        id_ = id_of(request.session)
        doc = {"v": 1, "session": id_}
        self._out.tells.append(Tell(request.session, reply, doc, request.json, True, error))
        self._out.ended.append(Ended(id_, request.agent, error.status))

    def _whose(self, request: GenerateRequest) -> str:
        """The node that a request belongs to, "" for this one: the one that has the session, if it
        lives; a new one goes to a primary."""
        if request.head == self.node:
            return ""
        peers = {each.node: each for each in self._peers(1)}
        if request.head in peers:
            return request.head
        mine = peers[self.node].priority if self.node in peers else 0
        better = [each for each in peers.values() if each.priority < mine]
        return choose(request.session, better, set(self._shunned))

    def _check(self, request: GenerateRequest) -> None:
        """What can be known before the text is read. Raises `ResourceExhausted`, `Unavailable`."""
        prompt, most = len(request.prompt), 1 if request.fit else request.max_tokens
        if not prompt and most > self.shape.context:
            raise ResourceExhausted(
                f"{most} tokens leave no room for a prompt in the context of "
                f"{self.shape.context} tokens: ask for fewer"
            )
        if prompt >= self.shape.context:
            raise ResourceExhausted(
                f"a prompt of {prompt} tokens leaves no room for an answer in the context of "
                f"{self.shape.context} tokens: shorten it by {prompt + 1 - self.shape.context} or "
                "more"
            )
        if prompt + most > self.shape.context:
            raise ResourceExhausted(
                f"{prompt} tokens of prompt and {most} more do not fit into the context of "
                f"{self.shape.context} tokens: ask for at most {self.shape.context - prompt}, or "
                "shorten the prompt"
            )
        for stage in range(2, self.last + 1):
            if not self._peers(stage):
                raise Unavailable(f"no node serves stage {stage} at present")

    def _begin(self, request: GenerateRequest, reply: str, now: float) -> Session:
        """Raises `ResourceExhausted`, `InvalidArgument`, `Unavailable`."""
        if not request.prompt:
            raise InvalidArgument("the prompt has no tokens")
        check_ids(request, self.shape.vocabulary)  # of a text they are known only now
        self._check(request)
        room = self.shape.context - len(request.prompt)
        request = replace(request, max_tokens=min(request.max_tokens, room))
        opening = self._opening(request, reply)
        # A session that another node had begins a new attempt: should that one live, it is stale.
        epoch = request.epoch + bool(request.head)
        shared = self._slots.prefixes.below(len(request.prompt)) if self._limits.reuse else 0
        session = self._open(request.session, opening, epoch, now, request.prompt[:shared])
        if session is None:
            raise Unavailable(f"{self.node} is leaving: ask again")
        session.ids = [*request.prompt, *_made(request)]
        drafter = self.drafter()
        self.led[session.key] = Led(request, now + request.budget, now, drafter, session.held)
        if self._may_guess and self.speculation.asks_model:
            self._guess(session, 0, 0.0)  # it reads the prompt while the stages do
        if not request.made:
            self._spend(request.agent, len(request.prompt), now)
        return session

    def _adopt(self, session: Session, request: GenerateRequest, reply: str) -> None:
        """The client asks again for a session that is here: it goes on behind what the client
        has."""
        led = self.led[session.key]
        request = replace(led.request, made=request.made, epoch=request.epoch, head=request.head)
        session.epoch = request.epoch
        session.opening = self._opening(request, reply)
        session.ids[session.opening.prompt :] = _made(request)
        led.request, led.waits, led.probes, led.round = request, None, 0, None
        session.guess = led.guess = None
        led.fed = min(led.fed, self._start(session, len(session.ids) - 1))
        session.held = min(session.held, len(session.ids))
        self.kept_bytes -= session.kept.cut(len(session.ids))
        session.announce = True

    def _opening(self, request: GenerateRequest, reply: str) -> Opening:
        return Opening(
            reply,
            self._words_to if self.last > 1 else "",
            len(request.prompt),
            request.max_tokens,
            request.sampling,
            request.stops,
            request.stop_ids,
            request.json,
            request.schema,
            request.answered,
        )

    # --- feeding ----------------------------------------------------------------------

    def _start(self, session: Session, position: int) -> int:
        return chunk_start(position, session.opening.prompt, self.shape.width)

    def _ready(self, now: float) -> list[tuple[Session, TokenStep]]:
        ready = []
        for session in sorted(self.sessions.values(), key=lambda each: each.ran):
            led = self.led[session.key]
            if session.running or led.fed >= len(session.ids):
                continue
            end = chunk_end(led.fed, session.opening.prompt, self.shape.width)
            ids = tuple(session.ids[led.fed : end])
            step = TokenStep(session.key, session.epoch, led.fed, len(session.ids), ids)
            if step.asks and len(ids) == 1 and not led.probes and self._may_guess:
                guess = led.guess
                if guess is None or guess.known != step.known:
                    step.drafts = self._looked_up(session, led)
                elif guess.ids is None and now < guess.until:
                    continue
                else:
                    step.drafts = guess.ids or ()
            ready.append((session, step))
        return ready

    def _begun(self, session: Session, step: TokenStep) -> None:
        led = self.led[session.key]
        led.fed = step.end
        if not step.asks:
            return
        led.waits = session.ran
        self.counts["drafts"] += len(step.drafts)
        speculation, guess, led.guess = self.speculation, led.guess, None
        source = speculation.lookup if step.drafts else None
        starts = session.ran
        if guess is not None and guess.known == step.known:
            # Its time counts, also where it came late, or knew nothing.
            source, starts = speculation.model, guess.at
        if led.round is not None:
            began, known, before = led.round
            speculation.ended(starts - began, step.known - known, before)
        led.round = (starts, step.known, source) if self._may_guess else None

    @property
    def _may_guess(self) -> bool:
        """Whether drafts are wanted at all: beside other sessions they would take their turns."""
        return bool(self._limits.drafts) and self.last > 1 and len(self.sessions) == 1

    def _most_drafts(self, session: Session) -> int:
        opening = session.opening
        left = min(self.shape.context, opening.prompt + opening.most) - len(session.ids) - 1
        return max(0, min(self._limits.drafts, MOST_DRAFTS, left))

    def _looked_up(self, session: Session, led: Led) -> tuple[int, ...]:
        """What may follow a session's ids by its own text, where that pays."""
        if not self.speculation.lookup.wants_drafts:
            return ()
        return led.drafter.draft(session.ids, self._most_drafts(session))

    def _ask_model(self, now: float) -> None:
        """Ask the draft model what follows the tokens that came, where that pays."""
        if not (self._may_guess and self.speculation.asks_model):
            return
        (session,) = self.sessions.values()
        led, most = self.led[session.key], self._most_drafts(session)
        is_next = led.fed == len(session.ids) - 1 >= session.opening.prompt
        if session.running or not is_next or not most or self._looked_up(session, led):
            return
        within = waits(self._round.ewma, most)
        led.guess = DraftQuestion(len(session.ids), now, now + within)
        self._guess(session, most, within)

    def _guess(self, session: Session, most: int, within: float) -> None:
        self.speculation.reading = True
        sampling = session.opening.sampling
        asked = Guessing(session.key, tuple(session.ids), most, sampling, within)
        self._out.guesses.append(asked)

    def guessed(self, asked: Guessing, ids: Sequence[int]) -> None:
        """The draft model answers, with no ids where it knows none. What is late is dropped."""
        self.speculation.reading = False
        led = self.led.get(asked.session)
        if led is not None and led.guess is not None and led.guess.known == len(asked.ids):
            led.guess.ids = tuple(ids[: asked.most])
        elif asked.most:
            self.counts["late_drafts"] += 1

    def _lacks(self, session: Session, have: int, now: float) -> None:
        led = self.led[session.key]
        led.fed, led.round = min(led.fed, self._start(session, have)), None
        led.guess = None

    # --- tokens -----------------------------------------------------------------------

    def _ask_tail(self, session: Session, step: TokenStep, logits: np.ndarray, now: float) -> None:
        super()._ask_tail(session, step, logits, now)
        if not session.closed:
            self._token_came(session, now)

    def heard(self, node: str, words: Sequence[Word], now: float) -> None:
        """See `StageCore`; the last stage says tokens."""
        for word in words:
            session = None if isinstance(word, Alive) else self.sessions.get(word.session)
            if session is None:
                super().heard(node, [word], now)
                continue
            session.touched = now
            match word:
                case Token(_, index, token, finish):
                    self._token(session, index, token, finish, now)
                case Gone():
                    self.counts["gone"] += 1
                    self.close(session.key)
                case Failed(_, text, status):
                    self.end(session, error_for(status, text))
                case _:
                    super().heard(node, [word], now)
        self._ask_model(now)

    def _token(self, session: Session, index: int, token: int, finish: str, now: float) -> None:
        if token >= self.shape.vocabulary:
            text = f"the last stage chose {token}, which is no token of this model"
            self.end(session, Internal(text))
            return
        if index == len(session.ids):
            session.ids.append(token)
            led = self.led[session.key]
            if led.fed == session.held:
                # The last id is fed in any case: with it the next one is asked for.
                self.kept_bytes += session.settle(index)
                led.fed = session.held
            self._token_came(session, now)
        if finish and index == len(session.ids) - 1:
            self.close(session.key)

    def _token_came(self, session: Session, now: float) -> None:
        led = self.led.get(session.key)
        if led is None:
            return
        self._spend(led.request.agent, 1, now)
        if led.last_token is None:
            self.first_token.add(now - led.began, now)
        else:
            self.between_tokens.add(now - led.last_token, now)
        if led.waits is not None and not led.probes:
            self._round.add(now - led.waits)
        led.last_token, led.waits, led.probes = now, None, 0

    # --- what goes wrong ----------------------------------------------------------------

    def end(self, session: Session, error: SwarmError) -> None:
        """A session ends by a failure, which its client hears."""
        opening = session.opening
        doc = {"v": 1, "session": session.id}
        self._out.tells.append(Tell(session.key, opening.reply, doc, opening.json, True, error))
        self.led[session.key].status = error.status
        self.close(session.key)

    def close(self, key: str) -> None:
        """See `StageCore`."""
        session, led = self.sessions.get(key), self.led.get(key)
        if session is not None and led is not None:
            prompt = session.opening.prompt
            made = len(session.ids) - prompt
            self._out.ended.append(Ended(session.id, led.request.agent, led.status, prompt, made))
        super().close(key)

    def _end_failed(self, session: Session, error: SwarmError) -> None:
        self.end(session, error)

    def _no_room(self, session: Session) -> None:
        if len(session.ids) <= session.opening.prompt:
            text = f"no node of stage {self.stage + 1} has a free slot: ask again later"
            self.end(session, ResourceExhausted(text, AGAIN_AFTER))

    @property
    def is_idle(self) -> bool:
        """See `StageCore`."""
        return not (self.sessions or self.admission.held or self.admission.waiting)

    def tick(self, now: float) -> None:
        """See `StageCore`."""
        for asked in self.admission.late(now):
            self._late(asked)
        for session in list(self.sessions.values()):
            led = self.led[session.key]
            session.touched = now
            if now >= led.deadline:
                made = len(session.ids) - session.opening.prompt
                text = f"the budget of {led.request.budget:g} s ended behind {made} tokens"
                self.end(session, DeadlineExceeded(text))
            elif led.waits is not None and now - led.waits > self._patience(led):
                self._probe(session, led, now)
        super().tick(now)

    def _patience(self, led: Led) -> float:
        usual = max(SOONEST_LATE, LATE_FACTOR * self._round.ewma)
        return min(usual * 2.0**led.probes, LATEST_LATE)

    def _probe(self, session: Session, led: Led, now: float) -> None:
        """Ask for the token again."""
        self.counts["probes"] += 1
        led.probes, led.round = led.probes + 1, None
        led.waits = now
        is_kept = bool(session.kept.chunks) and session.kept.end == len(session.ids)
        if not is_kept or session.kept.chunks[-1].position > session.sent:
            led.fed = min(led.fed, self._start(session, len(session.ids) - 1))
        else:
            self._forward(session, session.kept.chunks[-1], len(session.ids), now, probe=True)

    # --- leaving ------------------------------------------------------------------------

    def hand_over(self, now: float) -> None:
        """This node drains: other nodes of stage 1 go on with its sessions, where there are any."""
        for asked in self.admission.leave():
            self._late(asked)
        for session in list(self.sessions.values()):
            others = [each for each in self._peers(1) if each.node != self.node]
            node = choose(session.key, others, set(self._shunned))
            led = self.led[session.key]
            if not node:
                continue
            made = tuple(session.ids[session.opening.prompt :])
            left = max(0.0, led.deadline - now)
            told = replace(led.request, key="")  # its client has been given it
            request = replace(told, made=made, epoch=session.epoch, head=node, budget=left)
            self._out.passes.append(Pass(node, request, session.opening.reply))
            self.drop(session.key)

    def drop(self, key: str) -> None:
        """See `StageCore`."""
        super().drop(key)
        self.led.pop(key, None)
        self.admission.free(key)
        self.admission.forget(key)
        self._admit()

    def computed(self, run: StageRun, rows: np.ndarray, now: float) -> None:
        """See `StageCore`."""
        super().computed(run, rows, now)
        self._admit()

    def failed(self, run: StageRun, error: Exception) -> None:
        """See `StageCore`."""
        super().failed(run, error)
        self._admit()


def _made(request: GenerateRequest) -> tuple[int, ...]:
    """The tokens behind which to go on: the last one that may be asked for is chosen anew, so that
    its finish is told."""
    return request.made[: request.max_tokens - 1]
