"""The client: `async with swarm.connect("nats://…") as mesh: await mesh.infer(…)`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from swarm.errors import (
    DeadlineExceeded,
    InvalidArgument,
    NoResponders,
    Status,
    SwarmError,
    Unavailable,
    error_for,
)
from swarm.fleet.advertised import StagePeer
from swarm.fleet.observed import StatusListener
from swarm.fleet.placement import Nearby, Placement
from swarm.ids import ulid
from swarm.lanes import REFUSED, Publisher
from swarm.link import Link, LinkOptions
from swarm.local.host_socket import Direct
from swarm.local.lending import Claims
from swarm.model import ModelInfo, unknown_model
from swarm.periodic import BEAT, beat
from swarm.requests.request import CORE, DURABLE, Ask
from swarm.requests.requester import Requester
from swarm.routing import DesiredState, RequestInfo, parse_desired
from swarm.services.registry import Registry
from swarm.subjects import Subjects
from swarm.wire.messages import Request, Result

DEFAULT_BUDGET = 5.0  # seconds
MAX_BUDGET = 600.0  # seconds
CONNECT_TIMEOUT = 5.0  # seconds
# Seconds for which the nodes near this process are taken from the placement's table. Gossip tells a
# node at once of each change; statuses tell a client every second.
CLIENT_PLACED_FOR, NODE_PLACED_FOR = 0.2, 1.0
TEND_EVERY = 5 * BEAT  # seconds


class Mesh:
    """One client of a mesh. Not thread-safe; any number of concurrent requests.

    agent: who asks, for quotas and audit; a token of `[A-Za-z0-9_-]+` or empty. shm: whether
    large tensors may go through shared memory between processes of one host, or always over
    the wire. peers: the nodes that serve a stage, as a node knows them from gossip; without it,
    this client listens to statuses.
    """

    def __init__(
        self,
        options: LinkOptions,
        mesh: str = "default",
        agent: str = "",
        *,
        shm: bool = True,
        peers: Callable[[ModelInfo, int], Iterable[StagePeer]] | None = None,
    ) -> None:
        self.subjects = Subjects(mesh)
        self.agent = agent
        self.link = Link(options)
        self.publisher = Publisher(self.link)
        self.registry = Registry(self.link, self.subjects)
        self.claims = Claims(self.link, mesh, shm)
        self._peers = peers
        self.placement = Placement(
            lambda: self.claims.host,
            self._serving,
            CLIENT_PLACED_FOR if peers is None else NODE_PLACED_FOR,
        )
        self.hosts = StatusListener(self.link, self.subjects, self.placement.forget)
        self.direct = Direct(self.link)
        self.direct.on_gone.append(self.hosts.gone)
        self.requester = Requester(
            self.link,
            self.subjects,
            self.publisher,
            claims=self.claims,
            near=self._about_to_send,
            direct=self.direct,
        )
        self._infos: dict[tuple[str, str], ModelInfo] = {}
        self._desired: dict[str, DesiredState] = {}
        self._running: asyncio.Task[None] | None = None
        self._tending: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Mesh:
        self._running = asyncio.create_task(self.link.run(), name="swarm link")
        try:
            await self.link.ready(CONNECT_TIMEOUT)
        except BaseException:
            await self.__aexit__()
            raise
        self.open_direct()
        self._tending = asyncio.create_task(self.tend(), name="swarm tend")
        self.follow_config()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
        if self._running is not None:
            tasks = [self._running, *([self._tending] if self._tending else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _serving(self, info: ModelInfo, stage: int, large: bool) -> Iterable[StagePeer]:
        """The nodes known of that serve a stage."""
        if self._peers is not None:
            return self._peers(info, stage)
        return self.hosts.serving(info.model, info.version, stage)

    def _about_to_send(self, info: ModelInfo, stage: int, large: bool) -> Nearby:
        """A message is about to be sent: which nodes of its stage are on this host?"""
        if self._peers is None and self.claims.host:
            self.hosts.wanted(large)
        return self.placement.at(info, stage, large)

    @property
    def inbox(self) -> str:
        """Where processes of this host reach this one without the server, as a rule; "" where they
        share no memory."""
        return self.link.options.inbox if self.claims.host else ""

    def open_direct(self) -> None:
        """Be reachable for the processes of this host, unless shared memory is switched off."""
        if self.inbox:
            self.direct.on_unheard = self._unheard
            self.direct.open()

    def _unheard(self, subject: str, data: bytes, reply: str) -> None:
        """What came for a stage that is not served here any more: a lane keeps it if its sender
        hears so; fast mode has none, and it goes to whoever serves the stage now."""
        if reply:
            self.direct.answer(reply, [REFUSED], lambda sent: None)
        elif subject.startswith(f"{self.subjects.root}.fresh."):
            with contextlib.suppress(SwarmError):  # the requester asks again
                self.link.publish(subject, data)

    async def tend(self) -> None:
        """Once a second: give back shared memory that nobody needs. Until cancelled."""
        while True:
            await beat(TEND_EVERY)
            self.claims.tend()
            self.direct.tend()
            self.hosts.tend()
            self.requester.tend()

    async def close(self) -> None:
        """Free what this client holds, and disconnect."""
        self.requester.close()
        self.publisher.close()
        self.direct.close()
        await self.claims.close()
        await self.link.close()

    async def model(
        self, model: str, agent: str = "", session: str = "", request_id: str = ""
    ) -> ModelInfo:
        """`NAME` or `NAME@VERSION`. Without a version, the desired state decides: by share,
        sticky by agent or session. Raises `NotFound`, `Unavailable`."""
        info = self._known(model, agent, session, request_id)
        if info is None:
            name, _, version = model.partition("@")
            version = version or await self.version_for(name, agent, session, request_id)
            info = self._infos[(name, version)] = await self.registry.info(name, version)
        return info

    def _known(self, model: str, agent: str, session: str, request_id: str) -> ModelInfo | None:
        """The same, when nothing has to be looked up."""
        name, _, version = model.partition("@")
        version = version or self._version_for(name, agent, session, request_id)
        return self._infos.get((name, version))

    async def version_for(self, model: str, agent: str, session: str, request_id: str) -> str:
        """The version that serves this requester. Raises `NotFound`, `Unavailable`."""
        if model not in self._desired:
            document = await self.registry.desired(model)
            if document is None:
                raise unknown_model(model)
            self._desired[model] = parse_desired(document | {"model": model})
        return self._version_for(model, agent, session, request_id)

    def _version_for(self, model: str, agent: str, session: str, request_id: str) -> str:
        """The version that serves this requester; "" when it has to be looked up."""
        state = self._desired.get(model)
        if state is None:
            return ""
        if len(state.serve) == 1:
            return state.serve[0].version
        return state.version_for(RequestInfo(request_id, model, "", 1, agent, session))

    def follow_config(self, on_change: Callable[[], None] = lambda: None) -> None:
        """Forget what was looked up whenever models or desired state change, or may have."""

        def changed() -> None:
            self._forget()
            on_change()

        self.link.subscribe(f"{self.subjects.root}.config.>", lambda _: changed())
        self.link.on_up.append(changed)

    def _forget(self) -> None:
        """What was looked up may have changed: look it up again."""
        self._infos.clear()
        self._desired.clear()

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, np.ndarray],
        budget: float = DEFAULT_BUDGET,
        session: str = "",
        *,
        delivery: str = DURABLE,
        hedge: float | None = None,
    ) -> Result:
        """Run `model` (`NAME` or `NAME@VERSION`) on `inputs`; budget in seconds.

        session: requests of one session go to one node under session-affine policies.
        delivery: `durable`, or `core` for fast mode (nothing is stored between stages; only
        this requester's retries recover a lost request). hedge: percentile (0..1) of the
        usual latency after which a second copy is sent; at most 5 % of requests are.

        Raises the error of the result's status: `InvalidArgument`, `NotFound`,
        `DeadlineExceeded`, `ResourceExhausted` (whose `retry_after` says when to come back, in
        seconds), `Unavailable`, `Internal`.
        """
        result = await self.ask(model, inputs, budget, session, delivery=delivery, hedge=hedge)
        if result.status is not Status.OK:
            where = f" (stage {result.stage}, node {result.node})" if result.node else ""
            raise error_for(result.status, result.message + where, result.retry_after)
        return result

    async def ask(
        self,
        model: str,
        inputs: Mapping[str, np.ndarray],
        budget: float = DEFAULT_BUDGET,
        session: str = "",
        request_id: str = "",
        *,
        delivery: str = DURABLE,
        hedge: float | None = None,
    ) -> Result:
        """Like `infer`, but a failure is a `Result` too and nothing is raised."""
        if not budget <= MAX_BUDGET:  # nan neither
            error = InvalidArgument(f"a budget of {budget} s: at most {MAX_BUDGET:.0f} s are given")
            return _refused(request_id, model, error)
        deadline = asyncio.get_running_loop().time() + budget
        try:
            info = self._known(model, self.agent, session, request_id)
            if info is None:  # else no timeout is needed, which is a tenth of a client's work
                async with asyncio.timeout_at(deadline):
                    info = await self.model(model, self.agent, session, request_id)
            info.check(inputs)
            if budget <= 0:
                raise DeadlineExceeded(f"a budget of {budget} s leaves no time at all")
            if delivery not in (DURABLE, CORE):
                raise InvalidArgument(f"delivery {delivery!r}: it is durable or core")
        except (SwarmError, TimeoutError) as error:
            return _refused(request_id, model, error)
        if info.edge is not None:
            return await self.ask_service(info, inputs, budget, session, request_id)
        return await self.requester.infer(
            Ask(
                info,
                inputs,
                deadline,
                id=request_id or ulid(),
                delivery=delivery,
                hedge=hedge,
                agent=self.agent,
                session=session,
            )
        )

    async def ask_service(
        self,
        info: ModelInfo,
        inputs: Mapping[str, np.ndarray],
        budget: float,
        session: str = "",
        request_id: str = "",
    ) -> Result:
        """Ask whichever node serves `infer.<model>`: for models whose first layers are the
        edge's (stage 0), which a client without a runtime cannot run."""
        request = Request(
            dict(inputs), request_id or ulid(), info.version, budget, session, self.agent
        )
        started = time.perf_counter()
        try:
            message = await self.link.request(
                self.subjects.infer(info.model), request.parts(), budget
            )
            result = Result.decode(message.data)
        except NoResponders:
            error = Unavailable(f"no node serves {info.model!r} at present")
            result = _refused(request.id, info.model, error)
        except (SwarmError, TimeoutError) as failure:
            result = _refused(request.id, info.model, failure)
        result.latency = time.perf_counter() - started
        return result


def connect(
    servers: str | Sequence[str] = "nats://127.0.0.1:4222",
    mesh: str = "default",
    *,
    agent: str = "",
    shm: bool = True,
    **options: Any,
) -> Mesh:
    """A client of `mesh`, to be entered with `async with`.

    servers: one URL, several, or several separated by commas. agent, shm: see `Mesh`. options:
    see `LinkOptions` (user, password, token, credentials, tls …). Entering raises
    `NotConnected` when no server answers within five seconds.
    """
    urls = servers.split(",") if isinstance(servers, str) else list(servers)
    return Mesh(LinkOptions(servers=tuple(urls), **options), mesh, agent, shm=shm)


def _refused(request_id: str, model: str, error: BaseException) -> Result:
    name = model.partition("@")[0]
    if isinstance(error, SwarmError):
        return Result(request_id or ulid(), name, status=error.status, message=str(error))
    return Result(
        request_id or ulid(),
        name,
        status=Status.DEADLINE_EXCEEDED,
        message="the budget ended before the mesh answered",
    )
