"""Sessions over stages in virtual time: real decisions and encodings, simulated nodes and links.

Each node holds a decoder of numpy: a true function of (input, position) over all inputs before.
Nodes die with all that they hold, come back as new ones, hang and go on; links lose messages, and
wild ones also hold some back behind later ones, and deliver some twice.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from random import Random
from typing import Any

import numpy as np

from swarm.errors import SwarmError
from swarm.language.admission import Shares
from swarm.language.choice import SlotCandidate
from swarm.language.effects import Guessing, Outbox, Tell
from swarm.language.follow import Follower, GeneratedToken
from swarm.language.head import HeadCore
from swarm.language.keys import admitted, session_id
from swarm.language.limits import USUAL, LanguageLimits, Shape
from swarm.language.prefixes import PrefixCopy
from swarm.language.request import GenerateRequest
from swarm.language.sampling import choose
from swarm.language.speculation import Benefit, Drafter
from swarm.language.stage import StageCore
from swarm.language.steps import Forward, decode_words, encode_words
from swarm.language.turns import StageRun
from swarm.wire.maps import pack, unpack_map

WIDTH, VOCABULARY, CONTEXT = 8, 41, 400
TICK = 0.1  # seconds
LATEST = 0.3  # seconds that a message is held back at most
LATE_GUESS = 0.3  # seconds
SEEN_DEAD, SEEN_HUNG = 0.2, 1.0  # seconds until gossip knows it


class Always(Benefit):
    """Drafts in each round, whether they pay or not."""

    @property
    def wants_drafts(self) -> bool:
        return True


class HalfRight:
    """Drafts that begin as the text goes on, and end otherwise. texts: whole ones, by prompt."""

    def __init__(self, rng: Random, texts: Sequence[Sequence[int]]) -> None:
        self._rng, self._texts = rng, texts

    def draft(self, ids: Sequence[int], most: int) -> tuple[int, ...]:
        right = next((t for t in self._texts if list(t[: len(ids)]) == list(ids)), ())
        good = right[len(ids) : len(ids) + self._rng.randint(0, max(most, 0))]
        wrong = [self._rng.randrange(VOCABULARY) for _ in range(self._rng.randint(0, 2))]
        return tuple([*good, *wrong][: max(most, 0)])


class NumpyDecoder:
    """One stage's layers: a decaying sum over all tokens before, and a nonlinear map."""

    def __init__(self, stage: int, last: int, slots: int) -> None:
        weights = np.random.default_rng(stage)
        self.first, self.last = stage == 1, stage == last
        self._map = weights.normal(size=(WIDTH, WIDTH))
        self._embeddings = weights.normal(size=(VOCABULARY, WIDTH))
        self._head = np.random.default_rng(99).normal(size=(WIDTH, VOCABULARY))
        self._sums = np.zeros((slots, CONTEXT + 1, WIDTH))

    def copy(self, source: int, target: int, tokens: int) -> None:
        self._sums[target, : tokens + 1] = self._sums[source, : tokens + 1]
        self._sums[target, tokens + 1 :] = np.nan

    def run(
        self, rows: np.ndarray, slot: int, positions: np.ndarray, logits: int = 1
    ) -> np.ndarray:
        hidden = self._embeddings[rows] if self.first else rows.astype(np.float64)
        out = np.empty(hidden.shape, np.float32)
        for at in range(hidden.shape[0]):
            sums = self._sums[slot + at]
            for row in range(hidden.shape[1]):
                position = int(positions[at]) + row
                sums[position + 1] = 0.8 * sums[position] + hidden[at, row]
                out[at, row] = np.tanh(sums[position + 1] @ self._map)
        if not self.last:
            return out
        chosen = out[:, -logits:] if logits > 1 else out[:, -1]
        return 3.0 * (chosen.astype(np.float64) @ self._head)


def whole(request: GenerateRequest, last: int) -> list[int]:
    """The tokens of a request by one process with all stages."""
    stages = [NumpyDecoder(stage, last, 1) for stage in range(1, last + 1)]
    ids = list(request.prompt)
    fed = 0
    while len(ids) - len(request.prompt) < request.max_tokens:
        rows = np.array([ids[fed:]], np.int64)
        for stage in stages:
            rows = stage.run(rows, 0, np.array([fed]))
        fed = len(ids)
        ids.append(choose(rows[0].astype(np.float32), request.sampling, ids).token)
        if ids[-1] in request.stop_ids:
            break
    return ids[len(request.prompt) :]


@dataclass
class Node:
    """A process: a stage or several, each with its decisions and its decoder."""

    name: str
    priority: int
    cores: dict[int, tuple[StageCore, NumpyDecoder]]
    alive: bool = True
    hung: bool = False
    draining: bool = False
    known: bool = True  # gossip lists it
    held: list[Callable[[], None]] = field(default_factory=list)
    busy: set[int] = field(default_factory=set)
    follows: bool = False
    told: dict[int, tuple[int, int, bool, bytes]] = field(default_factory=dict)  # as gossip has it


@dataclass
class Client:
    follower: Follower
    inbox: str
    tokens: list[GeneratedToken] = field(default_factory=list)
    times: list[float] = field(default_factory=list)


class World:
    """last: stages. One agent may have all slots. Times are seconds from 0. loss, wild: parts of
    the messages between nodes that are lost, and that come late or twice. drafter: of each
    session, whether it pays or not; None for what nodes do. model: answers as a draft model does,
    one time in five too late, whether it pays or not. tick: between looks of a node."""

    def __init__(
        self,
        last: int,
        seed: int,
        *,
        loss: float = 0.0,
        wild: float = 0.0,
        slots: int = 4,
        limits: LanguageLimits = USUAL,
        latency: tuple[float, float] = (0.0002, 0.002),
        drafter: Callable[[], Drafter] | None = None,
        model: Drafter | None = None,
        tick: float = TICK,
    ) -> None:
        self.tick = tick
        self.last, self.now, self.loss, self.wild = last, 0.0, loss, wild
        self.rng = Random(seed)
        self.nodes: dict[str, Node] = {}
        self.clients: dict[str, Client] = {}
        self._heard: dict[str, list[dict[str, Any]]] = {}  # by inboxes of no client
        self._slots, self._latency, self._drafter = slots, latency, drafter
        self._model = model
        self._limits = replace(limits, shares=Shares(share=1.0))
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._links: dict[tuple[str, str], float] = {}

    # --- time -------------------------------------------------------------------------

    def at(self, when: float, work: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (when, self._sequence, work))

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> None:
        while self._heap and self._heap[0][0] <= until and not done():
            self.now, _, work = heapq.heappop(self._heap)
            work()
        self.now = max(self.now, until) if not done() else self.now

    def _send(self, source: str, target: str, work: Callable[[], None]) -> None:
        """Messages of one link arrive in order, or not at all; wild ones late, or twice."""
        if self.rng.random() < self.loss:
            return
        if self.wild and "client" not in (source, target):
            for chance in (self.rng.random(), self.rng.random()):
                if chance < self.wild / 2:
                    self.at(self.now + self.rng.uniform(0.0, LATEST), work)
                    if chance < self.wild / 4:
                        return
        arrives = max(
            self.now + self.rng.uniform(*self._latency), self._links.get((source, target), 0.0)
        )
        self._links[(source, target)] = arrives + 1e-9
        self.at(arrives, work)

    # --- nodes ------------------------------------------------------------------------

    def join(
        self, name: str, stages: Iterable[int], priority: int = 0, follows: bool = False
    ) -> Node:
        node = self.nodes[name] = Node(name, priority, {}, follows=follows)
        for stage in stages:
            shape = Shape(WIDTH, CONTEXT, self._slots, 64)
            core: StageCore
            if stage == 1:
                to = f"{name}/1"
                core = head = HeadCore(
                    self.last,
                    name,
                    shape,
                    self._peers,
                    to,
                    limits=self._limits,
                    has_draft_model=self._model is not None,
                )
                if self._drafter is not None:
                    head.drafter, head.speculation.lookup = self._drafter, Always()
                if self._model is not None:
                    head.speculation.model = Always()
            else:
                core = StageCore(stage, self.last, name, shape, self._peers, self._limits)
            node.cores[stage] = (core, NumpyDecoder(stage, self.last, self._slots))
            self.at(self.now + self.tick, partial(self._tick, node, core))
        return node

    def _peers(self, stage: int) -> list[SlotCandidate]:
        return [
            SlotCandidate(node.name, node.priority, node.draining, *node.told.get(stage, ()))
            for node in self.nodes.values()
            if stage in node.cores and node.known
        ]

    def kill(self, name: str) -> None:
        node = self.nodes[name]
        node.alive = False
        self.at(self.now + SEEN_DEAD, lambda: self._lost(node))

    def hang(self, name: str, seconds: float) -> None:
        node = self.nodes[name]
        node.hung = True

        def seen() -> None:
            if node.hung and node.alive:
                self._lost(node)

        def back() -> None:
            if not node.alive:
                return
            node.hung = node.known = False
            held, node.held = node.held, []
            for work in held:
                work()
            node.known = True

        self.at(self.now + SEEN_HUNG, seen)
        self.at(self.now + seconds, back)

    def drain(self, name: str) -> None:
        """As on SIGTERM: others go on with its sessions, then it ends."""
        node = self.nodes[name]
        node.draining = True
        for core, _ in node.cores.values():
            core.drain()
            if isinstance(core, HeadCore):
                core.hand_over(self.now)
            self._after(node, core)
        self.at(self.now + 3.0, lambda: self.kill(name) if node.alive else None)

    def _lost(self, node: Node) -> None:
        node.known = False
        for other in self.nodes.values():
            if other.alive and other is not node:
                for core, _ in other.cores.values():
                    self._do(other, partial(self._gone, other, core, node.name))

    def _gone(self, node: Node, core: StageCore, dead: str) -> None:
        core.gone(dead, self.now)
        self._after(node, core)

    def _do(self, node: Node, work: Callable[[], None]) -> None:
        """What a process does; later, where it hangs."""
        if not node.alive:
            return
        if node.hung:
            node.held.append(work)
        else:
            work()

    def _tick(self, node: Node, core: StageCore) -> None:
        def tick() -> None:
            core.tick(self.now)
            node.told[core.stage] = (core.served, self._slots, node.follows, core.marks())
            self._after(node, core)

        self._do(node, tick)
        if node.alive:
            self.at(self.now + self.tick, lambda: self._tick(node, core))

    # --- what a shell does ------------------------------------------------------------

    def _after(self, node: Node, core: StageCore) -> None:
        for each in core.prepares():
            assert isinstance(core, HeadCore)
            core.prepared(each.request, each.reply, self.now)
        self._deliver(node, core, core.flush())
        if core.stage not in node.busy and (runs := core.plan(self.now)):
            node.busy.add(core.stage)
            copies = core.copies()
            after = self.now + 0.001 * len(runs)
            self.at(after, lambda: self._compute(node, core, copies, runs))

    def _compute(
        self, node: Node, core: StageCore, copies: Sequence[PrefixCopy], runs: Sequence[StageRun]
    ) -> None:
        def compute() -> None:
            decoder = node.cores[core.stage][1]
            for copy in copies:
                decoder.copy(copy.source, copy.target, copy.tokens)
            for run in runs:
                if core.stage == 1:
                    rows = np.array([step.fed for _, step in run.steps], np.int64)
                else:
                    rows = np.stack([step.rows for _, step in run.steps if step.rows is not None])
                positions = np.array([step.position for _, step in run.steps])
                wanted = 1 + len(run.steps[0][1].drafts)
                core.computed(run, decoder.run(rows, run.slot, positions, wanted), self.now)
            node.busy.discard(core.stage)
            self._after(node, core)

        self._do(node, compute)

    def _deliver(self, node: Node, core: StageCore, out: Outbox) -> None:
        for name, message in (*out.forward.items(), *out.behind.items()):
            message.back = f"{node.name}/{core.stage}"
            data = b"".join(bytes(part) for part in message.parts())
            self._send(node.name, name, partial(self._arrived, node, core, name, data))
        for to, words in out.words.items():
            data = encode_words(node.name, words)
            self._send(node.name, to.partition("/")[0], partial(self._word, to, data))
        for asked in out.guesses:
            self._guess(node, core, asked)
        for tell in out.tells:
            self._send(node.name, "client", partial(self._tell, tell))
        for each in out.passes:
            self._send(node.name, each.node, partial(self._passed, node, core, each))

    def _guess(self, node: Node, core: StageCore, asked: Guessing) -> None:
        assert isinstance(core, HeadCore)
        assert self._model is not None
        model = self._model

        def guessed() -> None:
            core.guessed(asked, model.draft(asked.ids, asked.most))
            self._after(node, core)

        takes = LATE_GUESS if self.rng.random() < 0.2 else self.rng.uniform(0.0, 0.01)
        self.at(self.now + takes, lambda: self._do(node, guessed))
        self.at(self.now + asked.within, lambda: self._do(node, partial(self._after, node, core)))

    def _arrived(self, sender: Node, core: StageCore, name: str, data: bytes) -> None:
        target = self.nodes.get(name)
        if target is None or not target.alive:
            self._do(sender, lambda: self._gone(sender, core, name))
            return
        next_core = target.cores[core.stage + 1][0]

        def take() -> None:
            next_core.take(Forward.decode(data), self.now)
            self._after(target, next_core)

        self._do(target, take)

    def _word(self, to: str, data: bytes) -> None:
        name, _, stage = to.partition("/")
        target = self.nodes.get(name)
        if target is None or not target.alive:
            return
        core = target.cores[int(stage)][0]

        def hear() -> None:
            core.heard(*decode_words(data), self.now)
            self._after(target, core)

        self._do(target, hear)

    def _passed(self, sender: Node, core: StageCore, each: Any) -> None:
        target = self.nodes[each.node]
        if not target.alive:
            assert isinstance(core, HeadCore)

            def again() -> None:
                core.ask(each.request, each.reply, self.now, others=False)
                self._after(sender, core)

            self._do(sender, again)
            return
        self._ask(target, each.request, each.reply)

    def _ask(self, target: Node, request: GenerateRequest, reply: str) -> None:
        core = target.cores[1][0]
        assert isinstance(core, HeadCore)

        def ask() -> None:
            core.ask(request, reply, self.now)
            self._after(target, core)

        self._do(target, ask)

    # --- clients ----------------------------------------------------------------------

    def client(self, request: GenerateRequest, budget: float = 120.0) -> Client:
        """Who asks for a session of a key of its own. Its inbox is called as the request was."""
        inbox = request.session
        key = blake2b(inbox.encode(), digest_size=16).hexdigest()
        request = replace(request, key=key, session=session_id(key), budget=budget)
        client = self.clients[inbox] = Client(Follower(request, self.now + budget), inbox)
        self._client(client)
        return client

    def asks(self, request: GenerateRequest, inbox: str) -> None:
        """Somebody asks, as a client of its own making; `heard` is what it was told."""
        self._heard.setdefault(inbox, [])
        try:
            self._asked(admitted(request), inbox)
        except SwarmError as error:
            self._heard[inbox].append({"session": "", "status": str(error.status)})

    def heard(self, inbox: str) -> list[dict[str, Any]]:
        return self._heard.get(inbox, [])

    def _client(self, client: Client) -> None:
        """Time has passed for it, or something came."""
        request = client.follower.due(self.now)
        if request is not None:
            data, inbox = request.encode(), client.inbox
            self._send("client", "server", lambda: self._take(data, inbox))
        if not client.follower.done:
            self.at(client.follower.wake(self.now) + 1e-4, lambda: self._woken(client))

    def _take(self, data: bytes, inbox: str) -> None:
        self._asked(admitted(GenerateRequest.decode(data)), inbox)

    def _woken(self, client: Client) -> None:
        if not client.follower.done and client.follower.wake(self.now) <= self.now:
            self._client(client)

    def _asked(self, request: GenerateRequest, reply: str) -> None:
        """A queue group: one of those that listen, whether it hangs or not."""
        heads = [n for n in self.nodes.values() if n.alive and 1 in n.cores and not n.draining]
        if heads:
            self._ask(self.rng.choice(heads), request, reply)
        else:
            self._hear(reply, b"", b"503")

    def _tell(self, tell: Tell) -> None:
        doc = dict(tell.doc)
        if tell.error is not None:
            doc |= {"error": str(tell.error), "status": str(tell.error.status)}
        self._hear(tell.reply, pack(doc), b"")

    def _hear(self, reply: str, data: bytes, status: bytes) -> None:
        client = self.clients.get(reply)
        if client is None:
            if data and reply in self._heard:
                self._heard[reply].append(unpack_map(data, len(data)))
            return
        token = client.follower.take(data, status, self.now)
        if token is not None:
            client.tokens.append(token)
            client.times.append(self.now)
        self._client(client)
