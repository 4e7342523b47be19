"""Who keeps on record what a node answers and decides: the seam to a feature that does so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    from swarm.errors import Status, SwarmError
    from swarm.model import ModelInfo
    from swarm.wire.messages import Features, Request, Result


class EndedSession(Protocol):
    """How a session ended at its first stage. session: its public id. prompt, made: tokens."""

    @property
    def session(self) -> str: ...
    @property
    def agent(self) -> str: ...
    @property
    def status(self) -> Status: ...
    @property
    def prompt(self) -> int: ...
    @property
    def made(self) -> int: ...


class Audit(Protocol):
    """The record of one node. What it is told costs no wait, and raises nothing."""

    def received(
        self,
        features: Features,
        hop: dict[str, Any],
        steps: Mapping[str, Mapping[str, np.ndarray] | None],
    ) -> None:
        """Add to a stage's hop what the record needs; `features` has the stage's input still.
        steps: what the steps inside its run made, by name, None for what was left out."""
        ...

    def answered(self, features: Features, outputs: Mapping[str, np.ndarray]) -> None:
        """A stage has answered a request with these outputs."""
        ...

    def failed(self, features: Features, status: Status) -> None:
        """A stage has answered a request with a failure."""
        ...

    def session(self, info: ModelInfo, ended: EndedSession) -> None:
        """A session of a model has ended, or was refused."""
        ...

    def asked(self, model: str, request: Request, result: Result) -> None:
        """This node has answered a request of somebody else. result: with the id that the mesh
        knows the request by; `request.id` is the requester's own."""
        ...

    def refused(self, agent: str, error: SwarmError, peer: str) -> None:
        """A door of this node refused somebody. agent: "" where nobody knows who asks. peer: an
        address, or any other text."""
        ...

    def acted(self, act: str, fields: Mapping[str, Any]) -> None:
        """This node has decided something for the mesh. fields: texts of its own, and integers."""
        ...

    def status(self) -> dict[str, Any]:
        """Fields of the node's status document."""
        ...

    async def run(self) -> None:
        """Write what was told, from the moment that the node is connected, until cancelled."""
        ...

    async def close(self) -> None:
        """Write the rest."""
        ...
