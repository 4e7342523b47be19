"""Answers requests for an inference: those of `infer.<model>` from any NATS client, and an edge's.

The answerer checks a request, runs the model's first layers (stage 0) if the model was split with
edge layers, and asks the mesh as every requester does. Where a lighter model is at hand, it
answers what the mesh cannot answer in time; else the mesh's lighter model does, where the version
names one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from nodes.placing.choice import ChosenWay, EdgeWays, PlacingFacts
from nodes.placing.ways import NOWHERE, RequestWay
from nodes.requests.placer import Placer, decode_pictures
from nodes.stage.compute import BEHIND_FOR, BEHIND_SHARE
from nodes.stage.counters import histogram, latencies
from nodes.stage.endless import OnLoop
from nodes.stage.pictures import EXTRA, PictureReader
from nodes.stage.worker import Worker
from nodes.versions.loaded import EDGE, Loaded
from shards.errors import RunTerminated, ShardsError
from shards.runtimes.runtime import CancelToken
from swarm.errors import (
    DeadlineExceeded,
    Internal,
    NotFound,
    Status,
    SwarmError,
    Unavailable,
    retry_after_of,
)
from swarm.flow.latency import LatencyWindow
from swarm.ids import ulid
from swarm.mesh import Mesh
from swarm.model import ModelInfo
from swarm.models.trials import TriedRequest
from swarm.requests.lighter import LIGHTER_ANSWERS, may_degrade
from swarm.requests.request import Ask, check_budget
from swarm.requests.stood_in import StoodIn, in_place_of
from swarm.tracing.traceparent import checked
from swarm.wire.hops import Hop
from swarm.wire.messages import Request, Result
from swarm.wire.urgency import urgency_of

log = logging.getLogger("swarm.node")

LOOK_UP_SHARE = 0.5  # of a budget, for the question which version is desired
# Of a budget, in which a lane that takes nothing may come back before the lighter model answers.
IN_VAIN_SHARE = 0.25
LIGHTER_ROOM = 0.002  # seconds beside the lighter model's own time
INLINE_BELOW = 0.0003  # seconds: a shorter run costs less than a thread and back
MOST_MODELS = 64  # whose degraded answers are counted

ENDS_WITHIN = 0.25  # seconds, in which a run ends that is told to
HUNG_AFTER = 1.0  # seconds of one run, from which on its thread is given up
MOST_GIVEN_UP = 4  # threads; a runtime that hangs each time must not fill the process with them

Lookup = Callable[[str, str], Awaitable[Loaded]]  # (model, version) -> its runtimes
Leaves = Callable[[ModelInfo, Mapping[str, np.ndarray]], None]
AsPicture = Callable[[ModelInfo], Awaitable[Mapping[str, np.ndarray]]]


@dataclass(frozen=True, slots=True)
class _Question:
    """A request, and the runtimes of the version that answers it. deadline: in the loop's time.
    leaves, as_picture: as of `InferAnswerer.answer`."""

    loaded: Loaded
    request: Request
    deadline: float
    sequence: int
    leaves: Leaves | None = None
    as_picture: AsPicture | None = None


class InferAnswerer:
    """`answer` never raises for a bad request: the failure is the result.

    node: this node's id. lookup: the runtimes of a model version; raises `NotFound`. budget:
    seconds for requests that name none. pinned: the version for requests that name none, or ''
    to follow the mesh's desired state. on_answered: each is called with model, request and result,
    which has the id that the mesh knows the request by. served(model): a version that this
    node serves, '' for none: it is taken while nobody can say which one the mesh desires.
    placer: of an edge that chooses for each request which stages it computes itself. keeps_inputs:
    of an edge: what its own layers read does not leave it, to another model neither.
    """

    def __init__(
        self,
        mesh: Mesh,
        node: str,
        lookup: Lookup,
        budget: float,
        pinned: str = "",
        served: Callable[[str], str] = lambda model: "",
        placer: Placer | None = None,
        keeps_inputs: bool = False,
    ) -> None:
        self._mesh = mesh
        self._node = node
        self.lookup = lookup
        self._budget = budget
        self._pinned = pinned
        self.on_answered: list[Callable[[str, Request, Result], None]] = []
        self._served = served
        self.by_status: dict[str, int] = {}  # answers since the start, without copies
        self.by_priority: dict[str, int] = {}  # of those of other requests than normal ones
        self.latency = LatencyWindow()
        self._worker: Worker | None = None
        self._given_up = 0  # threads
        self.on_loop = OnLoop()
        self._said_raw = False
        self._placer = placer
        self._keeps_inputs = keeps_inputs
        self.degraded: dict[str, int] = {}  # answers of lighter models, by the model asked
        self.stood_in = StoodIn()  # answers of a lighter model that is computed here
        self._local_work = 0.0  # usual seconds of the runs that are under way
        self._probing: asyncio.Task[None] | None = None

    async def answer(
        self,
        model: str,
        request: Request,
        sequence: int = 0,
        leaves: Leaves | None = None,
        as_picture: AsPicture | None = None,
    ) -> Result:
        """The result of one request, inside its budget. sequence: number of an edge's capture.
        leaves: is called with the version and with the tensors that are about to leave this node;
        what it raises, a `SwarmError`, holds them back. No copy of such a request is made.
        as_picture: makes the inputs with a picture in place of its tensor; they go to stage 1 where
        all its nodes decode them."""
        started = asyncio.get_running_loop().time()
        began = time.perf_counter()
        # The client's own id comes back with the answer, but does not travel: clients reuse their
        # ids, and the lanes would drop the second request as a duplicate.
        request.id = request.id or ulid()
        header = checked(request.traceparent) if request.traceparent else ""
        tracer = None if request.shadow else self._mesh.tracer  # nobody asks for a copy's trace
        trace = tracer.begin(model, header) if tracer is not None else None
        request.traceparent = trace.traceparent if trace is not None else header
        try:
            deadline = started + self._checked_budget(request)
            async with asyncio.timeout_at(deadline):
                loaded = await self._loaded(model, request, deadline)
            loaded.info.check(request.inputs, pictures=True)
            loaded.info.check_outputs(request.outputs)
            question = _Question(loaded, request, deadline, sequence, leaves, as_picture)
            if self._may_degrade(question):

                async def ask(until: float) -> Result:
                    return await self._answered(
                        replace(question, deadline=until), self._ask_or_fail
                    )

                result = await self._mesh.degrading.answer(
                    loaded.info, request, request.agent, deadline, ask
                )
            else:
                result = await self._answered(question, self._ask)
        except TimeoutError:
            error = DeadlineExceeded("the budget ended before it was sent")
            result = self._failed(request, model, error)
        except (SwarmError, ShardsError) as error:
            result = self._failed(request, model, error)
        except BaseException as error:
            if trace is not None:
                trace.give_up(error)
            raise
        result.latency = time.perf_counter() - began
        if not request.shadow:
            self.by_status[result.status] = self.by_status.get(result.status, 0) + 1
            if priority := request.priority:
                self.by_priority[priority] = self.by_priority.get(priority, 0) + 1
            self.latency.add(result.latency, time.monotonic())
            if result.degraded and (model in self.degraded or len(self.degraded) < MOST_MODELS):
                self.degraded[model] = self.degraded.get(model, 0) + 1
        if trace is not None:
            trace.end(result)
        if not request.shadow:
            for tell in self.on_answered:
                tell(model, request, result)
        result.id = request.id
        if request.outputs and result.status is Status.OK:
            result.outputs = {name: result.outputs[name] for name in request.outputs}
        return result

    def _may_degrade(self, question: _Question) -> bool:
        """Whether the mesh's lighter model may be asked: not where one is at hand, nor for inputs
        that are held back on this node, nor for a copy."""
        loaded, request = question.loaded, question.request
        held_back = question.leaves is not None or (
            self._keeps_inputs and loaded.info.edge is not None
        )
        if loaded.lighter is not None or held_back or request.shadow:
            return False
        return may_degrade(loaded.info, request.allow_degraded)

    async def _answered(
        self, question: _Question, ask: Callable[[_Question], Awaitable[Result]]
    ) -> Result:
        if self._mesh.rollouts.follows and not question.request.shadow:
            return await self._ask_on_trial(question)
        return await ask(question)

    async def _loaded(self, model: str, request: Request, deadline: float) -> Loaded:
        version = request.version or self._pinned or await self._desired(model, request, deadline)
        return await self.lookup(model, version)

    async def _ask_on_trial(self, question: _Question) -> Result:
        """Ask while some version is on trial. What that one fails, the one that serves is asked."""
        mesh, info, request = self._mesh, question.loaded.info, question.request

        async def copy(inputs: dict[str, np.ndarray], version: str, budget: float) -> Result:
            copied = Request(inputs, version=version, budget=budget, shadow=True)
            return await self.answer(info.model, copied)

        async def instead(version: str) -> Result | None:
            try:
                async with asyncio.timeout_at(question.deadline):
                    loaded = await self.lookup(info.model, version)
                loaded.info.check(request.inputs, pictures=True)
            except (SwarmError, TimeoutError):
                return None
            mesh.catalog.left(info.model, request.agent, request.session, version)
            return await self._ask(replace(question, loaded=loaded))

        return await mesh.rollouts.ask(
            TriedRequest(
                info.model,
                info.version,
                request.inputs,
                self._ask_or_fail(question),
                question.deadline,
                None if request.version or self._pinned else instead,
                copy if question.leaves is None else None,
            )
        )

    async def _ask_or_fail(self, question: _Question) -> Result:
        """As `_ask`; a failure of stage 0 is a result too, by which its version is judged."""
        try:
            return await self._ask(question)
        except (SwarmError, ShardsError) as error:
            return self._failed(question.request, question.loaded.info.model, error)

    async def _desired(self, model: str, request: Request, deadline: float) -> str:
        """The version that the mesh desires; behind a cut link, one that is served here."""
        now = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(now + (deadline - now) * LOOK_UP_SHARE):
                return await self._mesh.catalog.version_for(
                    model, request.agent, request.session, request.id
                )
        except (NotFound, Unavailable, TimeoutError):
            # The link to the registry is cut, or its server has lost its store.
            if version := self._served(model):
                return version
            raise

    async def _ask(self, question: _Question) -> Result:
        """Ask the mesh; the lighter model, if there is one, answers in its place where it fails."""
        loaded = question.loaded
        pictures = PictureReader(loaded.info)
        if pictures.comes_as_picture(question.request.inputs) and self._computes_itself(loaded):
            coded = question.request.inputs
            inputs = await self._in_thread(lambda token: pictures.decoded(coded), question.deadline)
            question = replace(question, request=replace(question.request, inputs=inputs))
        if self._placer is not None:
            return await self._ask_placed(question, self._placer)
        if loaded.lighter is None or question.request.allow_degraded is False:
            return await self._ask_mesh(question, question.deadline, inf)
        deadline = question.deadline - loaded.lighter_seconds * 2 - LIGHTER_ROOM
        now = asyncio.get_running_loop().time()
        tried_until = now + (deadline - now) * IN_VAIN_SHARE
        try:
            result = await self._ask_mesh(question, deadline, tried_until)
        except (Unavailable, DeadlineExceeded) as error:  # of stage 0
            result = self._failed(question.request, loaded.info.model, error)
        return await self._lighter(question, result) if result.status in LIGHTER_ANSWERS else result

    def _computes_itself(self, loaded: Loaded) -> bool:
        """Whether any of a request's layers may be computed here."""
        own = loaded.info.edge is not None or loaded.lighter is not None
        return own or self._placer is not None

    async def _ask_mesh(self, question: _Question, deadline: float, tried_until: float) -> Result:
        """tried_until: as of `Ask`. Raises `Unavailable`, `DeadlineExceeded` and `ShardsError` for
        stage 0."""
        loaded, request = question.loaded, question.request
        tensors = request.inputs
        hops: list[Hop] = []
        if loaded.info.edge is not None:
            if loaded.edge is None:
                raise Unavailable(f"{self._node} has no layers of an edge of {loaded.info.model}")
            await self._until_weights(loaded, request.weights, deadline)
            tensors, hops, _ = await self._run(loaded, (EDGE,), request.inputs, deadline)
        elif question.as_picture is not None:
            if decode_pictures(self._mesh, loaded.info):
                return await self._send_picture(question, deadline, tried_until)
            self._say_raw(loaded.info)
        return await self._send(question, tensors, hops, deadline, tried_until)

    def _say_raw(self, info: ModelInfo) -> None:
        """Warn once, and only when some node is known."""
        if not self._said_raw and self._mesh.placement.beyond(info, 1).codecs is not None:
            self._said_raw = True
            name = f"{info.model}@{info.version}"
            text = "pictures for %s go as tensors while a node of stage 1 decodes none: %s there"
            log.warning(text, name, EXTRA)

    async def _send_picture(
        self,
        question: _Question,
        deadline: float,
        tried_until: float = inf,
        shadow: bool = False,
    ) -> Result:
        """Ask the mesh by a picture; by its tensor where a node that has just come decodes none."""
        assert question.as_picture is not None
        picture = await question.as_picture(question.loaded.info)
        result = await self._send(question, picture, [], deadline, tried_until, shadow=shadow)
        if result.status is not Status.INVALID_ARGUMENT:
            return result
        inputs = question.request.inputs
        return await self._send(question, inputs, [], deadline, tried_until, shadow=shadow)

    async def _send(
        self,
        question: _Question,
        tensors: Mapping[str, np.ndarray],
        hops: list[Hop],
        deadline: float,
        tried_until: float = inf,
        stage: int = 1,
        shadow: bool = False,
    ) -> Result:
        """Ask the mesh from a stage on. hops: of the stages before."""
        loaded, request = question.loaded, question.request
        if question.leaves is not None:
            question.leaves(loaded.info, tensors)
        return await self._mesh.requester.infer(
            Ask(
                loaded.info,
                tensors,
                deadline,
                agent=request.agent,
                session=request.session,
                sequence=question.sequence,
                hops=[hop.as_doc() for hop in hops],
                weights=request.weights,
                traceparent=request.traceparent,
                shadow=request.shadow or shadow,
                tried_until=tried_until,
                stage=stage,
                urgency=urgency_of(request.priority),
                share=request.share,
            )
        )

    # --- placed -----------------------------------------------------------------------

    async def _ask_placed(self, question: _Question, placer: Placer) -> Result:
        """By the way that is chosen for this request; what the mesh does not answer is computed
        here, where all stages are at hand. Raises `Unavailable` where no way may be taken."""
        loaded, loop = question.loaded, asyncio.get_running_loop()
        placement = placer.of(loaded)
        facts = placer.facts(loaded, question.deadline - loop.time(), self._local_work)
        choice = placement.choose(facts, time.monotonic())
        if choice is None:
            raise Unavailable(placer.why_none(loaded))
        if choice.probe is not None and not question.request.shadow:
            self._probe(question, placement, choice)
        way, why, whole = choice.way, choice.why, placement.whole
        deadline = question.deadline
        lighter = loaded.lighter is not None and question.request.allow_degraded is not False
        if lighter:
            deadline -= loaded.lighter_seconds * 2 + LIGHTER_ROOM
        in_time = deadline
        if whole is not None and way is not whole:
            in_time -= min(2 * placement.here(whole) + self._local_work, facts.budget / 2)
        result = await self._by_or_fail(question, placement, way, facts, in_time)
        if result.status in LIGHTER_ANSWERS and whole is not None and way is not whole:
            way, why = whole, f"{way.name} failed: {result.status}: {result.message}"
            result = await self._by_or_fail(question, placement, way, facts, deadline)
        if result.status in LIGHTER_ANSWERS and lighter:
            result = await self._lighter(question, result)
        result.way, result.why = way.name, why
        return result

    async def _by_or_fail(
        self,
        question: _Question,
        placement: EdgeWays,
        way: RequestWay,
        facts: PlacingFacts,
        deadline: float,
        shadow: bool = False,
    ) -> Result:
        """By one way; the placement learns how long it took."""
        began = time.perf_counter()
        on_way: float | None = None
        try:
            result, on_way = await self._by(question, placement, way, deadline, shadow)
        except (Unavailable, DeadlineExceeded) as error:  # of the stages here
            result = self._failed(question.request, question.loaded.info.model, error)
        took, failed = time.perf_counter() - began, result.status in LIGHTER_ANSWERS
        if not (shadow and failed):  # copies are the first to be dropped
            now = time.monotonic()
            placement.ended(way, facts, took, None if failed else on_way, now, failed)
        return result

    async def _by(
        self,
        question: _Question,
        placement: EdgeWays,
        way: RequestWay,
        deadline: float,
        shadow: bool,
    ) -> tuple[Result, float | None]:
        """The result, and the seconds between here and the mesh's stages, None for a way that does
        not enter the mesh. Raises as `_ask_mesh` does."""
        loaded, request = question.loaded, question.request
        tensors, hops = request.inputs, list[Hop]()
        if way.local:
            await self._until_weights(loaded, request.weights, deadline)
            usual = placement.here(way)
            self._local_work += usual
            try:
                ran = await self._run(loaded, way.local, request.inputs, deadline)
            finally:
                self._local_work = max(0.0, self._local_work - usual)
            tensors, hops, times = ran
            for stage, seconds in zip(way.local, times, strict=True):
                placement.ran(stage, seconds, time.monotonic())
        if way.entry == NOWHERE:
            info = loaded.info
            result = Result(request.id, info.model, info.version, outputs=tensors, hops=tuple(hops))
            return result, None
        began = time.perf_counter()
        if way.as_picture and question.as_picture is not None:
            result = await self._send_picture(question, deadline, shadow=shadow)
        else:
            result = await self._send(
                question, tensors, hops, deadline, stage=way.entry, shadow=shadow
            )
        away = [hop for hop in result.hops if hop.node != self._node]
        spent = sum([hop.queue_us + hop.compute_us for hop in away]) / 1e6
        return result, max(0.0, time.perf_counter() - began - spent)

    def _probe(self, question: _Question, placement: EdgeWays, choice: ChosenWay) -> None:
        """Send a copy of the request by another way, and drop its answer; one at a time."""
        way, facts = choice.probe, choice.facts
        if way is None or (self._probing is not None and not self._probing.done()):
            return

        async def ask() -> None:
            try:
                await self._by_or_fail(
                    question, placement, way, facts, question.deadline, shadow=True
                )
            except (SwarmError, ShardsError) as error:
                log.debug("a probe of %s failed: %s", way.name, error)

        self._probing = asyncio.create_task(ask(), name="probe of a way")

    async def _lighter(self, question: _Question, failed: Result) -> Result:
        """The degraded answer, flagged as such; `message` names the failure that it replaces.
        Raises `DeadlineExceeded`."""
        loaded, inputs = question.loaded, question.request.inputs
        lighter = loaded.lighter
        assert lighter is not None
        started = time.perf_counter()
        outputs = await self._computed(
            lambda token: lighter.run(inputs, token), loaded.lighter_seconds, question.deadline
        )
        spent = int((time.perf_counter() - started) * 1e6)
        info = loaded.info
        instead = in_place_of(info.model, info.version, str(failed.status))
        self.stood_in.note(instead, time.monotonic())
        return Result(
            failed.id,
            info.model,
            info.version,
            outputs=outputs,
            message=f"degraded: {failed.status}: {failed.message}",
            degraded=True,
            attempt=failed.attempt,
            hops=(Hop(0, self._node, 0, spent, 1),),
            reached=failed.reached,
        )

    def figures(self, now: float) -> dict[str, Any]:
        """What became of all requests, for status documents; now: `time.monotonic()`. Attempts,
        retries, hedges and breakers are of this node's way to stage 1."""
        requester = self._mesh.requester
        return {
            "by_status": dict(self.by_status),
            "degraded": dict(self.degraded),
            **({"stood_in": told} if (told := self.stood_in.rows(now)) else {}),
            "by_priority": dict(self.by_priority),
            "latency_ms": latencies(self.latency, now),
            "latency_s": histogram(self.latency),
            "under_way": requester.under_way,
            "attempts": requester.sent,
            "retries": requester.retries,
            "hedges": requester.hedges,
            "breakers": requester.breakers(),
        }

    def _checked_budget(self, request: Request) -> float:
        budget = self._budget if request.budget is None else request.budget
        check_budget(budget)
        if budget <= 0:
            raise DeadlineExceeded(f"a budget of {budget} s leaves no time at all")
        return budget

    async def _until_weights(self, loaded: Loaded, weights: int, deadline: float) -> None:
        """Wait for newer weights as a stage does. Raises `Unavailable`."""
        if not weights or loaded.weights >= weights:
            return
        left = deadline - asyncio.get_running_loop().time()
        if not await loaded.reached(weights, min(BEHIND_FOR, left * BEHIND_SHARE)):
            raise Unavailable(
                f"stage 0 computes with weight version {loaded.weights} here, the request asks for "
                f"{weights} at least: ask again later, or for less"
            )

    async def _run(
        self,
        loaded: Loaded,
        stages: Sequence[int],
        inputs: dict[str, np.ndarray],
        deadline: float,
    ) -> tuple[dict[str, np.ndarray], list[Hop], list[float]]:
        """Run stages here, in a thread unless they are very short: what the last one sends, and
        each one's hop and seconds. Raises `DeadlineExceeded`."""
        held = {**loaded.local, EDGE: loaded.edge}
        runtimes = [runtime for stage in stages if (runtime := held.get(stage)) is not None]
        if len(runtimes) < len(stages):
            raise Internal(f"this node has not loaded stages {list(stages)} of the model")
        times: list[float] = []

        def run(token: CancelToken) -> dict[str, np.ndarray]:
            tensors = inputs
            times.clear()
            for runtime in runtimes:
                began = time.perf_counter()
                tensors = runtime.run(tensors, token)
                times.append(time.perf_counter() - began)
            return tensors

        started = time.perf_counter()
        usual = sum([runtime.compute_ms for runtime in runtimes]) / 1e3
        outputs = await self._computed(run, usual, deadline)
        # A run's way to its thread and back is part of the first stage's time.
        around = time.perf_counter() - started - sum(times)
        hops = [
            Hop(stage, self._node, 0, int(seconds * 1e6), 1, weights=runtime.weights_version)
            for stage, seconds, runtime in zip(stages, times, runtimes, strict=True)
        ]
        hops[0] = hops[0]._replace(compute_us=hops[0].compute_us + int(around * 1e6))
        return outputs, hops, times

    async def _computed(
        self, work: Callable[[CancelToken], Any], usual: float, deadline: float
    ) -> Any:
        """The outcome of a run that takes `usual` seconds. Raises `DeadlineExceeded`."""
        now = time.monotonic()
        if usual < INLINE_BELOW and self.on_loop.is_allowed(now):
            token = self.on_loop.begin(now + deadline - asyncio.get_running_loop().time(), now)
            try:
                return work(token)
            except RunTerminated:
                self.on_loop.lasted(time.monotonic())
            finally:
                self.on_loop.end()
        return await self._in_thread(work, deadline)

    async def _in_thread(self, work: Callable[[CancelToken], Any], deadline: float) -> Any:
        """The outcome of a run. Raises `DeadlineExceeded` where it does not come in time."""
        loop = asyncio.get_running_loop()
        if self._worker is None:
            self._worker = Worker(loop, "stage-0")
        future: asyncio.Future[Any] = loop.create_future()

        def done(result: Any, error: Exception | None, _seconds: float) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        # Nobody waits for a run whose request has ended while it was queued.
        token, worker = CancelToken(), self._worker
        worker.submit(lambda: None if future.done() else work(token), done)
        try:
            async with asyncio.timeout_at(deadline):
                return await future
        except TimeoutError:
            token.cancel()
            loop.call_later(ENDS_WITHIN, self._give_up_thread, worker, worker.busy_since)
            raise DeadlineExceeded("a run on this node did not end inside the budget") from None

    def _give_up_thread(self, worker: Worker, since: float) -> None:
        """A run came too late. Where the thread hangs in it, later runs get another one."""
        hangs = 0 < worker.busy_since == since < time.monotonic() - HUNG_AFTER
        if worker is self._worker and hangs and self._given_up < MOST_GIVEN_UP:
            worker.abandon()
            self._given_up += 1
            self._worker = None

    def _failed(self, request: Request, model: str, error: SwarmError | ShardsError) -> Result:
        if isinstance(error, ShardsError):
            error = Internal(f"stage 0: {error}")
        return Result(
            request.id,
            model,
            request.version,
            status=error.status if isinstance(error.status, Status) else Status.INTERNAL,
            message=str(error),
            node=self._node,
            retry_after=retry_after_of(error),
        )

    def close(self) -> None:
        """End the thread of the stages here, if there is one."""
        if self._probing is not None:
            self._probing.cancel()
        if self._worker is not None:
            self._worker.close()
