"""The models of a mesh as one process knows them: looked up once, forgotten when they may
change."""

from __future__ import annotations

from swarm.flow.objective import Objective
from swarm.model import ModelInfo, unknown_model
from swarm.routing import DesiredState, RequestInfo, parse_desired
from swarm.services.registry import Registry


class Catalog:
    """Model versions, and the desired state that says which version serves whom."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        # By the name that was asked for; only where the answer is the same for every requester.
        self.fixed: dict[str, ModelInfo] = {}
        self._infos: dict[tuple[str, str], ModelInfo] = {}
        self._desired: dict[str, DesiredState] = {}

    async def model(
        self, model: str, agent: str = "", session: str = "", request_id: str = ""
    ) -> ModelInfo:
        """`NAME` or `NAME@VERSION`. Without a version, the desired state decides: by share,
        sticky by agent or session. Raises `NotFound`, `Unavailable`."""
        info = self.known(model, agent, session, request_id)
        if info is None:
            name, _, version = model.partition("@")
            version = version or await self.version_for(name, agent, session, request_id)
            info = self._infos[(name, version)] = await self._registry.info(name, version)
            state = self._desired.get(name)
            if "@" in model or (state is not None and len(state.serve) == 1):
                self.fixed[model] = info
        return info

    def known(self, model: str, agent: str, session: str, request_id: str) -> ModelInfo | None:
        """The answer of `model` where nothing has to be looked up, else None."""
        name, _, version = model.partition("@")
        version = version or self._known_version(name, agent, session, request_id)
        return self._infos.get((name, version))

    async def version_for(self, model: str, agent: str, session: str, request_id: str) -> str:
        """The version that serves this requester. Raises `NotFound`, `Unavailable`."""
        if model not in self._desired:
            document = await self._registry.desired(model)
            if document is None:
                raise unknown_model(model)
            self._desired[model] = parse_desired(document | {"model": model})
        return self._known_version(model, agent, session, request_id)

    def _known_version(self, model: str, agent: str, session: str, request_id: str) -> str:
        """The version that serves this requester; "" when it has to be looked up."""
        state = self._desired.get(model)
        if state is None:
            return ""
        if len(state.serve) == 1:
            return state.serve[0].version
        return state.version_for(RequestInfo(request_id, model, "", 1, agent, session))

    def objective(self, model: str) -> Objective | None:
        """Of the desired state, where that is known; None where it has none."""
        state = self._desired.get(model)
        return None if state is None else state.slo

    def forget(self) -> None:
        """Models or desired state may have changed: look all up again."""
        self.fixed.clear()
        self._infos.clear()
        self._desired.clear()
