"""What stands behind a door in tests: one model, and callers who are all let in."""

from __future__ import annotations

from support.meshes import split_digits

from nodes.gateway.call import Caller
from nodes.gateway.models import Listed
from swarm.errors import SwarmError
from swarm.model import ModelInfo, unknown_model


class OneModel:
    """`Models` of one model, and of another one that no node serves. connected: what
    `is_connected` says."""

    def __init__(self, info: ModelInfo, other: Listed) -> None:
        self.info = info
        self.other = other
        self.connected = True

    def is_connected(self) -> bool:
        return self.connected

    async def describe(self, model: str, version: str = "") -> ModelInfo:
        if not await self.is_ready(model, version):
            raise unknown_model(model, version)
        return self.info

    async def versions(self, model: str) -> list[str]:
        return [(await self.describe(model)).version]

    async def is_ready(self, model: str, version: str = "") -> bool:
        return model == self.info.model and version in ("", self.info.version)

    async def listed(self) -> list[Listed]:
        return [Listed(self.info.model, self.info.version, True), self.other]

    async def manifest(self, model: str, version: str = "") -> bytes:
        return split_digits(stages=1).manifest.to_json()


class Anybody:
    """`Callers` who are all let in, by the name in their header `agent`. seen: headers, peers and
    certificates. refusal: instead. taken: requests that take from a quota."""

    def __init__(self) -> None:
        self.seen: list[tuple[dict[str, str], str, str]] = []
        self.refusal: SwarmError | None = None
        self.taken = 0

    def of(
        self, headers: dict[str, str], peer: str, certificate: str = "", *, takes: bool = True
    ) -> Caller:
        self.seen.append((headers, peer, certificate))
        if self.refusal is not None:
            raise self.refusal
        self.taken += takes
        return Caller(headers.get("agent", "robot-7"))
