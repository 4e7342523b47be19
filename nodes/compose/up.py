"""`swarm up --compose`: a composition of the models that this command starts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nodes.cli.command import seldom
from nodes.cli.model_split import model_name
from nodes.cli.options import OwnServers
from nodes.cli.up import UpOptions
from nodes.feature import Given
from nodes.up.companion import Companion
from nodes.up.version_choice import AUTO, chosen, known_versions
from swarm.errors import InvalidArgument
from swarm.model import ModelInfo

if TYPE_CHECKING:
    from nodes.up.mesh import LocalMesh
    from shards.manifest import Manifest


@dataclass(frozen=True)
class UpComposeOptions:
    """Of `swarm up`."""

    compose: str = seldom(
        "",
        "A composition of the models that are given: its TOML file, or the folder of `swarm "
        "compose build`. It gets nodes of its own, and is what people ask.",
    )


class UpComposition(Companion):
    """path: a file or a folder. replicas: nodes that run it."""

    def __init__(self, path: Path, replicas: int) -> None:
        self._path = path
        self._replicas = replicas
        self._manifest: Manifest | None = None

    async def prepare(self, local: LocalMesh) -> Sequence[str]:
        from nodes.compose.commands.build import built
        from shards.manifest import read_dir, rename_version

        folder = self._path
        if not folder.is_dir():
            name = model_name(str(self._path))
            folder = local.logs / f"composition-{name}"
            await built(local.mesh, str(self._path), folder, name, "1")
            known = await known_versions(local.mesh, name)
            version = chosen(AUTO, name, read_dir(folder)[0].to_json(), known).version
            await asyncio.to_thread(rename_version, folder, version)
        self._manifest, _ = read_dir(folder)
        await local.keep(folder)
        return ()

    def start(self, local: LocalMesh, model: str, flags: Sequence[str]) -> None:
        assert self._manifest is not None
        for _ in range(self._replicas):
            local.start("shard-1", self._manifest.model, *flags)

    def asked(self) -> Manifest | None:
        return self._manifest


def companions(given: Given) -> list[Companion]:
    """Raises `InvalidArgument` for what is no composition, or one that asks a model that nobody
    gives; `ShardsError`."""
    options, up, target = given.of(UpComposeOptions), given.of(UpOptions), given.of(OwnServers)
    if options is None or up is None or not options.compose:
        return []
    path = Path(options.compose)
    asked, name = _asked(path)
    names = {up.name or model_name(each) for each in up.model}
    if name in names:
        raise InvalidArgument(f"--compose {path}: a model has the name {name!r} already")
    # Another mesh may have the others.
    if (lacks := sorted(asked - names)) and not (target is not None and target.nats):
        words = ", ".join(f"--model {each}.onnx" for each in lacks)
        raise InvalidArgument(
            f"--compose {path} asks {', '.join(lacks)}: give {words}, files of these names"
        )
    return [UpComposition(path, up.replicas)]


def _asked(path: Path) -> tuple[set[str], str]:
    """The models that a composition asks, and its own name."""
    from nodes.compose.commands.check import read_composition
    from shards.manifest import read_dir

    if not path.is_dir():
        return {part.model for part in read_composition(str(path)).asks()}, model_name(str(path))
    manifest, _ = read_dir(path)
    info = ModelInfo.from_manifest(manifest.to_json())
    if not info.asks:
        raise InvalidArgument(f"--compose {path}: {manifest.model} is no composition")
    return {name.partition("@")[0] for name in info.asks}, manifest.model
