"""The model versions that a node serves, kept in agreement with the mesh's desired state."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from nodes.audit import Audit
from nodes.connection.connection import Connection
from nodes.feature import Places
from nodes.features import first
from nodes.stage.server import StageServer
from nodes.versions.asked_models import AskedModels
from nodes.versions.clock_news import ClockNews
from nodes.versions.kept_times import KeptTimes
from nodes.versions.loaded import Loaded
from nodes.versions.loader import Loader
from nodes.versions.refused_versions import RefusedVersions
from nodes.versions.serving import Serving, SharedByStages, serving_of
from shards.errors import ShardsError
from swarm.errors import ApiError, InvalidArgument, NotFound, SwarmError, Unavailable
from swarm.fleet.placement import Served
from swarm.fleet.warm_pool import ROLE as WARM
from swarm.model import ModelInfo
from swarm.models.trials import FollowedTrial
from swarm.routing import DesiredState
from swarm.routing.rendezvous import rendezvous
from swarm.transport.lane import check_one_domain, find_streams

log = logging.getLogger("swarm.node")


# When versions begin and end. All times are in seconds.
# For which a version that shall serve no more goes on, once all others are served: requests are
# under way, and requesters hear late; and after which it ends even if a stage gets no node for the
# new one.
LINGERS, LINGERS_AT_MOST = 5.0, 120.0
PULLS_WITHIN = 5.0  # in which the lanes of a version have to pull when it is loaded
PULLS_AGAIN_WITHIN = 1.0  # in which they have to pull at each reconciliation after that
# From one reconciliation to the next while a version waits for its end.
ROLLING_EVERY = 0.5
ASKED_EVERY = 1.0  # the same where a version asks others, which may not be served


class LanesWait(Unavailable):
    """A version is loaded, and its lanes do not pull yet, or it asks one that nobody serves."""


class Versions:
    """The served versions, by name; a gateway's models, loaded on demand.

    on_desired: each is called with the model and the document of each desired state that was read.
    """

    def __init__(
        self,
        connection: Connection,
        on_desired: Sequence[Callable[[str, dict[str, Any]], None]],
        times: KeptTimes,
        audit: Audit | None = None,
    ) -> None:
        self.serving: dict[str, Serving] = {}
        self.loader = Loader(connection)
        self._mesh = connection.mesh
        self._config = config = connection.config
        # What says which stages are served, None where the role does.
        self.places = first(lambda feature: feature.places(config))
        self._node = connection.id
        self._on_desired = on_desired
        self._times = times
        news = ClockNews(connection.id, connection.peers.serving, connection.events.tell)
        self._shared = SharedByStages(
            connection, news.stepped, self.loader.weights_are_behind, audit, self._is_crowded
        )
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._waiting: set[str] = set()  # versions of which some lane has not pulled yet
        self._refused = RefusedVersions()
        self._asked = AskedModels(self._load_for_gateway, self.loader.free, time.monotonic)
        self._state: DesiredState | None = None  # as read last
        self._disbelieved = ""  # why a newer one is not believed
        self._unwanted: dict[str, float] = {}  # since when, `time.monotonic()`
        self._all_served_at = 0.0  # when a wanted version lacked a node last

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
    def desired(self) -> DesiredState | None:
        """As it was read last; None before."""
        return self._state

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
        return "; ".join([self._disbelieved, *reasons] if self._disbelieved else reasons)

    @property
    def due_after(self) -> float | None:
        """Seconds after which `reconcile` has something to do even if nothing changes; else
        None."""
        if self._unwanted or self._is_rolling_out():
            return ROLLING_EVERY
        return ASKED_EVERY if any(serving.info.asks for serving in self.all()) else None

    def _is_rolling_out(self) -> bool:
        followed = self._mesh.rollouts.of(self._config.model_name)
        if followed is None:
            return False
        return not (followed.done or followed.aborted)

    async def reconcile(self, on_loading: Callable[[str], None], *, read: bool = True) -> None:
        """Load the versions that are missing, then drain those that shall serve no more.

        on_loading(version) is called before each loading. read: whether to read the desired state,
        instead of going by the one that was read last. A version that cannot be loaded is refused
        (`refused`), and tried again later; the others serve on, and none of them ends for it.

        Raises `NotFound` when the model is not in the mesh yet, `Unavailable` (`LanesWait` where
        all is done but that some lane pulls), the error that ended a version's task, and what
        loading raised where the node serves nothing.
        """
        for version, task in list(self._runs.items()):
            if task.done():
                # First drain what the failed version has left, since it is loaded anew.
                await self._retire(version)
        if self._config.role == "gateway":
            self._asked.tend()
            return
        if read or self._state is None:
            await self._read()
        wanted = self._wanted()
        await self._load_missing(wanted, on_loading)
        if self.places is not None:
            await self._change_places(self.places)
        self._tell_judges()
        served = [v for v in wanted if v in self.serving]
        if wanted and not served:
            self._unwanted = {}  # all wanted versions are refused: the ones that serve go on
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
        waits = [self._why_it_waits(v) for v in wanted if v in self._waiting]
        if waits := waits + [serving.lacks for serving in self.all() if serving.lacks]:
            raise LanesWait("; ".join(waits))

    def _is_served_as_well(self, version: str) -> bool:
        """Whether a version that stays is served as well as those that shall end: each of its
        stages has a node, and primaries if the others have primaries."""
        served = self._mesh.placement.served
        least = max((served(self.serving[v].info) for v in self._unwanted), default=Served.NOWHERE)
        return served(self.serving[version].info) >= max(least, Served.BY_FALLBACKS)

    async def _load_missing(
        self, wanted: Collection[str], on_loading: Callable[[str], None]
    ) -> None:
        """Serve the wanted versions, or refuse them. Raises what may pass by itself, and what
        loading raised where nothing is served then."""
        self._refused.forget_all_but(wanted)
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
                # Others made this version: an error of loading it, whichever it is, ends no version
                # that serves.
                failed = error
                if not isinstance(error, SwarmError | ShardsError):
                    log.exception("%s@%s met a defect", self._config.model_name, version)
                self._refused.refuse(version, str(error) or repr(error), time.monotonic())
            else:
                self._refused.served(version)
        if failed is not None and not self.serving:
            self._refused.retry_all()
            raise failed

    async def _change_places(self, places: Places) -> None:
        """Serve the stages that this node shall serve now, then let go of the others."""
        for version, serving in self.serving.items():
            wanted = places.stages(version)
            if wanted is None:
                continue
            for stage in sorted(wanted - serving.stages):
                try:
                    await self._add_stage(serving, stage)
                except (NotFound, Unavailable, ApiError):
                    raise
                except (SwarmError, ShardsError) as error:
                    places.failed(version, stage, error)
                    break
            # Loading takes a while: others may have taken more of its stages meanwhile.
            wanted = places.stages(version)
            for stage in [] if wanted is None else sorted(serving.stages - wanted):
                await serving.remove(stage)
                await self.loader.weights.remove_stage(serving.loaded, stage)
                log.info("%s@%s stage %d: let go", serving.info.model, version, stage)

    async def _add_stage(self, serving: Serving, stage: int) -> None:
        await self.loader.add(serving.loaded, [stage])
        server = serving.add(stage)
        self._times.prime([server])
        try:
            await server.source.ready(PULLS_WITHIN)
        except TimeoutError:
            why = server.source.waits_for
            await serving.remove(stage)
            await self.loader.weights.remove_stage(serving.loaded, stage)
            raise LanesWait(f"the lane of stage {stage} is waited for: {why}") from None
        log.info("%s@%s stage %d: serves", serving.info.model, serving.info.version, stage)

    def _tell_judges(self) -> None:
        """What this node cannot run is evidence against a version under rollout. Not of a standby:
        it holds as much as it has room for."""
        rollouts, name = self._mesh.rollouts, self._config.model_name
        followed = rollouts.of(name)
        if followed is not None and self._config.role != WARM:
            reason = self._refused.reason(followed.plan.version)
            rollouts.cannot_run(name, reason and f"{self._node} cannot run it: {reason}")

    async def _read(self) -> None:
        name, pinned = self._config.model_name, self._config.version
        present = await self._mesh.registry.in_force(name)
        self._mesh.rollouts.follow(name, present)
        self._disbelieved = "" if present is None else present.refused
        state = None if present is None else present.state
        if state != self._state:
            self._refused.retry_all()
        self._state = state
        if present is not None:
            for tell in self._on_desired:
                tell(name, present.document)
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
        self._mesh.rollouts.share(name)  # this call takes in what the judges have said
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
        if self.places is not None and info.generates:
            raise InvalidArgument(
                f"{info.model}@{version} is a language model: name the stages of its nodes, as "
                "--role shard-1"
            )
        # By the rights of a shard it may ask for its own stage.
        others = asyncio.create_task(
            find_streams(mesh.link, mesh.subjects, info.model, version, self._config.stage or 1)
        )
        try:
            loaded = await self.loader.load(
                info,
                edge=self._config.answers_requests,
                lighter=self._config.role == "edge",
                stages=self._stages_of_standby(info),
                urgent=self._config.missed and not self.serving,
            )
            try:
                check_one_domain(await others, mesh.link.domain, f"{info.model}@{version}")
                serving = serving_of(self._shared, loaded)
            except BaseException:  # nobody else closes what has just been loaded
                self.loader.free(loaded)
                raise
        finally:
            others.cancel()
        self._times.prime(serving.servers)
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

    def _stages_of_standby(self, info: ModelInfo) -> list[int] | None:
        """The stages that a standby holds, as far as they fit into its memory: where that is short,
        standbys begin with different ones. None for the stages of the role."""
        if self._config.role != WARM:
            return None
        stages = self._config.stages_of(info)
        return [int(stage) for stage in rendezvous(self._node, map(str, stages))]

    def _is_crowded(self) -> bool:
        return sum(server.queued for server in self.servers()) > 1

    async def _retire(self, version: str) -> None:
        """Drain a version, and free all that it holds. Raises the error that ended its task."""
        serving = self.serving.pop(version)
        self._unwanted.pop(version, None)
        self._waiting.discard(version)
        task = self._runs.pop(version, None)
        try:
            await serving.drain()
        finally:
            self.loader.forget(serving.loaded)
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
        return await self.loader.load(await self._mesh.model(f"{model}@{version}"), edge=True)

    async def drain(self) -> None:
        """Hand back what has not begun, finish what runs, and free all runtimes."""
        for version in list(self.serving):
            try:
                await self._retire(version)
            except SwarmError as error:
                log.warning("version %s left without draining: %s", version, error)
        for task in self._runs.values():
            task.cancel()
        self._asked.close()


def wanted_of(state: DesiredState, followed: FollowedTrial | None) -> list[str]:
    """The versions that nodes serve: of a rollout both, until it has ended one way or the other."""
    plan = state.rollout
    if plan is None or followed is None or followed.plan.id != plan.id:
        return list(state.versions)
    if followed.aborted:
        return [v for v in state.versions if v != plan.version or v in state.kept]
    if followed.done:
        return list(dict.fromkeys([plan.version, *state.kept]))
    return list(state.versions)
