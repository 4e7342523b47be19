"""The exchange of what nodes learn, over NATS: drives `swarm.learning.consensus.participant`.

Deltas are published on `swarm.<mesh>.deltas.<model>.<node>`, to which the node's neighbours listen.
Who learns, and how far each one is, comes by gossip. A neighbour that lacks a delta asks on
`swarm.<mesh>.resync.<model>.<node>` for the whole. What is too large for a message lies in the
object store, and the message names its size and its hash.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import numpy as np

from swarm.errors import SwarmError
from swarm.fleet.advertised import learners, learns_entry
from swarm.fleet.membership import Membership
from swarm.learning.consensus.layout import Layout
from swarm.learning.consensus.options import LearningOptions
from swarm.learning.consensus.participant import (
    MOST_WAITING,
    AskSnapshot,
    ConsensusEvent,
    Effect,
    Fetch,
    Participant,
    Publish,
)
from swarm.learning.consensus.wire import Scope
from swarm.learning.subjects import LearningSubjects
from swarm.link import Link, LinkMessage
from swarm.periodic import BEAT, beat
from swarm.security.identity import Identity
from swarm.security.trusted_keys import AllowList
from swarm.subjects import Subjects

log = logging.getLogger("swarm.learning")

FOLLOW_EVERY = BEAT  # seconds
ANNOUNCE_EVERY = 5 * BEAT  # seconds between two words of gossip on how far this node is
ANSWER_WITHIN = 5.0  # seconds for a snapshot

Tensors = Mapping[str, np.ndarray]


class DeltaExchange:
    """One node's part in learning one model version; `run()` serves it until cancelled.

    Not thread-safe: `step`, `mix` and `reset` are called on the event loop that runs `run`.

    identity: the key pair that this node gossips (`swarm.security.attestation`). base: SHA-256 (32
    bytes) of what all learners of this version begin from. parameters: float32 arrays to begin
    with, by name; their names and shapes are the same at all learners. epoch: see
    `swarm.learning.record`.
    """

    def __init__(
        self,
        link: Link,
        subjects: Subjects,
        membership: Membership,
        identity: Identity,
        model: str,
        version: str,
        base: bytes,
        parameters: Tensors,
        *,
        epoch: int = 0,
        options: LearningOptions | None = None,
        allowed: AllowList | None = None,
    ) -> None:
        layout = Layout.of(parameters)
        self._link = link
        self._subjects = LearningSubjects.of(subjects)
        self._membership = membership
        self._layout = layout
        self._model = model
        self._participant = Participant(
            membership.node,
            identity,
            Scope(subjects.mesh, model, version, base, epoch),
            layout,
            layout.flatten(parameters),
            run=time.time_ns() // 1_000_000,
            rng=random.Random(),
            options=options,
            allowed=allowed,
        )
        self.failures: Counter[str] = Counter()
        self._callbacks: list[Callable[[ConsensusEvent], None]] = []
        self._peers: dict[str, str] = {}
        self._subscribed: dict[str, int] = {}
        self._announced = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._fetching: dict[str, deque[bytes]] = {}
        self._sending: deque[Publish] | None = None

    # -- what the learner asks -------------------------------------------------------------------

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        """This node's parameters, float32, as copies."""
        return self._layout.unflatten(self._participant.x)

    @property
    def consensus(self) -> dict[str, np.ndarray]:
        """The mean of this node's parameters and of its neighbours', as far as it knows them."""
        return self._layout.unflatten(self._participant.consensus())

    @property
    def consensus_distance(self) -> float:
        """Root of the mean squared distance to the neighbours' estimates."""
        return self._participant.consensus_distance()

    @property
    def epoch(self) -> int:
        """Deltas of another epoch are refused."""
        return self._participant.scope.epoch

    @property
    def neighbours(self) -> frozenset[str]:
        """The nodes whose deltas are taken."""
        return self._participant.neighbours

    @property
    def followed(self) -> frozenset[str]:
        """The neighbours whose estimate this node holds in lock-step."""
        return self._participant.followed

    @property
    def participants(self) -> frozenset[str]:
        """The nodes that learn this version now, this one included."""
        return frozenset(self._peers) | {self._participant.node}

    @property
    def copies(self) -> dict[str, dict[str, np.ndarray]]:
        """The parameters of each followed neighbour, as it published them."""
        copies = {node: self._participant.copy_of(node) for node in self.followed}
        return {
            node: self._layout.unflatten(copy[2])
            for node, copy in copies.items()
            if copy is not None
        }

    @property
    def participant(self) -> Participant:
        """The state machine, for figures and tests."""
        return self._participant

    @property
    def counters(self) -> dict[str, Any]:
        """Figures for a status document: bytes and messages, refusals by reason and by sender."""
        participant = self._participant
        run, sequence = participant.position
        return {
            "run": run,
            "sequence": sequence,
            "epoch": self.epoch,
            "neighbours": len(self.neighbours),
            "followed": len(self.followed),
            "doubted": sorted(participant.doubted),
            "blocked": sorted(participant.blocked),
            "step_size": participant.step_size,
            "consensus_distance": participant.consensus_distance(),
            "sent_bytes": participant.sent_bytes,
            "received_bytes": participant.received_bytes,
            "accepted": participant.accepted,
            "refused": {str(r): n for r, n in participant.refusals.total.items()},
            "refused_by_sender": participant.refusals.by_sender(),
            "failures": dict(self.failures),
        }

    def on_event(self, callback: Callable[[ConsensusEvent], None]) -> None:
        """Call back for each event: `refused`, `doubted`, `trusted`, `diverging`."""
        self._callbacks.append(callback)

    # -- what the learner does -------------------------------------------------------------------

    def mix(self) -> None:
        """Move towards the neighbours by what has come; call it before `parameters` are read for
        the next local update."""
        self._apply(self._participant.mix(time.monotonic()))

    def step(self, update: Tensors) -> None:
        """Move by a local update (what is to be added to each parameter) and tell the neighbours.

        Mixes first, unless `mix` was called since the last step. Raises `InvalidArgument` for other
        names or shapes, `ValueError` for an update that is not finite.
        """
        change = self._layout.flatten(update)
        self._apply(self._participant.step(change, time.monotonic()))

    def catch_up(self) -> bool:
        """Begin from the middle of the neighbours' estimates, as far as they are held; whether
        there was one."""
        return self._participant.catch_up()

    def reset(self, parameters: Tensors, epoch: int) -> None:
        """Begin anew from these parameters, in a later epoch. Raises `InvalidArgument`,
        `ValueError` for an epoch that is not later."""
        start = self._layout.flatten(parameters)
        self._apply(self._participant.reset(start, epoch, time.monotonic()))
        self._announced = 0.0

    def block(self, node: str) -> bool:
        """Take nothing more of this node's key; whether that is news."""
        return self._participant.block(node)

    # -- the mesh --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take part until cancelled."""
        own = self._subjects.resync(self._model, self._participant.node)
        sid = self._link.subscribe(own, self._asked)
        try:
            while True:
                self._follow_fleet()
                await beat(FOLLOW_EVERY)
        finally:
            self._link.unsubscribe(sid)
            for subscription in self._subscribed.values():
                self._link.unsubscribe(subscription)
            self._subscribed.clear()
            self._membership.delete(self._entry()[0])
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _follow_fleet(self) -> None:
        """Follow the fleet: who learns with this node, and how far each one is."""
        now, participant = time.monotonic(), self._participant
        found = learners(self._membership.view().values(), *participant.scope)
        others = [peer for peer in found if peer.node != participant.node]
        peers = {peer.node: peer.key for peer in others}
        if peers != self._peers:
            self._peers = peers
            self._apply(participant.set_peers(peers, now))
            self._subscribe()
        for peer in others:
            self._apply(participant.heard_of(peer.node, peer.run, peer.sequence, now))
        self._apply(participant.tend(now))
        if now - self._announced >= ANNOUNCE_EVERY:
            self._announced = now
            key, value = self._entry()
            self._membership.set(key, value)

    def _entry(self) -> tuple[str, list[Any]]:
        scope = self._participant.scope
        run, sequence = self._participant.position
        return learns_entry(scope.model, scope.version, scope.base, scope.epoch, run, sequence)

    def _subscribe(self) -> None:
        wanted = self._participant.neighbours
        for node in self._subscribed.keys() - wanted:
            self._link.unsubscribe(self._subscribed.pop(node))
            self._fetching.pop(node, None)
        for node in wanted - self._subscribed.keys():
            subject = self._subjects.deltas(self._model, node)
            self._subscribed[node] = self._link.subscribe(subject, self._heard(node))

    def _heard(self, node: str) -> Callable[[LinkMessage], None]:
        return lambda message: self._take(node, message.data)

    def _take(self, node: str, payload: bytes | memoryview) -> None:
        waiting = self._fetching.get(node)
        if waiting is None:
            self._apply(self._participant.on_message(node, payload, time.monotonic()))
        elif len(waiting) < MOST_WAITING:
            # Deltas are taken in order: these follow the one that is being fetched.
            waiting.append(bytes(payload))

    def _apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Publish):
                self._publish(effect)
            elif isinstance(effect, AskSnapshot):
                self._ask(effect)
            elif isinstance(effect, Fetch):
                self._fetching.setdefault(effect.node, deque())
                self._own(self._fetch(effect))
            else:
                self._tell(effect)

    def _tell(self, event: ConsensusEvent) -> None:
        log.info("%s %s: %s", event.kind, event.node, event.detail)
        for callback in self._callbacks:
            callback(event)

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="learning")
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.failures["task"] += 1
            log.error("learning: a task failed", exc_info=task.exception())

    # -- sending ---------------------------------------------------------------------------------

    def _publish(self, effect: Publish) -> None:
        if self._sending is not None:
            # Behind the one whose object is being stored: neighbours take deltas in order.
            if len(self._sending) < MOST_WAITING:
                self._sending.append(effect)
            else:
                self.failures["unsent"] += 1
        elif effect.stored:
            self._sending = deque([effect])
            self._own(self._send_stored())
        else:
            self._send(self._subjects.deltas(self._model, self._participant.node), effect.payload)

    async def _send_stored(self) -> None:
        subject = self._subjects.deltas(self._model, self._participant.node)
        assert self._sending is not None
        try:
            while self._sending:
                effect = self._sending[0]
                if await self._store(effect):
                    self._send(subject, effect.payload)
                self._sending.popleft()
        finally:
            self._sending = None

    async def _store(self, effect: Publish) -> bool:
        from swarm.learning import delta_store

        if not effect.stored:
            return True
        bucket = self._subjects.deltas_bucket
        try:
            await delta_store.put(self._link.options, bucket, effect.name, effect.stored)
        except SwarmError as error:
            self.failures["not_stored"] += 1
            log.warning("a delta is not sent: %s", error)
            return False
        return True

    def _send(self, subject: str, payload: bytes) -> None:
        """What is not sent shows at the neighbours as a gap, and they ask for the whole."""
        try:
            self._link.publish(subject, payload)
        except SwarmError as error:
            self.failures["unsent"] += 1
            log.debug("not sent: %s", error)

    # -- snapshots -------------------------------------------------------------------------------

    def _ask(self, effect: AskSnapshot) -> None:
        def answered(message: LinkMessage) -> None:
            timer.cancel()
            self._link.forget(reply)
            if not message.status:  # else nobody listens: gossip will say why
                now = time.monotonic()
                self._apply(self._participant.on_snapshot(effect.node, message.data, now))

        reply = self._link.expect(answered)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(ANSWER_WITHIN, self._link.forget, reply)
        subject = self._subjects.resync(self._model, effect.node)
        try:
            self._link.publish(subject, effect.payload, reply)
        except SwarmError as error:
            timer.cancel()
            self._link.forget(reply)
            log.debug("not asked: %s", error)

    def _asked(self, message: LinkMessage) -> None:
        answer = self._participant.on_request(message.data, time.monotonic())
        if answer is None or not message.reply:
            return
        if isinstance(answer, bytes):
            self._send(message.reply, answer)
        else:
            self._own(self._answer_stored(message.reply, answer))

    async def _answer_stored(self, reply: str, answer: Publish) -> None:
        if await self._store(answer):
            self._send(reply, answer.payload)

    async def _fetch(self, fetch: Fetch) -> None:
        from swarm.learning import delta_store

        bucket = self._subjects.deltas_bucket
        data: bytes | None = None
        try:
            data = await delta_store.get(self._link.options, bucket, fetch.name, fetch.size)
        except SwarmError as error:
            self.failures["not_fetched"] += 1
            log.warning("a delta is not taken: %s", error)
        finally:
            waiting = self._fetching.pop(fetch.node, deque())
        self._apply(self._participant.on_stored(fetch, data, time.monotonic()))
        for payload in waiting:
            self._take(fetch.node, payload)
