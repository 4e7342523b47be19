"""What each client of a mesh can; features add the rest (`swarm.mesh`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np

from swarm.documents import Copies
from swarm.errors import (
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    Status,
    SwarmError,
    Unavailable,
)
from swarm.fleet.advertised import StagePeer
from swarm.fleet.observed import Observed
from swarm.fleet.placement import Served
from swarm.fleet.status_listener import StatusListener
from swarm.ids import ulid
from swarm.link import Link, LinkMessage, LinkOptions, jetstream
from swarm.model import ModelInfo
from swarm.models.catalog import Catalog
from swarm.models.registry import Registry
from swarm.models.trials import TriedRequest, trials_of
from swarm.periodic import BEAT, beat
from swarm.requests.by_service import ServiceRequester
from swarm.requests.degrading import Degrading
from swarm.requests.lighter import may_degrade
from swarm.requests.request import (
    DELIVERY_MODES,
    DURABLE,
    FAST,
    Ask,
    Picker,
    answered,
    check_budget,
    refused,
)
from swarm.requests.requester import Requester
from swarm.security.identity import Identity
from swarm.security.signed_entries import Verifier
from swarm.subjects import Subjects
from swarm.tasks import told
from swarm.tracing.traceparent import Tracer, checked
from swarm.transport.process_links import Links, Own
from swarm.wire.codec_choice import AUTO, mode_of
from swarm.wire.messages import Request, Result
from swarm.wire.picture import Inputs, tensors_of
from swarm.wire.urgency import NAME_OF, checked_priority, urgency_of

DEFAULT_BUDGET = 5.0  # seconds
CONNECT_TIMEOUT = 5.0  # seconds
MOST_OF_ID = 100  # characters of an id that a caller gives
TEND_EVERY = 5 * BEAT  # seconds
# Seconds within which nodes say that they hold a model which the registry does not have; between
# two looks at what they have said.
HEARD_WITHIN, LOOK_AGAIN = 0.5, 0.02

KnownPeers = Callable[[ModelInfo, int], Iterable[StagePeer]]


class Client:
    """One client of a mesh. Not thread-safe; any number of concurrent requests.

    agent: who asks, for quotas and audit; a token of `[A-Za-z0-9_-]+` or empty. shm: whether
    messages may take the short cuts of one host, shared memory and sockets, or always go by the
    server. stored: every request goes through JetStream as bytes; no short cuts, no fast mode.
    known_peers(info, stage): the nodes that serve a stage, as a node knows them from gossip;
    without it, this client listens to statuses. picker: the routing policy for stage 1. signer,
    verifier: of the registry; without a verifier all that it holds is taken. copies: of what was
    read of it, on this host's disk, for a start while it is away. tracer: sees each request, None
    for nobody.
    codec: how tensors go by the server: `auto`, `none`, `f16`, `i8`, `i6` or `i4`
    (deploy/operations.md#codecs). two_connections: whether models with large messages have a
    connection of their own, so that small messages do not wait behind them on a slow link: `auto`
    (where the server is far), `on` or True, `off` or False.
    """

    def __init__(
        self,
        options: LinkOptions,
        mesh: str = "default",
        agent: str = "",
        *,
        shm: bool = True,
        stored: bool = False,
        known_peers: KnownPeers | None = None,
        picker: Picker | None = None,
        signer: Identity | None = None,
        verifier: Verifier | None = None,
        codec: str = AUTO,
        tracer: Tracer | None = None,
        two_connections: str | bool = "auto",
        copies: Copies | None = None,
    ) -> None:
        self.tracer = tracer
        self.subjects = Subjects(mesh, by_user=bool(options.connects_as))
        self.agent = agent
        self._known_peers = known_peers
        short_cuts = shm and not stored
        self._links = Links(
            options, self.subjects, self._serving, short_cuts, mode_of(codec), two_connections
        )
        self.link = self._links.link
        self.lender = self._links.lender
        self.socket = self._links.socket
        self.placement = self._links.placement
        self.routes = self._links.routes
        self.routes_for = self._links.routes_for
        self.registry = Registry(self.link, self.subjects, signer, verifier, copies)
        self.rollouts = trials_of(self.link, self.subjects, lambda: self.requester.under_way)
        self.catalog = Catalog(self.registry, self.rollouts, self._served)
        self._stored = stored
        self.statuses = StatusListener(self.link, self.subjects, self.placement.forget)
        self.socket.on_gone.append(self.statuses.gone)
        if known_peers is None:
            self.routes.look_out = self.statuses.wanted
            self.routes.flaw = self.statuses.flaw
        self.requester = Requester(self.routes, picker)
        self.degrading = Degrading(self.link, self.catalog, self.requester)
        self._by_service = ServiceRequester(
            self.link, self.subjects, self.requester.seen, self.agent
        )
        self.observed = Observed(time.monotonic)
        user = options.connects_as
        self._client = f"{user}-{self.rollouts.name}" if user else self.rollouts.name
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        def own(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
            self._tasks.append(asyncio.create_task(work, name=f"swarm {name}"))
            self._tasks[-1].add_done_callback(told)
            return self._tasks[-1]

        own(self.link.run(), "link")
        try:
            await self.connected(CONNECT_TIMEOUT, own)
        except BaseException:
            await self.__aexit__()
            raise
        own(self.tend(), "tend")
        self.follow_config()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def links(self) -> tuple[Link, ...]:
        """Its connections: one, or two."""
        return self._links.all

    @property
    def bulk(self) -> Link:
        """The connection of models with large messages."""
        return self._links.bulk.link

    async def connected(self, timeout: float, own: Own) -> None:
        """Be connected, once or twice, and reachable for the processes of this host
        (`Links.connected`)."""
        if await self._links.connected(timeout, own):
            self.requester.use_second(self._links.bulk)

    def _serving(self, info: ModelInfo, stage: int) -> Iterable[StagePeer]:
        """The nodes known of that serve a stage."""
        if self._known_peers is not None:
            return self._known_peers(info, stage)
        return self.statuses.serving(info.model, info.version, stage)

    def _served(self, info: ModelInfo) -> Served:
        """The nodes of a version at present. While a client does not listen, it remembers nodes of
        the version before and has not heard of those of the new one. So it counts neither."""
        if self._known_peers is None and not self.statuses.current:
            return Served.NOWHERE
        return self.placement.served(info)

    @property
    def inbox(self) -> str:
        """`Links.inbox`."""
        return self._links.inbox

    async def tend(self) -> None:
        """Once a second: give back shared memory that nobody needs, look anew where nodes are.
        Until cancelled."""
        while True:
            await beat(TEND_EVERY)
            self.requester.tend()
            self._links.tend()
            if self.observed.is_due:
                self._tell_observed()
            if self._known_peers is None:
                # Without the short cuts of one host, messages are no reason to listen.
                self.statuses.tend(self.requester.sent if self.lender.host else 0)
            # No news tells of a node that fell silent.
            self.placement.forget()

    async def close(self) -> None:
        """Free what this client holds, and disconnect."""
        if not self.observed.is_empty:
            self._tell_observed()
        self.rollouts.close()
        self.requester.close()
        await self._links.close()

    def _tell_observed(self) -> None:
        """Tell what became of this client's requests, to whoever counts; without a connection, at
        the next one."""
        subject = self.subjects.observed(self._client)
        if self.link.connected and self.link.grants.may_publish(subject):
            self.link.publish(subject, self.observed.report(self._client))
            self.observed.told()

    async def model(self, model: str) -> ModelInfo:
        """The model version that serves this client: `NAME`, or `NAME@VERSION`. Raises `NotFound`,
        `Unavailable`."""
        return await self.catalog.model(model, self.agent)

    def follow_config(self, on_change: Callable[[], None] = lambda: None) -> None:
        """Forget what was looked up whenever models or desired state change, or may have."""

        def changed() -> None:
            self.catalog.forget()
            self._by_service.forget()
            on_change()

        def on_key(message: LinkMessage) -> None:
            key = message.subject.removeprefix(f"{self.subjects.root}.config.")
            jetstream.heard_of(self.link, self.subjects.config_bucket, key, message)
            # An abort takes effect at once: nothing else has changed, so nothing is looked up.
            if self.rollouts.aborted(message.subject, message.data):
                on_change()
            else:
                changed()

        if self.link.grants.may_subscribe(self.subjects.config_all):
            self.link.subscribe(self.subjects.config_all, on_key)
        self.link.on_up.append(changed)

    async def infer(
        self,
        model: str,
        inputs: Inputs,
        budget: float = DEFAULT_BUDGET,
        session: str = "",
        *,
        delivery: str = DURABLE,
        hedge: float | None = None,
        weights: int = 0,
        traceparent: str = "",
        version: str = "",
        priority: str = "",
        allow_degraded: bool | None = None,
    ) -> Result:
        """Run `model` (`NAME` or `NAME@VERSION`) on `inputs`; budget in seconds. A model that
        has a task takes a `Picture` for its input. version: as in NAME@VERSION; without either,
        desired state decides.
        session: requests of one session go to one node under session-affine policies, and its
        answers never go back in weight versions. weights: the least weight version of the answer.
        delivery: `durable`, or `fast`: nothing is stored between stages, and only this requester's
        retries recover a lost request. hedge: percentile (0..1) of the usual latency after which a
        second copy is sent; at most 5 % of requests are. traceparent: the header (W3C Trace
        Context) of the trace that this request belongs to; hops of a sampled one say more
        (`swarm.tracing.anatomy`). priority: `low`, `normal` or `high`: high ones pass others that
        wait; "" is normal, or what an answerer between has for this client. allow_degraded: whether
        the answer may be that of the model's lighter model, where it names one and cannot answer in
        time itself; None: as its owner says. The result has `degraded` then, and names the model
        that answered.

        Raises the error of the result's status: `InvalidArgument`, `NotFound`,
        `DeadlineExceeded`, `ResourceExhausted` (whose `retry_after` says when to come back, in
        seconds), `Unavailable`, `Internal`.
        """
        result = await self.ask(
            f"{model}@{version}" if version else model,
            inputs,
            budget,
            session,
            delivery=delivery,
            hedge=hedge,
            weights=weights,
            traceparent=traceparent,
            priority=priority,
            allow_degraded=allow_degraded,
        )
        return answered(result)

    async def ask(
        self,
        model: str,
        inputs: Inputs,
        budget: float = DEFAULT_BUDGET,
        session: str = "",
        request_id: str = "",
        *,
        delivery: str = DURABLE,
        hedge: float | None = None,
        weights: int = 0,
        traceparent: str = "",
        priority: str = "",
        allow_degraded: bool | None = None,
        agent: str = "",
        refer: tuple[str, ...] = (),
    ) -> Result:
        """Like `infer`, but a failure is a `Result` too and nothing is raised. request_id: comes
        back with the result; on its way the request has an id that begins so and that nobody can
        guess. agent: for whom it is asked, where that is not this client's own. refer: large
        outputs of these names may stay where they are; the result refers to them
        (`swarm.wire.tensors.Referred`), and a request to another model may have them as inputs."""
        header = checked(traceparent) if traceparent else ""
        trace = None if self.tracer is None else self.tracer.begin(model, header)
        try:
            request = Request(
                tensors_of(inputs),
                f"{request_id[:MOST_OF_ID]}-{ulid()}" if request_id else ulid(),
                session=session,
                weights=weights,
                traceparent=header if trace is None else trace.traceparent,
                priority=priority,
                allow_degraded=allow_degraded,
                agent=agent or self.agent,
                refer=refer,
            )
            result = await self._ask(model, request, budget, delivery, hedge)
            self.observed.note(model.partition("@")[0], str(result.status), result.degraded)
            result.id = request_id or result.id
        except BaseException as error:
            if trace is not None:
                trace.give_up(error)
            raise
        if trace is not None:
            trace.end(result)
        return result

    async def _ask(
        self, model: str, request: Request, budget: float, delivery: str, hedge: float | None
    ) -> Result:
        try:
            check_budget(budget)
            request.priority = checked_priority(request.priority)
            urgency = urgency_of(request.priority)
        except InvalidArgument as error:
            return refused(request.id, model, error)
        if self._by_service.is_only_way(model):
            return await self._by_service.ask(model, request, budget)
        deadline = asyncio.get_running_loop().time() + budget
        try:
            info = await self._version_for(model, request, deadline)
            info.check(request.inputs, pictures=True)
            if type(request.weights) is not int or request.weights < 0:
                raise InvalidArgument(
                    f"weights {request.weights!r}: it is the number of a weight version"
                )
            if budget <= 0:
                raise DeadlineExceeded(f"a budget of {budget} s leaves no time at all")
            mode = self._delivery_mode(delivery)
        except (SwarmError, TimeoutError) as error:
            result = await self._by_service.instead(model, request, deadline, error)
            if isinstance(error, NotFound) and result.status is Status.NOT_FOUND:
                return refused(request.id, model, await self._unknown(model, error, deadline))
            return result
        if info.edge is not None:
            # Who answers observes a rollout, and decides by it.
            decided = "@" in model or not self.rollouts.follows
            name = f"{info.model}@{info.version}" if decided else info.model

            async def by_service(until: float) -> Result:
                left = until - asyncio.get_running_loop().time()
                return await self._by_service.ask(name, request, left)

            return await self._or_lighter(info, request, deadline, by_service)
        ask = Ask(
            info,
            request.inputs,
            deadline,
            id=request.id,
            delivery=mode,
            hedge=hedge,
            agent=request.agent,
            session=request.session,
            weights=request.weights,
            traceparent=request.traceparent,
            urgency=urgency,
            refer=request.refer,
        )

        async def by_lanes(until: float) -> Result:
            ask.deadline = until
            if not self.rollouts.follows:
                return await self.requester.infer(ask)
            return await self._ask_on_trial(ask, "@" in model)

        return await self._or_lighter(info, request, deadline, by_lanes)

    async def _or_lighter(
        self,
        info: ModelInfo,
        request: Request,
        deadline: float,
        ask: Callable[[float], Awaitable[Result]],
    ) -> Result:
        """The version's answer, or that of its lighter model where the requester takes it."""
        if not may_degrade(info, request.allow_degraded):
            return await ask(deadline)
        return await self.degrading.answer(info, request, request.agent, deadline, ask)

    async def _version_for(self, model: str, request: Request, deadline: float) -> ModelInfo:
        # A session's version is remembered: it stays through a rollout that begins later.
        info = None if request.session else self.catalog.fixed.get(model)
        if info is None:  # by its id the version of a request is drawn
            info = self.catalog.known(model, request.agent, request.session, request.id)
        if info is None:  # else no timeout is needed, which is a tenth of a client's work
            async with asyncio.timeout_at(deadline):
                info = await self.catalog.look_up(
                    self.link, model, request.agent, request.session, request.id, deadline
                )
        return info

    async def _unknown(self, model: str, error: NotFound, deadline: float) -> SwarmError:
        """The error for a model that the registry does not have: another error where nodes hold the
        model, since the server has lost its store then."""
        loop = asyncio.get_running_loop()
        name, _, version = model.partition("@")
        until = min(deadline, loop.time() + HEARD_WITHIN)
        self.statuses.wanted()
        while not self.statuses.holds(name, version):
            if loop.time() >= until:
                return error
            await asyncio.sleep(LOOK_AGAIN)
        return Unavailable(
            f"nodes hold {name!r}, and the server's store of models has lost it, as `swarm status` "
            "shows: an operator pushes it again, `swarm model push DIR`"
        )

    def _delivery_mode(self, delivery: str) -> str:
        mode = DELIVERY_MODES.get(delivery)
        if mode is None:
            raise InvalidArgument(f"delivery {delivery!r}: it is durable or fast")
        if mode is FAST and self._stored:
            raise InvalidArgument(
                f"delivery {delivery!r} stores nothing, and this client was told to store each "
                "message (stored=True): leave one of them out"
            )
        return mode

    async def _ask_on_trial(self, ask: Ask, pinned: bool) -> Result:
        """Ask while some version is on trial. Where that one fails, the one that serves is
        asked."""
        model = ask.info.model

        async def instead(version: str) -> Result | None:
            try:
                async with asyncio.timeout_at(ask.deadline):
                    info = await self.catalog.info(model, version)
                info.check(ask.tensors, pictures=True)
            except (SwarmError, TimeoutError):
                return None
            self.catalog.left(model, ask.agent, ask.session, version)
            if info.edge is not None:  # this version's first layers are an edge's
                return await self.ask_service(
                    f"{model}@{version}",
                    ask.tensors,
                    ask.deadline - asyncio.get_running_loop().time(),
                    ask.session,
                    weights=ask.weights,
                    traceparent=ask.traceparent,
                    priority=NAME_OF[ask.urgency],
                )
            return await self.requester.infer(replace(ask, info=info, id=ulid()))

        async def copy(inputs: dict[str, np.ndarray], version: str, budget: float) -> Result:
            deadline = asyncio.get_running_loop().time() + budget
            try:
                async with asyncio.timeout_at(deadline):
                    info = await self.catalog.info(model, version)
                info.check(inputs, pictures=True)
                if info.edge is not None:
                    raise Unavailable("its first layers are an edge's, which copies its own")
            except (SwarmError, TimeoutError) as error:
                return refused("", model, error)
            delivery = DURABLE if self._stored else FAST
            return await self.requester.infer(Ask(info, inputs, deadline, delivery, shadow=True))

        return await self.rollouts.ask(
            TriedRequest(
                model,
                ask.info.version,
                ask.tensors,
                self.requester.infer(ask),
                ask.deadline,
                None if pinned else instead,
                copy,
            )
        )

    async def ask_service(
        self,
        model: str,
        inputs: Mapping[str, np.ndarray],
        budget: float,
        session: str = "",
        request_id: str = "",
        weights: int = 0,
        traceparent: str = "",
        priority: str = "",
    ) -> Result:
        """Ask whichever node serves `infer.<model>`: for models whose first layers are the
        edge's (stage 0), which a client without a runtime cannot run, and for a user that may do
        nothing else. model: `NAME` or `NAME@VERSION`."""
        request = Request(
            dict(inputs),
            request_id or ulid(),
            session=session,
            weights=weights,
            traceparent=traceparent,
            priority=priority,
        )
        return await self._by_service.ask(model, request, budget)
