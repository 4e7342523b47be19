"""A node's life: connect, wait for its model, load it, announce itself, serve, drain, leave.

Every role lives alike. A role decides which stages are loaded, whether the node also answers
`infer.<model>` (shard-1, fallback, gateway, edge), and whether it captures (edge).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import swarm
from nodes.config import NodeConfig
from nodes.life.checkpoint import Checkpoint
from nodes.life.following_others import REASON_LIMIT, go_on
from nodes.life.mesh_key import MeshKeyFile
from nodes.life.own_entry import OwnEntry
from nodes.life.own_identity import identity_of, own_id, verifier_of
from nodes.life.standby import Standby
from nodes.life.status import StatusPublisher
from nodes.life.takeover import Takeover
from nodes.life.tracing import tracer_of
from nodes.life.watchdog import NodeWatchdog
from nodes.requests.answering import InferAnswerer
from nodes.requests.objectives import Objectives
from nodes.requests.router import Router
from nodes.versions.judging import Judging
from nodes.versions.lane_moves import LaneMoves
from nodes.versions.serving import Serving
from nodes.versions.versions import LanesWait, Versions
from shards.errors import ShardsError
from swarm.errors import (
    ApiError,
    BadKey,
    BadSeal,
    NotAdmitted,
    NotFound,
    SwarmError,
    Unavailable,
    Untrusted,
)
from swarm.fleet.events import keep_events
from swarm.fleet.membership import Membership
from swarm.fleet.peers import Peers
from swarm.fleet.service import FleetAnswers
from swarm.fleet.warm_pool import ROLE as WARM
from swarm.flow.objective import Objective
from swarm.gossip import Event
from swarm.link import LinkMessage
from swarm.mesh import Mesh
from swarm.models.config_entries import EntryCopies
from swarm.periodic import BEAT, beat
from swarm.requests.infer_service import InferService
from swarm.routing import BadDesiredState, parse_desired
from swarm.site.forwarder import Forwarder
from swarm.subjects import api
from swarm.transport.process_links import Own
from swarm.wire.messages import Request, Result

if TYPE_CHECKING:
    from nodes.life.auditing import NodeAudit
    from nodes.life.learning import Learning

log = logging.getLogger("swarm.node")

CONNECT_TIMEOUT = 2.0  # seconds between two warnings that no server answers
DRAIN_TIMEOUT = 8.0  # seconds
WATCH_ADMISSION_EVERY = 5 * BEAT  # seconds
REFUSED_FOR = 5.0  # seconds; a server that restarts with half a configuration is back by then
SAVE_EVERY = 10.0  # seconds between checkpoints
# Seconds between looks at the desired state. Each change is announced too: a node that serves
# looks only for an announcement that was lost.
CHECK_WHILE_WAITING, CHECK_WHILE_SERVING = 1.0, 10.0
SERVING = "serving"  # the detail of a node that serves all that it is told to
USUAL_TIMES = "compute_p99_us"  # the checkpoint's key


class Node:
    """`run(stop)` is its whole life; it ends when `stop` is set.

    started: `time.monotonic()` of the process's start. on_change(document) is called at each
    change of state. more_status: fields that a role adds to the status documents. end(): ends all
    that stands around this node too, which an operator may ask for; without it, `run` ends.
    identity: the key pair of `config.identity`, None without one. Raises `InvalidArgument` for a
    file that holds no identity, or that others may read.
    """

    def __init__(
        self,
        config: NodeConfig,
        started: float | None = None,
        on_change: Callable[[dict[str, Any]], None] = lambda document: None,
        more_status: Callable[[], dict[str, Any]] = dict,
        end: Callable[[], None] | None = None,
    ) -> None:
        self._end = end
        self.config = config
        self.id = own_id(config)
        self.identity = identity_of(config)
        self.became_ready = asyncio.Event()
        self._on_change = on_change
        self._rejected = ""  # why the desired state is refused at present
        self._desired_changed = asyncio.Event()
        self._mesh_key = MeshKeyFile(config.mesh_key)
        self._peers = Peers(self.id, config.gossip_config, self._mesh_key.taken)
        self._router = Router(
            self._peers.view, self._tell, may_use_own_lanes=self._may_use_own_lanes
        )
        self.mesh = Mesh(
            config.link,
            config.mesh,
            shm=config.shares_memory,
            known_peers=self._peers.serving,
            picker=self._router,
            verifier=verifier_of(config),
            codec=config.codec,
            tracer=tracer_of(config, self.id),
            two_connections=config.two_connections,
            copies=_entry_copies(config),
        )
        self._membership = Membership(
            self.mesh.link,
            self.mesh.subjects,
            self._peers,
        )
        self._membership.on_event.append(self._on_gossip)
        self.mesh.socket.on_gone.append(self._membership.gone)
        self._audit: NodeAudit | None = None
        if config.audit:
            from nodes.life.auditing import NodeAudit  # a node that records nothing needs no audit

            self._audit = NodeAudit(
                self.mesh,
                self.id,
                stored=not config.shares_memory,
                asks=config.answers_requests,
                view=self._peers.view,
                tell=lambda text: self._tell("audit", {"detail": text}),
            )
        self._checkpoint = Checkpoint(config.state_dir, config.mesh, config.role)
        self._versions = Versions(
            self.mesh,
            config,
            self.id,
            self._desired_read,
            self._router,
            usual_times(self._checkpoint.load()),
            self._tell,
            self._audit,
        )
        self.weights = self._versions.weights
        self._status = StatusPublisher(
            self.mesh,
            config,
            self.id,
            self._versions,
            self._membership,
            time.monotonic() if started is None else started,
            lambda: (
                more_status()
                | self._learning_status()
                | self._audit_status()
                | self._judging.status()
                | self._requests_status()
                | self._objectives.status()
                | self._site_status()
            ),
        )
        self._entry = OwnEntry(
            self.mesh,
            config,
            self._membership,
            self._versions.pulling,
            self.identity,
            "" if self._audit is None else self._audit.gossip,
            lambda: None if self._standby is None else self._standby.takes,
        )
        self._standby: Standby | None = None
        if config.role == WARM:
            self._standby = Standby(
                self._membership, self._versions.all, self._tell, self._entry.announce
            )
        self._judging = Judging(self.mesh, config.model_name, self.id, self._versions, self._tell)
        self._takeover = Takeover(
            self.mesh, config, self._membership, self._router, self._versions.all, self._tell
        )
        self._lane_moves = LaneMoves(
            self.mesh, config, self._membership, self._versions.all, self._tell
        )
        self._learning: Learning | None = None
        if config.learns and self.identity is not None:
            from nodes.life.learning import Learning  # a node that does not learn needs none of it

            self._learning = Learning(
                self.mesh,
                config,
                config.learner,
                self.id,
                self.identity,
                self._membership,
                self._versions,
                self._tell,
            )
        self.answerer = InferAnswerer(
            self.mesh,
            self.id,
            self._versions.lookup,
            config.budget,
            config.version,
            self._answered,
            self._versions.served,
        )
        self._own_objective: tuple[str, Objective | None] = ("", None)  # model, objective
        self._objectives = Objectives(self._objective_of, self._tell, self._knows_desired_state_of)
        self._forwarders = [
            Forwarder(self.mesh.link, self.mesh.subjects, site, self.answerer.answer)
            for site in config.sites
        ]
        self._fleet = FleetAnswers(
            self.mesh.link, self.mesh.subjects, self.id, self._membership.view
        )
        self._service = InferService(
            self.mesh.link,
            f"swarm-{config.mesh}",
            swarm.__version__,
            {"node": self.id, "role": config.role, "mesh": config.mesh, "model": config.model},
            self._service_subjects(),
            self._answer,
        )

    # --- the story ------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """The status document as of now."""
        return self._status.document()

    async def run(self, stop: asyncio.Event) -> None:
        """Raises `SwarmError` or `ShardsError` when the node can never serve as configured."""
        async with asyncio.TaskGroup() as group:
            background: list[asyncio.Task[None]] = []

            def own(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
                background.append(group.create_task(work, name=name))
                return background[-1]

            own(self.mesh.link.run(), "link")
            try:
                if await self._connect(stop, own):
                    self.mesh.follow_config(self._desired_changed.set)
                    own(self._status.run(), "status")
                    own(self.mesh.tend(), "tend")
                    own(self._stay_admitted(), "admission")
                    own(self._mesh_key.follow(self._membership.use_keys), "mesh key")
                    own(keep_events(self.mesh.link, self.mesh.subjects), "events")
                    self._drain_when_told(stop)
                    if self._audit is not None:
                        own(self._audit.recorder.run(), "audit")
                    await self._follow_desired_state(stop, own)
            finally:
                await self._leave()
                await _end(background)

    async def _connect(self, stop: asyncio.Event, own: Own) -> bool:
        """Wait for a server; returns False when `stop` came first."""
        while not stop.is_set():
            try:
                await self.mesh.connected(CONNECT_TIMEOUT, own)
                return True
            except NotAdmitted:
                raise  # to wait would not help
            except SwarmError as error:
                log.warning("waiting: %s", error)
        return False

    async def _stay_admitted(self) -> None:
        """Raises `NotAdmitted` once the servers have refused this node for `REFUSED_FOR` seconds:
        its credentials were revoked, or have expired."""
        refused = 0.0
        while True:
            await beat(WATCH_ADMISSION_EVERY)
            refusal = self.mesh.link.refusal
            refused = refused + WATCH_ADMISSION_EVERY if refusal is not None else 0.0
            if refusal is not None and refused >= REFUSED_FOR:
                raise refusal

    async def _follow_desired_state(self, stop: asyncio.Event, own: Own) -> None:
        """Load and serve the versions that the mesh desires, until `stop`."""
        announced: list[Serving] = []
        looked = -inf  # when desired state was read
        while not stop.is_set():
            now = time.monotonic()
            look = self._desired_changed.is_set() or now - looked >= CHECK_WHILE_SERVING
            self._desired_changed.clear()
            pause, looked = CHECK_WHILE_WAITING, -inf if look else looked
            try:
                await self._versions.reconcile(self._loading, look=look)
                if not self.became_ready.is_set():
                    self._become_ready(own)
                looked = now if look else looked
                pause = self._versions.look_again or CHECK_WHILE_SERVING
                self._judging.look()
                self._serves_but(self._versions.refused)
            except (BadDesiredState, Untrusted, BadKey, BadSeal) as error:
                # Refused as a whole: the node serves the versions that it served before.
                self._reject(str(error))
                if not self.became_ready.is_set():
                    self._become("waiting", str(error))
            except LanesWait as error:
                if self._versions.pulling() and not self.became_ready.is_set():
                    self._become_ready(own)
                self._serves_but(self._versions.refused, str(error))
            except (NotFound, Unavailable, ApiError) as error:
                # ApiError: a server whose store is gone or full refuses what it cannot read.
                if not self.became_ready.is_set():
                    self._become("waiting", str(error))
                elif isinstance(error, NotFound):  # what an operator has to push, or to take back
                    self._serves_but(self._versions.refused, str(error))
            except (SwarmError, ShardsError) as error:
                if not self.became_ready.is_set():
                    raise
                self._reject(str(error))
            # A reconciliation that failed half-way may have changed the served versions too.
            if self.became_ready.is_set() and announced != self._versions.pulling():
                announced = self._versions.pulling()
                self._entry.announce()
            await self._until_desired_state_changes(stop, pause)

    def _serves_but(self, refused: str, waits: str = "") -> None:
        """Say why not all is served that the mesh desires: versions that cannot run here, and
        versions that are waited for. "" where there are none."""
        if refused:
            self._reject(refused)
        else:
            self._rejected = ""
        why = "; ".join(text for text in (refused[:REASON_LIMIT], waits) if text)
        if not self.became_ready.is_set():
            self._become("waiting", why)
        elif self._status.state == "ready":
            self._status.become("ready", f"{SERVING}; {why}" if why else SERVING)

    def _reject(self, reason: str) -> None:
        """Say why the desired state is refused; once, while the reason stays."""
        if reason != self._rejected:
            self._rejected = reason
            if self.became_ready.is_set():  # else the change of state says it
                log.warning("%s", reason)
            detail = {"model": self.config.model_name, "detail": reason[:REASON_LIMIT]}
            self._tell("rejected", detail)

    def _loading(self, version: str) -> None:
        if not self.became_ready.is_set():
            self._become("loading", f"{self.config.model_name}@{version}")

    def _become_ready(self, own: Own) -> None:
        """Every lane of this node pulls: join the mesh, and tell everybody."""
        self._service.start()
        self._fleet.start()
        own(self._entry.run(), "own entry")
        own(self._membership.run(), "gossip")
        follows = {
            "takeover": self._takeover.run,
            "rollouts": self._judging.run,
            "lane moves": self._lane_moves.run,
            "weights": self._versions.follower.run,
        }
        if self._standby is not None:
            follows["standby"] = self._standby.run
        for part, run in follows.items():
            own(go_on(part, run, self._tell), part)
        watchdog = NodeWatchdog(
            self._versions.servers,
            self._versions.reload,
            self._tell,
            lambda reason: self._become("failed", reason),
        )
        own(watchdog.run(), "watchdog")
        own(self._save_regularly(), "checkpoint")
        if self._learning is not None:
            own(self._learning.run(), "learning")
        if self.config.answers_requests:
            own(self._objectives.run(), "objectives")
        for forwarder in self._forwarders:
            own(forwarder.run(), f"site {forwarder.site}")
        self._become("ready", SERVING)
        self._tell("joined", {})
        self.became_ready.set()

    async def _until_desired_state_changes(self, stop: asyncio.Event, pause: float) -> None:
        """Or until `stop`, the end of a version's task, or `pause` seconds later."""
        waiters = [
            asyncio.ensure_future(stop.wait()),
            asyncio.ensure_future(self._desired_changed.wait()),
        ]
        try:
            await asyncio.wait(
                [*waiters, *self._versions.tasks],
                timeout=pause,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            for waiter in waiters:
                waiter.cancel()

    async def _leave(self) -> None:
        """Drain, say goodbye, and free all that the node holds, whatever fails on the way."""
        try:
            await self._say_goodbye()
        finally:
            await self._close()

    async def _close(self) -> None:
        try:
            await self.mesh.close()
        except SwarmError as error:
            log.warning("the mesh was not closed: %s", error)
        finally:
            if self.mesh.tracer is not None:
                await asyncio.to_thread(self.mesh.tracer.close)

    async def _say_goodbye(self) -> None:
        """Finish what runs, within `DRAIN_TIMEOUT`, and tell that this node leaves."""
        was_ready = self.became_ready.is_set()
        if was_ready:
            self._become("draining", "finishing what runs")
            self._entry.announce(draining=True)
            self._save()
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT):
                self._fleet.stop()
                await self._service.stop()
                await self._versions.drain()
        except (TimeoutError, ExceptionGroup) as error:
            log.warning("left without draining: %r", error)
        if self._audit is not None and self.mesh.link.connected:
            await self._audit.close()
        if was_ready:
            self._membership.leave()
        self.answerer.close()
        self._become("left", "stopped")
        if was_ready:
            self._tell("left", {})

    def _become(self, state: str, detail: str) -> None:
        if self._status.become(state, detail):
            self._on_change({"event": state, "node": self.id, "detail": detail})

    # --- answers to its parts -----------------------------------------------------------------

    def _learning_status(self) -> dict[str, Any]:
        return {} if self._learning is None else self._learning.status()

    def _drain_when_told(self, stop: asyncio.Event) -> None:
        """Drain and end once an operator asks for it, as on SIGTERM."""

        def told(message: LinkMessage) -> None:
            if message.reply:
                answer = {"v": 1, "node": self.id, "state": "draining"}
                self.mesh.link.publish(message.reply, json.dumps(answer).encode())
            log.info("told to drain")
            (self._end or stop.set)()

        self.mesh.link.subscribe(self.mesh.subjects.drain(self.id), told)

    def _desired_read(self, model: str, document: dict[str, Any]) -> None:
        self._router.apply(model, document)
        with contextlib.suppress(BadDesiredState):  # the router has told of it
            self._own_objective = model, parse_desired(document | {"model": model}).slo

    def _objective_of(self, model: str) -> Objective | None:
        known, objective = self._own_objective
        return objective if known == model else self.mesh.catalog.objective(model)

    def _knows_desired_state_of(self, model: str) -> bool:
        return self._own_objective[0] == model or self.mesh.catalog.knows(model)

    def _answered(self, model: str, request: Request, result: Result) -> None:
        self._objectives.answered(model, request, result)
        if self._audit is not None:
            self._audit.asked(model, request, result)

    def _requests_status(self) -> dict[str, Any]:
        if not self.config.answers_requests:
            return {}
        return {"requests": self.answerer.figures(time.monotonic())}

    def _audit_status(self) -> dict[str, Any]:
        return {} if self._audit is None else self._audit.status()

    def _site_status(self) -> dict[str, Any]:
        forwarders = {each.site: each.status() for each in self._forwarders}
        return {"sites": forwarders} if forwarders else {}

    def _on_gossip(self, event: Event) -> None:
        self._takeover.on_event(event)
        if self._standby is not None:
            self._standby.on_event(event)

    def _may_use_own_lanes(self, model: str) -> bool:
        """Whether this user's rights name lanes of single nodes."""
        subjects, grants = self.mesh.subjects, self.mesh.link.grants
        lane = subjects.features(model, "0", (self.config.stage or 0) + 1, self.id)
        stream = subjects.stream(model, "0", 1, self.mesh.link.domain)
        makes = api("CONSUMER.CREATE", stream, subjects.consumer(model, 1, self.id), lane)
        return grants.may_publish(lane) and self.mesh.link.may_call(makes)

    def _tell(self, kind: str, detail: dict[str, Any]) -> None:
        self._status.tell(kind, detail)

    def _service_subjects(self) -> list[str]:
        """The subjects that any NATS client may ask this node on."""
        if not self.config.answers_requests:
            return []
        if self.config.role == "gateway":
            return [f"{self.mesh.subjects.root}.infer.*"]
        return [self.mesh.subjects.infer(self.config.model_name)]

    async def _answer(self, model: str, request: Request) -> Result:
        return await self.answerer.answer(model, request)

    # --- the checkpoint -----------------------------------------------------------------------

    async def _save_regularly(self) -> None:
        while True:
            await asyncio.sleep(SAVE_EVERY)
            self._save()

    def _save(self) -> None:
        """Keep for this node's successor how long the stages take."""
        try:
            self._checkpoint.save({USUAL_TIMES: self._versions.usual_times()})
        except OSError as error:
            log.warning("the checkpoint was not saved: %s", error)


def _entry_copies(config: NodeConfig) -> EntryCopies | None:
    """An edge can answer by itself, so it must be able to start while its link is cut."""
    if config.role != "edge" or not config.cache_folder:
        return None
    return EntryCopies(Path(config.cache_folder) / "registry" / (config.link.domain or "own"))


def usual_times(checkpoint: Mapping[str, Any]) -> dict[str, int]:
    """p99 of each stage's run, microseconds, as a checkpoint holds them; {} where it does not."""
    known = checkpoint.get(USUAL_TIMES)
    return known if isinstance(known, dict) else {}


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel, again where it was swallowed: in Python 3.11 a `wait_for` that is cancelled just
    when it is done returns as if nothing had happened, and nats-py waits so."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=1.0)
