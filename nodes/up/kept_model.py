"""A model version in a folder, which a local mesh serves: pushed once, and put back where the
server lost it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import swarm
from nodes.versions.lanes import lanes_maker
from nodes.versions.upkeep import Flaw, upkeep_by_operator
from shards.manifest import read_dir
from shards.weights.chunks import piece_lengths
from swarm.errors import LinkEnded, SwarmError
from swarm.flow.backoff import Backoff
from swarm.link.kept_stream import MISSING
from swarm.models.artifacts import Source

log = logging.getLogger("swarm.up")

LOOK_EVERY = 3.0  # seconds between looks at what the server keeps
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0  # seconds between attempts to put a model back, doubled


async def push_to_serve(
    mesh: swarm.Mesh, manifest: bytes, files: Mapping[str, Source], sent: Callable[[int], None]
) -> str:
    """Store a version, and let it serve all traffic; returns the version. Raises as
    `Registry.push`."""
    registry = mesh.registry
    prepare = lanes_maker(mesh)
    info = await registry.push(manifest, files, prepare=prepare, sent=sent, cut=piece_lengths)
    if await registry.served(info.model) != info.version:
        await registry.promote(info.model, info.version)
    return info.version


class KeptModel:
    """`push()` puts the folder's model into the mesh; `run()` puts it back where parts of it are
    missing, after each reconnect and each `LOOK_EVERY` seconds.

    folder: made by `shards.manifest.write_dir`. tell(kind, detail): is told when it was put back.
    Raises `ShardsError` for a folder that holds no model.
    """

    def __init__(
        self, mesh: swarm.Mesh, folder: Path, tell: Callable[[str, dict[str, Any]], None]
    ) -> None:
        self._mesh = mesh
        self._tell = tell
        self.manifest, _ = read_dir(folder)
        self._document = self.manifest.to_json()
        self._told: list[Flaw] = []
        self._files = {name: folder / name for name in self.manifest.files()}

    @property
    def name(self) -> str:
        """NAME@VERSION."""
        return f"{self.manifest.model}@{self.manifest.version}"

    async def push(self, sent: Callable[[int], None] = lambda size: None) -> None:
        """Store the version, and let it serve all traffic. Raises as `Registry.push`."""
        await push_to_serve(self._mesh, self._document, self._files, sent)

    async def missing(self) -> list[str]:
        """What the mesh lacks of it, in words; empty when it has all. Raises `SwarmError`."""
        model, version = self.manifest.model, self.manifest.version
        lacking = await self._mesh.registry.lacking(model, version, self._files)
        if await self._mesh.registry.desired(model) is None:
            lacking.append("which version serves")
        return lacking

    async def put_back(self) -> list[str]:
        """Store again what is missing; returns that. Raises `SwarmError`, `OSError`."""
        lacking = await self.missing()
        if lacking:
            # Where no version is named to serve, this one is from now on; else that one stays.
            prepare = lanes_maker(self._mesh)
            await self._mesh.registry.push(
                self._document, self._files, prepare=prepare, cut=piece_lengths
            )
            self._tell(
                "put-back",
                {"detail": f"{self.name} is in the mesh again", "restored": lacking},
            )
        return lacking

    async def run(self) -> None:
        """Until cancelled."""
        connected = asyncio.Event()
        self._mesh.link.on_up.append(connected.set)
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY):
                        await connected.wait()
                try:
                    if connected.is_set():
                        connected.clear()
                        await self.put_back()
                    await self._look()
                    backoff.reset()
                except LinkEnded:
                    raise
                except (SwarmError, OSError) as error:
                    log.warning("%s is not put back yet: %s", self.name, error)
                    connected.set()
                    await asyncio.sleep(backoff.next())
        finally:
            self._mesh.link.on_up.remove(connected.set)

    async def _look(self) -> None:
        """Somebody may change what the server keeps while it runs. Raises as `put_back`."""
        if not self._mesh.link.connected:
            return
        kept = await upkeep_by_operator(self._mesh, [self.manifest.model])
        if any(flaw.text == MISSING for flaw in kept.left):
            await self.put_back()
        for flaw in kept.mended:
            self._tell("mended", {"stream": flaw.stream, "detail": f"{flaw.title}: {flaw.text}"})
        for flaw in kept.left:
            if flaw not in self._told:
                self._tell("flaw", flaw.document() | {"detail": flaw.line})
        self._told = list(kept.left)
