"""How a node asks the models of a composition: with shares of one budget."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from nodes.audit import Audit
from nodes.compose.kept import PartAnswers
from nodes.compose.referring import ReferredTensors, pays, referable
from nodes.compose.telling import AskedParts, what_is
from nodes.stage.counters import histogram, latencies
from shards.cache.answers import JOINED_SHARE
from shards.compose.composition import AskPart, Composition, needed, parts_asked
from shards.compose.run import AskModel, NotAnswered, PartRun, Tensors
from swarm.errors import DeadlineExceeded, NotFound, Status, SwarmError, Unavailable
from swarm.fleet.placement import Served
from swarm.flow.latency import LatencyWindow
from swarm.mesh import Mesh
from swarm.model import ModelInfo
from swarm.requests.request import answered
from swarm.wire.messages import Features, Request, Result
from swarm.wire.tensors import are_referred
from swarm.wire.urgency import NAME_OF

NO_NODE = "no node serves it"
MOST_TOLD = 32  # parts in a status, which is bounded in bytes
LEAST = 0.001  # seconds: what has less left is not asked
# Seconds for which a model without a node is no trouble: a killed node is started again, or one
# of a version that has just begun to serve is heard of, within that time.
NOBODY_FOR = 10.0
MOST_STALLED = 128  # requests that wait for a model without a node
# Of the time that is left, and seconds at most: so much earlier a request that has waited in vain
# for a model without a node ends, and its requester hears why.
TO_SAY_WHY, MOST_TO_SAY_WHY = 0.1, 0.25


class PartsAsked:
    """Asks the models of one composition, and learns how long its parts take.

    A part that is needed has all of the budget that is left, less the usual 99th percentile of what
    comes behind it. So an optional part ends in time for the rest to do without it.

    A model that nobody serves is asked all the same: its lane keeps the request until a node comes,
    as it keeps those of any client. A part that is optional is left out once no node has served its
    model for `NOBODY_FOR`. on_stall: called when a run waits for such a model.
    """

    def __init__(
        self,
        mesh: Mesh,
        composition: Composition,
        models: Mapping[str, ModelInfo],
        audit: Audit | None = None,
    ) -> None:
        """models: by part. audit: puts on record what is asked."""
        self._mesh = mesh
        self._models = models
        self._audit = audit
        self.on_stall: Callable[[], None] = lambda: None
        self._stalled: Counter[AskedParts] = Counter()  # how many requests of a run wait so
        self._nobody: dict[str, float] = {}  # since when nobody serves a part's model
        self._behind = dict(_behind(composition))
        self._referable = {} if audit is not None else referable(composition)
        self._parts = composition.parts
        self._kept = {
            part.name: PartAnswers(part.cache, part.each_row)
            for part in composition.asks()
            if part.cache is not None
        }
        self._took = {name: LatencyWindow() for name in composition.parts}
        self._counters = {
            name: {"runs": 0, "left_out": 0, "cancelled": 0} for name in composition.parts
        }

    @property
    def sends_spans(self) -> bool:
        """Whether this node itself sends the spans of what it asks."""
        return self._mesh.tracer is not None

    def referred(self) -> ReferredTensors:
        """For a run; end it behind that."""
        return ReferredTensors(self._mesh.link)

    def of(
        self, features: Features, expires: float, asked: AskedParts, referred: ReferredTensors
    ) -> AskModel:
        """What asks for a run. expires: `time.monotonic()`, when its budget ends. asked: what is
        told of a traced request. Raises NotAnswered."""

        async def ask_once(part: AskPart, tensors: Tensors, refer: tuple[str, ...] = ()) -> Result:
            now = time.monotonic()
            left = expires - now - (self._rest(part.name, now) if part.optional else 0.0)
            name = f"{part.model}@{part.version}"
            try:
                if part.optional and self._is_unserved(part.name, now):
                    raise Unavailable(NO_NODE)
                if left < LEAST:
                    raise DeadlineExceeded(f"{left * 1e3:.1f} ms are left")
                if is_stalled := part.name in self._nobody:
                    self._stall(asked)
                    left -= min(MOST_TO_SAY_WHY, TO_SAY_WHY * left)
                header = asked.header(part.name)
                try:
                    result = await self._mesh.ask(
                        name,
                        tensors,
                        left,
                        features.session,
                        traceparent=header,
                        allow_degraded=False,  # its answer would not say so
                        priority=NAME_OF[features.urgency],
                        agent=features.agent,
                        refer=refer,
                    )
                finally:
                    if is_stalled:
                        self._go_on(asked)
                if self._audit is not None:
                    request = Request(tensors, result.id, agent=features.agent)
                    self._audit.asked(name, request, result)
                late = result.status in (Status.DEADLINE_EXCEEDED, Status.UNAVAILABLE)
                if late and part.name in self._nobody:
                    raise Unavailable(f"{NO_NODE} ({result.message})")
                answer = answered(result)
            except SwarmError as error:
                raise NotAnswered(f"part {part.name!r}, {name}: {error}") from error
            asked.answered(part.name, now, answer)
            if refer:
                referred.made(part, tensors, answer.outputs)
            return answer

        async def ask(part: AskPart, tensors: Tensors, refer: tuple[str, ...] = ()) -> Result:
            try:
                return await ask_once(part, tensors, refer)
            except NotAnswered as error:
                if not (are_referred(tensors) and isinstance(error.__cause__, NotFound)):
                    raise
            # The node that had them is gone, or hangs.
            return await ask_once(part, await referred.replaced(tensors, ask_plainly), refer)

        async def ask_plainly(part: AskPart, tensors: Tensors) -> Tensors:
            return dict((await ask(part, tensors)).outputs)

        async def ask_or_recall(part: AskPart, tensors: Tensors) -> Tensors:
            kept = self._kept.get(part.name)
            if kept is None or features.session or features.shadow:
                return dict((await ask(part, tensors, self._refer(part.name))).outputs)
            wait = (expires - time.monotonic()) * JOINED_SHARE
            outputs, hits = await kept.asked(tensors, partial(ask, part), wait)
            asked.recalled(part.name, hits)
            return outputs

        return ask_or_recall

    def _refer(self, part: str) -> tuple[str, ...]:
        """The outputs of a part's model that it is asked to refer to."""
        if not (referable := self._referable.get(part)) or self._mesh.rollouts.follows:
            return ()  # copies for a version on trial would come when the tensors are gone
        of, placement = self._models, self._mesh.placement
        return tuple(
            name
            for name, readers in referable.items()
            if pays(placement, of[part], [of[reader] for reader in readers])
        )

    @property
    def stalled(self) -> int:
        """Runs that wait for a model without a node."""
        return len(self._stalled)

    def _stall(self, run: AskedParts) -> None:
        if run not in self._stalled and len(self._stalled) >= MOST_STALLED:
            raise Unavailable(f"{NO_NODE}, and {MOST_STALLED} requests wait for one already")
        self._stalled[run] += 1
        self.on_stall()

    def _go_on(self, run: AskedParts) -> None:
        self._stalled[run] -= 1
        if not self._stalled[run]:
            del self._stalled[run]

    def look(self, now: float) -> None:
        """Learn which models nobody serves at present."""
        for name, info in self._models.items():
            if self._mesh.placement.served(info) is not Served.NOWHERE:
                self._nobody.pop(name, None)
            else:
                self._nobody.setdefault(name, now)

    def waits_for(self, now: float) -> list[str]:
        """The versions, NAME@VERSION, that nobody has served for a while."""
        return sorted(
            {f"{i.model}@{i.version}" for n, i in self._models.items() if self._is_unserved(n, now)}
        )

    def _is_unserved(self, part: str, now: float) -> bool:
        return part in self._nobody and now - self._nobody[part] >= NOBODY_FOR

    def learn(self, parts: Mapping[str, PartRun]) -> None:
        """How long parts took in a run that ended well."""
        for name, part in parts.items():
            outcome = "left_out" if part.left_out else "runs" if part.ended else "cancelled"
            self._counters[name][outcome] += 1
            # The time of a part that stands for others is theirs.
            if outcome == "runs" and not parts_asked(self._parts[name]):
                self._took[name].add(part.ended - part.began, part.ended)

    def rows(self, now: float) -> list[dict[str, Any]]:
        """Of the status: each of the first parts, and how long it takes."""
        told: list[dict[str, Any]] = []
        for name, part in [*self._parts.items()][:MOST_TOLD]:
            row = {"part": name, "is": what_is(part), "counters": dict(self._counters[name])}
            if not parts_asked(part):
                took = self._took[name]
                row |= {"ms": latencies(took, now), "seconds": histogram(took)}
            told.append(row)
        return told

    def _rest(self, name: str, now: float) -> float:
        """Seconds that what comes behind a part usually takes at most."""
        return max(
            (
                sum(self._took[each].percentile(0.99, now) for each in way)
                for way in self._behind[name]
            ),
            default=0.0,
        )


def _behind(composition: Composition) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """For each part the ways from it to the outputs, without itself."""
    readers: dict[str, list[str]] = {name: [] for name in composition.parts}
    for part in composition.parts.values():
        for name in set(needed(part)):
            readers[name].append(part.name)

    known: dict[str, list[tuple[str, ...]]] = {}

    def ways(name: str) -> list[tuple[str, ...]]:
        if name not in known:
            known[name] = [
                (reader, *way) for reader in readers[name] for way in (ways(reader) or [()])
            ][:MOST_WAYS]
        return known[name]

    for name in composition.parts:
        yield name, ways(name)


MOST_WAYS = 256  # from a part to the outputs that are looked at
