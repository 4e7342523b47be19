"""The models of a mesh as one process knows them: looked up once, forgotten when they may
change."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable

from swarm.errors import (
    ApiError,
    BadSignature,
    DecodeError,
    LinkEnded,
    NotConnected,
    Unavailable,
    Untrusted,
)
from swarm.fleet.placement import Served
from swarm.flow.backoff import Backoff
from swarm.flow.objective import Objective
from swarm.link import Link, jetstream
from swarm.model import ModelInfo, unknown_model
from swarm.models.registry import InForce, Registry
from swarm.models.trials import Trials
from swarm.routing import BadDesiredState, DesiredState, RequestInfo

log = logging.getLogger("swarm.catalog")

MOST_SESSIONS = 4096
LOOK_UP_PAUSE, LOOK_UP_PAUSE_MOST = 0.02, 0.5  # seconds between reads of a key, doubled
# Seconds for which requests keep to the version before, while the one that serves now has worse
# nodes than that: none in one of its stages, or a fallback alone.
KEPT_FOR = 30.0

Session = tuple[str, str, str]  # model, agent, session


class Catalog:
    """Model versions, and the desired state that says which version serves whom.

    served(info): which nodes the version has in all its stages, as far as this process knows.
    """

    def __init__(
        self,
        registry: Registry,
        trials: Trials,
        served: Callable[[ModelInfo], Served] = lambda info: Served.NOWHERE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = registry
        self._trials = trials
        self._served = served
        self._clock = clock
        # By the name that was asked for; only where the answer is the same for every requester.
        self.fixed: dict[str, ModelInfo] = {}
        self._infos: dict[tuple[str, str], ModelInfo] = {}
        self._desired: dict[str, DesiredState] = {}
        self._verified: dict[str, InForce] = {}  # by model: the last that could be believed
        self._changes = 0  # times that all was forgotten
        # The version of each session, the longest unused last to stay.
        self._sessions: OrderedDict[Session, str] = OrderedDict()
        # By model: the only version that served before a change, and until when it is kept.
        self._before: dict[str, tuple[ModelInfo, float]] = {}

    async def model(
        self, model: str, agent: str = "", session: str = "", request_id: str = ""
    ) -> ModelInfo:
        """`NAME` or `NAME@VERSION`. Without a version, the desired state decides: by pin, rollout
        and share, sticky by agent or session. Raises `NotFound`, `Unavailable`."""
        info = self.known(model, agent, session, request_id)
        if info is None:
            name, _, version = model.partition("@")
            version = version or await self.version_for(name, agent, session, request_id)
            info = await self.info(name, version)
            self._fix(model, info)
        return info

    async def look_up(
        self, link: Link, model: str, agent: str, session: str, request_id: str, deadline: float
    ) -> ModelInfo:
        """As `model`. A read that a server's end has cut off is repeated, by `deadline` in the
        loop's time: the next server knows the keys too. Raises what the last read raised."""
        now = asyncio.get_running_loop().time
        pauses = Backoff(LOOK_UP_PAUSE, LOOK_UP_PAUSE_MOST)
        while True:
            try:
                return await self.model(model, agent, session, request_id)
            except LinkEnded:
                raise
            except (Unavailable, ApiError) as error:
                if isinstance(error, ApiError) and error.err_code in jetstream.OFF:
                    raise
                # A server that has answered nothing since the first connection has no JetStream.
                was_cut_off = isinstance(error, NotConnected) or link.reconnects > 0
                pause = pauses.next()
                if not was_cut_off or now() + pause >= deadline:
                    raise
                await asyncio.sleep(pause)

    async def info(self, model: str, version: str) -> ModelInfo:
        """A version of a model. Raises `NotFound`, `Unavailable`."""
        info = self._infos.get((model, version))
        if info is None:
            info = self._infos[(model, version)] = await self._registry.info(model, version)
        return info

    def known(self, model: str, agent: str, session: str, request_id: str) -> ModelInfo | None:
        """The answer of `model` where nothing has to be looked up, else None."""
        name, _, version = model.partition("@")
        version = version or self._known_version(name, agent, session, request_id)
        info = self._infos.get((name, version))
        if info is not None:
            self._fix(model, info)
        return info

    def _fix(self, model: str, info: ModelInfo) -> None:
        """Answer at once from now on, if the answer is the same until the next change."""
        state = self._desired.get(info.model)
        same = state is not None and state.is_the_same_for_all and info.model not in self._before
        # The state may have changed while the manifest of another version was read.
        same = same and state is not None and state.serve[0].version == info.version
        if same or "@" in model:
            self.fixed[model] = info

    async def version_for(self, model: str, agent: str, session: str, request_id: str) -> str:
        """The version that serves this requester. Raises `NotFound`, `Unavailable`."""
        while model not in self._desired:
            changes = self._changes
            present = await self._believed(model)
            if present is None:
                raise unknown_model(model)
            if changes != self._changes:
                continue  # it may be what was there before the change
            self._trials.follow(model, present)
            await self._keep_before(model, present.state)
            if changes == self._changes:
                self._desired[model] = present.state
        return self._known_version(model, agent, session, request_id)

    async def _believed(self, model: str) -> InForce | None:
        """The model's desired state. While it is spoilt, the last good one holds, if one is known.
        Raises `BadDesiredState`, `BadSignature`, `Untrusted` where none was known."""
        try:
            present = await self._registry.in_force(model)
        except (BadDesiredState, BadSignature, Untrusted, DecodeError) as error:
            if model not in self._verified:
                raise
            log.warning(
                "%s: the desired state is refused, the last good one holds: %s", model, error
            )
            return self._verified[model]
        if present is None:
            self._verified.pop(model, None)
        else:
            self._verified[model] = present
        return present

    def _known_version(self, model: str, agent: str, session: str, request_id: str) -> str:
        """The version that serves this requester; "" when it has to be looked up."""
        state = self._desired.get(model)
        if state is None:
            return ""
        if model in self._before and (before := self._kept_before(model)):
            return before
        if session and state.sticky != "none":
            return self._session_version(state, agent, session, request_id)
        if state.is_the_same_for_all:
            return state.serve[0].version
        return self._chosen(state, agent, session, request_id)

    def _chosen(self, state: DesiredState, agent: str, session: str, request_id: str) -> str:
        request = RequestInfo(request_id, state.model, "", 1, agent, session)
        return state.version_for(request, self._trials.share(state.model))

    # --- sessions -------------------------------------------------------------------------

    def _session_version(
        self, state: DesiredState, agent: str, session: str, request_id: str
    ) -> str:
        """A session keeps the version that it began with, as long as that one serves."""
        key = state.model, agent, session
        version = self._sessions.get(key, "")
        if version and self._still_serves(state, agent, version):
            self._sessions.move_to_end(key)
            return version
        version = self._chosen(state, agent, session, request_id)
        self._sessions[key] = version
        self._sessions.move_to_end(key)
        if len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return version

    def _still_serves(self, state: DesiredState, agent: str, version: str) -> bool:
        if agent in state.pins:
            return version == state.pins[agent]
        followed = self._trials.of(state.model)
        if state.rollout is None or followed is None:
            return any(entry.version == version and entry.share > 0 for entry in state.serve)
        share = self._trials.share(state.model)
        if version == state.rollout.version:
            return share > 0
        served = any(entry.version == version and entry.share > 0 for entry in state.serve)
        return served and not followed.done

    def left(self, model: str, agent: str, session: str, version: str) -> None:
        """A version failed a request of a session, which goes on with another one."""
        if session:
            self._sessions[(model, agent, session)] = version

    # --- changes --------------------------------------------------------------------------

    def knows(self, model: str) -> bool:
        """Whether the desired state of a model is known at present."""
        return model in self._desired

    def objective(self, model: str) -> Objective | None:
        """Of the desired state, where that is known; None where it has none."""
        state = self._desired.get(model)
        return None if state is None else state.slo

    def forget(self) -> None:
        """Models or desired state may have changed: look all up again."""
        for model, state in self._desired.items():
            info = self._infos.get((model, self._only_version(state)))
            if info is not None and model not in self._before:
                self._before[model] = info, self._clock() + KEPT_FOR
        self._changes += 1
        self.fixed.clear()
        self._infos.clear()
        self._desired.clear()

    def _only_version(self, state: DesiredState) -> str:
        """The version that serves whoever asks; "" where there are several. Behind the end of a
        rollout it is the new one: nodes let the others go."""
        if state.is_the_same_for_all:
            return state.serve[0].version
        followed = self._trials.of(state.model)
        if followed is None or state.rollout is None or state.pins:
            return ""
        return state.rollout.version if followed.done else ""

    async def _keep_before(self, model: str, state: DesiredState) -> None:
        """Know the version that serves now, so that it can be seen whether nodes serve it."""
        if state.is_the_same_for_all:
            await self.info(model, state.serve[0].version)
        before = self._before.get(model)
        if before is None:
            return
        info = before[0]
        if state.is_the_same_for_all and state.serve[0].version != info.version:
            self._infos[(model, info.version)] = info
        else:
            del self._before[model]

    def _kept_before(self, model: str) -> str:
        """The version before, while it has better nodes than the one that serves now; "" once it
        has not. A fallback that comes back serves both: it is no reason to go while primaries still
        load the one and serve the other."""
        info, until = self._before[model]
        present = self._infos.get((model, self._desired[model].serve[0].version))
        waits = present is not None and self._served(info) > self._served(present)
        if waits and self._clock() < until:
            return info.version
        del self._before[model]
        return ""
