"""The mesh with rights, TLS and encryption at rest, one after the other, for their price."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from bench.rivals.systems.swarm_mesh import Swarm, SwarmWire

if TYPE_CHECKING:
    from nodes.up.mesh import LocalMesh

KEY = "k0123456789abcdef0123456789abcdef"  # of the files of a benchmark


class _WithUsers(Swarm):
    """The client asks as a requester: the mesh's own connection is an operator's."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._asks: Any = None

    async def client(self, local: LocalMesh) -> Any:
        import swarm

        assert local.rights is not None
        access = local.rights.issue("requester", self._model)
        self._asks = swarm.connect(
            local.url, "bench", agent="bench", shm=self.short_cuts, **access.options()
        )
        return await self._asks.__aenter__()

    async def serve(self, ready: Callable[[], None], stopping: asyncio.Event) -> None:
        try:
            await super().serve(ready, stopping)
        finally:
            if self._asks is not None:
                await self._asks.__aexit__(None, None, None)


class HostSecured(_WithUsers):
    """On one host, with users, TLS and an encrypted store."""

    mesh_options: ClassVar[dict[str, Any]] = {"secure": True}


class WireUsers(_WithUsers, SwarmWire):
    """Through the server, which knows users."""

    mesh_options: ClassVar[dict[str, Any]] = {"secure": True, "tls": False, "store_key": ""}


class WireTls(_WithUsers, SwarmWire):
    """Through the server, which knows users, by TLS 1.3."""

    mesh_options: ClassVar[dict[str, Any]] = {"secure": True, "store_key": ""}


class WireFile(SwarmWire):
    """Through lanes in files."""

    node_flags: ClassVar[tuple[str, ...]] = ("--storage", "file")


class WireFileEncrypted(WireFile):
    """Through lanes in files that the server encrypts."""

    mesh_options: ClassVar[dict[str, Any]] = {"store_key": KEY}
