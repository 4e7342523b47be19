"""A learner: takes samples of its host, trains the head in idle time, exchanges deltas, mints.

    samples ─► frozen features ─► training ─► exchange with neighbours ─► guard
                                                       │ now and then
                                                       ▼
                                        weight version in the ledger ─► all nodes that serve

It begins with the mesh's present weight version, so it has no state of its own to lose. Samples,
labels and features stay in this process.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from nodes.learning.frozen import FrozenModel
from nodes.learning.guard import LearningGuard, may_serve
from nodes.learning.head import Parameters
from nodes.learning.minting import is_due, is_news, rank
from nodes.learning.options import LearnOptions
from nodes.learning.privacy import epsilon_of
from nodes.learning.samples import SampleWindow
from nodes.learning.training import Training, change
from shards.errors import ShardsError
from swarm.errors import InvalidArgument, NotFound, SwarmError
from swarm.learning.exchange import DeltaExchange
from swarm.learning.record import Ledger
from swarm.learning.teaching import Taught
from swarm.learning.weights import Weights, ledger_of

log = logging.getLogger("swarm.learner")

MEET_TRIES = 10  # for neighbours, while a learner waits for them

T = TypeVar("T")


# (parameters to begin with, epoch)
MakeExchange = Callable[[Parameters, int], DeltaExchange]
Tell = Callable[[str, dict[str, Any]], None]


class Learner:
    """node: this node's id. samples: those of a version with the same features, or None. start:
    parameters to begin with where nothing was minted yet, None for the model's own. before: the
    learner of the same version that this one follows, whose weight version it knows though the
    server may have lost the ledger; it mints no number twice. make_exchange:
    joins the neighbours. in_background: runs blocking work in a thread of low priority. is_idle:
    whether the node serves nothing at this moment. tell: publishes an event.

    rounds, minted, reverted, skipped (the node was busy), diverged (the steps were too long): since
    the start. accuracy: on the held-out samples, in the
    last round; None before. refused: neighbours of which the guard takes nothing more.
    """

    def __init__(
        self,
        node: str,
        frozen: FrozenModel,
        weights: Weights,
        make_exchange: MakeExchange,
        options: LearnOptions,
        *,
        samples: SampleWindow | None = None,
        start: Parameters | None = None,
        before: Learner | None = None,
        in_background: Callable[[Callable[[], Any]], Awaitable[Any]],
        is_idle: Callable[[], bool],
        tell: Tell,
        seed: int | None = None,
    ) -> None:
        layout = frozen.layout
        self.frozen = frozen
        self.samples = samples or SampleWindow(
            layout.width, layout.classes, options.capacity, options.held_out
        )
        self.training = Training(layout, self.samples, options, seed)
        self.rounds = self.minted = self.reverted = self.skipped = self.diverged = 0
        self.accuracy: float | None = None
        self.refused: list[str] = []
        self.epsilon = 0.0
        self.n = 0  # the present weight version, as this node has seen it
        self._node = node
        self._weights = weights
        self._make_exchange = make_exchange
        self._exchange: DeltaExchange | None = None
        self._options = options
        self._in_background = in_background
        self._is_idle = is_idle
        self._tell = tell
        self._guard = LearningGuard()
        self._good: Parameters | None = None
        self._epoch = 0
        self._start = start or frozen.shipped
        self._present: Parameters = frozen.shipped
        self._step_seconds = 0.0  # of one step, when the last ones were made
        self._changed = asyncio.Event()
        self._changed_at = time.monotonic()
        if before is not None:
            self.n, self._epoch, self._present = before.minted_last

    # --- samples --------------------------------------------------------------------------

    def describe(self) -> Taught:
        """This learner, with counts of 0."""
        return self._taught(0, 0)

    async def take(self, version: str, inputs: dict[str, np.ndarray], labels: np.ndarray) -> Taught:
        """Keep samples, all of them or none. Raises `InvalidArgument`, `NotFound`."""
        count = self._check(version, inputs)
        self.samples.check_labels(labels, count)
        features = await self._features(inputs)
        added = self.samples.add(features, labels.astype(np.int64))
        return self._taught(added.trained_on, added.held_out)

    async def test(self, version: str, inputs: dict[str, np.ndarray], labels: np.ndarray) -> Taught:
        """The accuracy of this node's present weights on samples, which it does not keep. Raises
        `InvalidArgument`, `NotFound`."""
        count = self._check(version, inputs)
        if labels.shape != (count,):
            raise InvalidArgument(f"labels {list(labels.shape)} for {count} inputs: one each")
        features = await self._features(inputs)
        layout, parameters = self.frozen.layout, self._own
        return replace(self._taught(0, 0), accuracy=layout.accuracy(parameters, features, labels))

    def _check(self, version: str, inputs: Mapping[str, np.ndarray]) -> int:
        """The number of samples."""
        info = self.frozen.info
        if version and version != info.version:
            raise NotFound(f"this node learns {info.model}@{info.version}, not @{version}")
        return self.frozen.check(inputs)

    async def _features(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        try:
            features: np.ndarray = await self._in_background(lambda: self.frozen.features(inputs))
        except ShardsError as error:
            raise InvalidArgument(f"the model does not run on these inputs: {error}") from None
        return features

    @property
    def _own(self) -> Parameters:
        return self._start if self._exchange is None else self._exchange.parameters

    def _taught(self, trained_on: int, held_out: int) -> Taught:
        classes = tuple(self.samples.seen())
        return Taught(self._node, self.frozen.info.version, trained_on, held_out, classes)

    # --- the story ------------------------------------------------------------------------

    @property
    def parameters(self) -> Parameters:
        """What this node has learned; what it begins with, before."""
        return self._start if self._exchange is None else self._exchange.consensus

    @property
    def minted_last(self) -> tuple[int, int, Parameters]:
        """The present weight version as this node has seen it: number, epoch, parameters."""
        return self.n, self._epoch, self._present

    async def run(self) -> None:
        """Learn until cancelled."""
        info = self.frozen.info
        end = self._weights.watch(info.model, info.version, self._changed.set)
        try:
            await self._begin_from_ledger()
            start = self._present if self.n else self._start
            self._exchange = exchange = self._make_exchange(start, self._epoch)
            async with asyncio.TaskGroup() as group:
                group.create_task(exchange.run(), name="exchange")
                group.create_task(self._learn(exchange), name="rounds")
                group.create_task(self._mint_regularly(exchange), name="minting")
                if self._options.privacy.noise:
                    group.create_task(self._count_epsilon(), name="epsilon")
        finally:
            end()

    async def _begin_from_ledger(self) -> None:
        """Make the ledger's place, and begin with the present weight version."""
        reported = ""
        while True:
            try:
                await self._weights.prepare()
                await self._follow()
                return
            except SwarmError as error:  # whatever it is: to load all anew would not mend it
                log.warning("waiting: %s", error)
                if str(error) != reported:
                    reported = str(error)
                    self._tell("learning", {"what": "waiting", "detail": reported[:500]})
                await asyncio.sleep(self._options.retry_after)

    async def _learn(self, exchange: DeltaExchange) -> None:
        loop = asyncio.get_running_loop()
        await self._meet_neighbours(exchange)
        due = loop.time()
        while True:
            due = max(due + self._options.every, loop.time())
            await asyncio.sleep(due - loop.time())
            if self._changed.is_set():
                try:
                    await self._follow()
                except SwarmError as error:
                    log.warning("the weight versions could not be read: %s", error)
            if await self._until_idle():
                await self._round(exchange)
            else:
                self.skipped += 1

    async def _meet_neighbours(self, exchange: DeltaExchange) -> None:
        """Where nothing was minted yet, a node that comes late begins with its neighbours'
        parameters, if there are any soon."""
        for _ in range(MEET_TRIES):
            if self.n or exchange.catch_up():
                return
            await asyncio.sleep(self._options.meet_within / MEET_TRIES)

    async def _until_idle(self) -> bool:
        """Serving goes first; False where the node stayed busy."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._options.most_waiting
        while not self._is_idle():
            if loop.time() > end:
                return False
            await asyncio.sleep(self._options.poll_every)
        return True

    async def _round(self, exchange: DeltaExchange) -> None:
        exchange.mix()
        mixed = start = exchange.parameters
        if len(self.samples.held_out[1]):
            start = await self._judged(exchange, mixed)
        if self.training.can_learn:
            trained = await self._trained(start)
            if all(np.isfinite(value).all() for value in trained.values()):
                start = trained
            else:
                self.diverged += 1
                self.training.forget_velocity()
        exchange.step(change(mixed, start))
        self.rounds += 1

    async def _trained(self, parameters: Mapping[str, np.ndarray]) -> Parameters:
        """The parameters after a round of descent. Short steps are made on the event loop, one in
        each of its turns; a thread that computes in Python would hold up the loop for longer."""
        steps = self.training.round(parameters)
        if self._step_seconds > self._options.inline_below:
            trained: Parameters = await self._in_background(lambda: self._timed(list, steps)[-1])
            return trained
        now = dict(parameters)
        while (step := self._timed(next, steps, None)) is not None:
            now = step
            await asyncio.sleep(0)
        return now

    def _timed(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """What `work` gives; it makes one step, or all of a round."""
        before, began = self.training.steps, time.perf_counter()
        made = work(*arguments)
        if count := self.training.steps - before:
            self._step_seconds = (time.perf_counter() - began) / count
        return made

    # --- the guard ------------------------------------------------------------------------

    async def _judged(self, exchange: DeltaExchange, mixed: Parameters) -> Parameters:
        """The parameters to go on from: those given, or the last good ones."""
        training = self.training
        own = self.accuracy = training.accuracy(mixed)
        near: dict[str, float] = {}
        for name, copy in exchange.copies.items():
            near[name] = training.accuracy(copy)
            await asyncio.sleep(0)
        verdict = self._guard.judge(own, near, training.judged)
        for name in verdict.refuse:
            reason = (
                f"its weights have an accuracy of {near[name]:.2f} on samples held out here, "
                f"this node's have {own:.2f}"
            )
            log.warning("nothing more is taken of %s: %s", name, reason)
            exchange.block(name)
            self.refused.append(name)
            self._tell("learning", {"what": "blocked", "sender": name, "detail": reason})
        if verdict.good:
            self._good = mixed
        if not verdict.revert or self._good is None:
            return mixed
        self.reverted += 1
        training.forget_velocity()
        detail = f"held-out accuracy fell to {own:.2f}: back to the last good weights"
        log.warning("%s", detail)
        self._tell("learning", {"what": "reverted", "detail": detail})
        return self._good

    # --- weight versions ------------------------------------------------------------------

    async def _follow(self) -> None:
        """Take note of the present weight version; begin anew from it where somebody went back.

        Raises `SwarmError`; what was heard is looked at again then."""
        info = self.frozen.info
        try:
            stored = await self._weights.read(info.model, info.version)
            ledger = ledger_of(stored, self.frozen.base)
            record = ledger.present
            if record is None or record.n <= self.n:
                # Nothing new. A server that lost the ledger has less than this learner knows.
                self._changed.clear()
                return
            tensors = await self._weights.tensors(info.model, info.version, record)
            present = self.frozen.learned(tensors)
        except SwarmError:
            self._changed.set()
            raise
        self._changed.clear()
        self.n, self._present, self._changed_at = record.n, present, time.monotonic()
        if record.epoch != self._epoch:
            self._epoch = record.epoch
            if self._exchange is not None:
                self._exchange.reset(present, record.epoch)
            self._guard.forget()
            self._good = None
            self.training.forget_velocity()
            log.info("learning goes on from weight version %d, epoch %d", record.n, record.epoch)

    async def _mint_regularly(self, exchange: DeltaExchange) -> None:
        options = self._options
        while True:
            await asyncio.sleep(min(options.every, options.mint_every) / 2)
            info = self.frozen.info
            others = exchange.participants
            place = rank(info.model, info.version, self.n + 1, self._node, others)
            since = time.monotonic() - self._changed_at
            if not is_due(since, options.mint_every, options.mint_grace, place):
                continue
            try:
                await self._mint(exchange)
            except SwarmError as error:
                log.warning("no weight version was minted: %s", error)
                self._changed_at = time.monotonic()

    async def _mint(self, exchange: DeltaExchange) -> None:
        """Make the neighbourhood's mean the next weight version, if it is one worth serving."""
        info, training = self.frozen.info, self.training
        await self._weights.prepare()  # a server may have lost it
        stored = await self._weights.read(info.model, info.version)
        ledger = ledger_of(stored, self.frozen.base)
        if ledger.n > self.n:
            self._changed.set()
            return
        if ledger.n < self.n:
            # The server lost the ledger: the numbers, which nodes and sessions know, go on.
            ledger = Ledger(self.frozen.base, lost=(self.n, self._epoch))
            stored = replace(stored, document=ledger)
        candidate = exchange.consensus
        if not is_news(self._present, candidate):
            self._changed_at = time.monotonic()
            return
        now, new = training.accuracy(self._present), training.accuracy(candidate)
        if not may_serve(now, new, training.judged):
            self._changed_at = time.monotonic()
            detail = (
                f"its accuracy on samples held out here is {new:.2f}, "
                f"that of weight version {self.n} is {now:.2f}"
            )
            self._tell("learning", {"what": "not-minted", "detail": detail})
            return
        record = await self._weights.mint(
            info.model,
            info.version,
            self.frozen.base,
            stored,
            self.frozen.stored(candidate),
            by=self._node,
            at=time.time(),
            accuracy=new if training.judged else None,
            samples=training.judged,
            taught=[self._node, *exchange.copies],
        )
        self._changed.set()
        if record is None:
            return  # another learner was sooner
        self.minted += 1
        self.n, self._present, self._changed_at = record.n, candidate, time.monotonic()
        log.info("minted weight version %d, held-out accuracy %.3f", record.n, new)
        self._tell("learning", {"what": "minted", "weights": record.n, "accuracy": round(new, 4)})

    # --- figures --------------------------------------------------------------------------

    async def _count_epsilon(self) -> None:
        privacy = self._options.privacy
        while True:
            self.epsilon = await self._in_background(
                partial(epsilon_of, privacy, self.training.steps)
            )
            await asyncio.sleep(self._options.epsilon_every)

    def status(self) -> dict[str, Any]:
        """The field `learning` of this node's status documents. No figure of the samples but their
        numbers and classes, and the accuracy on those held out."""
        doc: dict[str, Any] = {
            "model": self.frozen.info.model,
            "version": self.frozen.info.version,
            "weights": self.n,
            "epoch": self._epoch,
            "rounds": self.rounds,
            "skipped": self.skipped,
            "diverged": self.diverged,
            "minted": self.minted,
            "reverted": self.reverted,
            "samples": len(self.samples.training[1]),
            "held_out": len(self.samples.held_out[1]),
            "accuracy": None if self.accuracy is None else round(self.accuracy, 4),
            "refused": list(self.refused),
        }
        if self._exchange is not None:
            doc["exchange"] = dict(self._exchange.counters)
        if self._options.privacy.noise:
            doc["epsilon"] = round(self.epsilon, 3)
            doc["delta"] = self._options.privacy.delta
        return doc
