"""The model versions that a node serves, kept in agreement with the mesh's desired state."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from nodes.config import NodeConfig
from nodes.stage.server import LanePicker, StageAudit, StageServer
from nodes.versions.artifacts import NodeArtifacts
from nodes.versions.asked_models import AskedModels
from nodes.versions.following import WeightFollower
from nodes.versions.live_weights import NodeWeights
from nodes.versions.refused_versions import RefusedVersions
from nodes.versions.serving import Loaded, Serving, learn_known, load
from shards.errors import ShardsError
from swarm.clock import ServerClock
from swarm.errors import ApiError, NotFound, SwarmError, Unavailable
from swarm.fleet.placement import Served
from swarm.fleet.warm_pool import ROLE as WARM
from swarm.learning.weights import Weights
from swarm.mesh import Mesh
from swarm.model import ModelInfo
from swarm.models.followed_rollouts import Followed
from swarm.routing import DesiredState
from swarm.routing.rendezvous import rendezvous
from swarm.security.trusted_keys import AllowList
from swarm.transport.lane import check_one_domain, streams_of

log = logging.getLogger("swarm.node")

LONGEST_RUN_US = 60_000_000  # a longer time in a checkpoint is not believed
# Seconds for which a version that shall serve no more goes on, once all others are served: requests
# are under way, and requesters hear late. Where some stage gets no node for the new one, it ends
# all the same.
LINGERS, LINGERS_AT_MOST = 5.0, 120.0
# Seconds in which the lanes of a version have to pull: when it is loaded; at each look after it.
PULLS_WITHIN, PULLS_AGAIN_WITHIN = 5.0, 1.0
LOOK_AGAIN = 0.5  # seconds, while a version waits for its end


class LanesWait(Unavailable):
    """A version is loaded, and its lanes do not pull yet."""


class Versions:
    """The served versions, by name; a gateway's models, loaded on demand.

    on_desired(model, document) is called with each desired state that was read. lanes: the
    routing policy. usual_times: `usual_times()` of this node's predecessor, or {}. tell(kind,
    detail): publishes an event.
    """

    def __init__(
        self,
        mesh: Mesh,
        config: NodeConfig,
        node: str,
        on_desired: Callable[[str, dict[str, Any]], None],
        lanes: LanePicker,
        usual_times: Mapping[str, int],
        tell: Callable[[str, dict[str, Any]], None],
        audit: StageAudit | None = None,
    ) -> None:
        self.serving: dict[str, Serving] = {}
        self._mesh = mesh
        self._config = config
        self._node = node
        self._on_desired = on_desired
        self._lanes = lanes
        self._usual_times = usual_times
        self._audit = audit
        self._tell = tell
        self.artifacts = NodeArtifacts(
            mesh.registry, config.cache_folder, config.cache_limit, config.artifact_key, tell
        )
        self.weights = NodeWeights(mesh, self.artifacts, config, self._behind)
        teachers, signed = AllowList.read(config.teachers), config.trusted is not None
        ledgers = Weights(mesh.link, mesh.subjects, allowed=teachers, signed=signed)
        self.follower = WeightFollower(ledgers, self.weights.take, tell)
        self._clock = ServerClock()
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._waiting: set[str] = set()  # versions of which some lane has not pulled yet
        self._refused = RefusedVersions()
        self._asked = AskedModels(self._load_for_gateway, self._free, time.monotonic)
        self._state: DesiredState | None = None  # as read last
        self._spoilt = ""  # why a newer one is not believed
        self._unwanted: dict[str, float] = {}  # since when, `time.monotonic()`
        self._all_served_at = 0.0  # when a wanted version lacked a node last

    def _behind(self, model: str, version: str, n: int) -> None:
        self.follower.behind(model, version, n)

    def all(self) -> list[Serving]:
        """The versions being served, in the order of their loading."""
        return list(self.serving.values())

    def pulling(self) -> list[Serving]:
        """Those of `all()` whose lanes have begun to pull, which others may ask."""
        return [serving for v, serving in self.serving.items() if v not in self._waiting]

    def servers(self) -> list[StageServer]:
        """The stages of all versions."""
        return [server for serving in self.serving.values() for server in serving.servers]

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """One task for each version; a task that ends has failed."""
        return list(self._runs.values())

    @property
    def refused(self) -> str:
        """Why the desired state is not believed, where that of before holds, and the wanted
        versions that this node cannot run; "" where it serves all."""
        name = self._config.model_name
        reasons = [
            f"{name}@{version} cannot be served here: {why}"
            for version, why in self._refused.reasons.items()
        ]
        return "; ".join([self._spoilt, *reasons] if self._spoilt else reasons)

    @property
    def look_again(self) -> float | None:
        """Seconds after which `reconcile` has something to do even if nothing changes; else
        None."""
        return LOOK_AGAIN if self._unwanted or self._is_rolling_out() else None

    def _is_rolling_out(self) -> bool:
        followed = self._mesh.rollouts.of(self._config.model_name)
        if followed is None:
            return False
        return not (followed.progress.done or followed.progress.aborted)

    async def reconcile(self, on_loading: Callable[[str], None], *, look: bool = True) -> None:
        """Load the versions that are missing, then drain those that shall serve no more.

        on_loading(version) is called before each loading. look: whether to read the desired state,
        instead of going by the one that was read last. A version that cannot be loaded is refused
        (`refused`), and tried again later; the others serve on, and none of them ends for it.

        Raises `NotFound` when the model is not in the mesh yet, `Unavailable` (`LanesWait` where
        all is done but that some lane pulls), the error that ended a version's task, and what
        loading raised where the node serves nothing.
        """
        for version, task in list(self._runs.items()):
            if task.done():
                # What it has left open ends first: it is loaded anew.
                await self._retire(version)
        if self._config.role == "gateway":
            self._asked.tend()
            return
        if look or self._state is None:
            await self._look()
        wanted = self._wanted()
        await self._load_missing(wanted, on_loading)
        self._tell_judges()
        served = [v for v in wanted if v in self.serving]
        if wanted and not served:
            self._unwanted = {}  # all of them are refused: what serves is better than nothing
            return
        now = time.monotonic()
        self._unwanted = {v: self._unwanted.get(v, now) for v in self.serving if v not in wanted}
        if not all(map(self._is_served_as_well, served)):
            self._all_served_at = now
        for version, since in list(self._unwanted.items()):
            lingered = now - max(since, self._all_served_at)
            if lingered >= LINGERS or now - since >= LINGERS_AT_MOST:
                log.info("version %s serves no more", version)
                await self._retire(version)
        if waits := [v for v in wanted if v in self._waiting]:
            raise LanesWait("; ".join(map(self._why_it_waits, waits)))

    def _is_served_as_well(self, version: str) -> bool:
        """Whether every stage of a version has a node, this one among them, and none has fallbacks
        only where a version that goes has more."""
        served = self._mesh.placement.served
        least = max((served(self.serving[v].info) for v in self._unwanted), default=Served.NOWHERE)
        return served(self.serving[version].info) >= max(least, Served.BY_FALLBACKS)

    async def _load_missing(
        self, wanted: Collection[str], on_loading: Callable[[str], None]
    ) -> None:
        """Serve the wanted versions, or refuse them. Raises what may pass by itself, and what
        loading raised where nothing is served then."""
        self._refused.keep(wanted)
        failed: Exception | None = None
        for version in wanted:
            if version in self._waiting:
                await self._until_lanes_pull(version, PULLS_AGAIN_WITHIN)
            if version in self.serving or not self._refused.is_due(version, time.monotonic()):
                continue
            if version not in self._refused:
                on_loading(version)
            try:
                await self._serve(version)
            except (NotFound, Unavailable, ApiError):
                raise
            except Exception as error:
                # Others made this version: whatever it raises, it ends none that serves.
                failed = error
                if not isinstance(error, SwarmError | ShardsError):
                    log.exception("%s@%s met a defect", self._config.model_name, version)
                self._refused.refuse(version, str(error) or repr(error), time.monotonic())
            else:
                self._refused.took(version)
        if failed is not None and not self.serving:
            self._refused.changed()
            raise failed

    def _tell_judges(self) -> None:
        """What this node cannot run is evidence against a version under rollout. Not of a standby:
        it holds as much as it has room for."""
        rollouts, name = self._mesh.rollouts, self._config.model_name
        followed = rollouts.of(name)
        if followed is not None and self._config.role != WARM:
            reason = self._refused.reason(followed.plan.version)
            rollouts.cannot_run(name, reason and f"{self._node} cannot run it: {reason}")

    async def _look(self) -> None:
        name, pinned = self._config.model_name, self._config.version
        present = await self._mesh.registry.in_force(name)
        self._mesh.rollouts.follow(name, present)
        self._spoilt = "" if present is None else present.refused
        state = None if present is None else present.state
        if state != self._state:
            self._refused.changed()
        self._state = state
        if present is not None:
            self._on_desired(name, present.document)
        if pinned:
            await self._mesh.registry.manifest(name, pinned)
        elif present is None:
            raise NotFound(
                f"model {name!r} is not in mesh {self._config.mesh!r} yet: "
                "push it (`swarm model push DIR`) and this node goes on by itself"
                + self._about_domain()
            )

    def _wanted(self) -> list[str]:
        name, pinned = self._config.model_name, self._config.version
        if pinned or self._state is None:
            return [pinned] if pinned else []
        self._mesh.rollouts.share(name)  # which takes in what the judges have said
        return wanted_of(self._state, self._mesh.rollouts.of(name))

    def _about_domain(self) -> str:
        """For a node that finds nothing: at a site, the models may be at the hub."""
        link = self._mesh.link
        if not link.domain:
            return ""
        return f" (in JetStream domain {link.domain!r}; another one: --domain NAME)"

    async def _serve(self, version: str) -> None:
        mesh = self._mesh
        info = await mesh.registry.info(self._config.model_name, version)
        urgent = self._config.missed and not self.serving
        # By the rights of a shard it may ask for its own stage.
        others = asyncio.create_task(
            streams_of(mesh.link, mesh.subjects, info.model, version, self._config.stage or 1)
        )
        try:
            loaded = await load(
                mesh,
                self.artifacts,
                self._config,
                info,
                edge=self._config.answers_requests,
                lighter=self._config.role == "edge",
                stages=self._held(info),
                urgent=urgent,
                tell=self._tell,
            )
            try:
                await learn_known(loaded, self._config, urgent)
                check_one_domain(await others, mesh.link.domain, f"{info.model}@{version}")
                self.weights.add(loaded)
                await self.follower.follow(info.model, version)
                serving = self._new_serving(loaded)
            except BaseException:  # nobody else closes what has just been loaded
                self._free(loaded)
                raise
        finally:
            others.cancel()
        self._prime(serving)
        self._runs[version] = asyncio.create_task(serving.run(), name=f"serve {version}")
        self.serving[version] = serving
        self._waiting.add(version)
        log.info("%s@%s loaded in %.2f s", info.model, version, loaded.seconds)
        await self._until_lanes_pull(version, PULLS_WITHIN)

    async def _until_lanes_pull(self, version: str, within: float) -> None:
        """Or until `within` seconds have passed: then the next look waits again."""
        try:
            await self.serving[version].ready(within)
        except TimeoutError:
            return
        self._waiting.discard(version)

    def _why_it_waits(self, version: str) -> str:
        serving = self.serving[version]
        why = serving.waits_for or "the server has not answered yet"
        return f"the lanes of {serving.info.model}@{version} are waited for: {why}"

    def _held(self, info: ModelInfo) -> list[int] | None:
        """The stages that a standby holds, as far as they fit into its memory: where that is short,
        standbys begin with different ones. None for the stages of the role."""
        if self._config.role != WARM:
            return None
        stages = self._config.stages_of(info)
        return [int(stage) for stage in rendezvous(self._node, map(str, stages))]

    def _new_serving(self, loaded: Loaded) -> Serving:
        return Serving(
            self._mesh,
            self._config,
            loaded,
            self._node,
            self._clock,
            self._lanes,
            self.weights.behind,
            self._audit,
            lambda: sum(server.queued for server in self.servers()) > 1,
        )

    def _forget(self, loaded: Loaded) -> None:
        """The weights of a version are followed no more."""
        self.follower.unfollow(loaded.info.model, loaded.info.version)
        self.weights.forget(loaded)

    def _free(self, loaded: Loaded) -> None:
        """A version that is loaded is needed no more."""
        self._forget(loaded)
        loaded.close()

    def _prime(self, serving: Serving) -> None:
        """Start from the times that the stages took before this node's restart."""
        for server in serving.servers:
            p99 = self._usual_times.get(_time_key(server))
            if isinstance(p99, int) and 0 < p99 < LONGEST_RUN_US:
                server.stats.compute.add(p99 / 1e6, time.monotonic())

    def usual_times(self) -> dict[str, int]:
        """p99 of each stage's run, microseconds, for this node's successor."""
        now = time.monotonic()
        return {
            _time_key(server): int(server.stats.compute.percentile(0.99, now) * 1e6)
            for server in self.servers()
        }

    async def reload(self, server: StageServer) -> None:
        """Load a new session for a stage whose old one cannot be trusted any more. It computes with
        the weights of the old one."""
        loaded = await load(
            self._mesh,
            self.artifacts,
            self._config,
            server.info,
            edge=False,
            lighter=False,
            stages=[server.stage],
            tell=self._tell,
        )
        await self.weights.renew(server, loaded.stages[server.stage])

    async def _retire(self, version: str) -> None:
        """Drain a version, and free all that it holds. Raises the error that ended its task."""
        serving = self.serving.pop(version)
        self._unwanted.pop(version, None)
        self._waiting.discard(version)
        task = self._runs.pop(version, None)
        try:
            await serving.drain()
        finally:
            self._forget(serving.loaded)
        if task is not None:
            await task

    def served(self, model: str) -> str:
        """A version of the model that this node serves, the newest by its loading; '' for none."""
        if model != self._config.model_name or not self.serving:
            return ""
        return list(self.serving)[-1]

    async def lookup(self, model: str, version: str) -> Loaded:
        """The runtimes of a model version on this node: none of a version that the mesh desires and
        this node does not serve, which other nodes may, where asking them needs no stage 0. Raises
        `NotFound`; `Unavailable` where it needs one."""
        if self._config.role == "gateway":
            return await self._asked.lookup(model, version)
        if model != self._config.model_name:
            raise NotFound(f"this node serves {self._config.model_name!r} only, not {model!r}")
        serving = self.serving.get(version)
        if serving is not None:
            return serving.loaded
        if version not in self._wanted():
            raise NotFound(f"{model}@{version} is not served here")
        info = await self._mesh.catalog.info(model, version)
        if info.edge is not None:
            why = self._refused.reason(version) or "it is being loaded"
            raise Unavailable(f"{model}@{version} is not served by {self._node}: {why}")
        return Loaded(info, {}, None, None, 0.0)

    async def _load_for_gateway(self, model: str, version: str) -> Loaded:
        info = await self._mesh.model(f"{model}@{version}")
        loaded = await load(
            self._mesh,
            self.artifacts,
            self._config,
            info,
            edge=True,
            lighter=False,
            tell=self._tell,
        )
        try:
            self.weights.add(loaded)
            await self.follower.follow(model, version)
        except BaseException:  # nobody else closes what has just been loaded
            self._free(loaded)
            raise
        return loaded

    async def drain(self) -> None:
        """Give back what has not begun, finish what runs, and free all runtimes."""
        for version in list(self.serving):
            try:
                await self._retire(version)
            except SwarmError as error:
                log.warning("version %s left without draining: %s", version, error)
        for task in self._runs.values():
            task.cancel()
        self._asked.close()


def wanted_of(state: DesiredState, followed: Followed | None) -> list[str]:
    """The versions that nodes serve: of a rollout both, until it has ended one way or the other."""
    plan = state.rollout
    if plan is None or followed is None or followed.plan.id != plan.id:
        return list(state.versions)
    progress = followed.progress
    if progress.aborted:
        return [v for v in state.versions if v != plan.version or v in state.pins.values()]
    if progress.done:
        return list(dict.fromkeys([plan.version, *state.pins.values()]))
    return list(state.versions)


def _time_key(server: StageServer) -> str:
    return f"{server.info.model}/{server.stage}"
