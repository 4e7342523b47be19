"""Which version of a model `swarm up` pushes: the mesh's own where it has the same, else the next.

The decision is `chosen`; `known_versions` reads what it decides by.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import swarm
from shards.manifest import FILE_NAME
from swarm.errors import SwarmError
from swarm.models.push_claim import same_content
from swarm.routing import BadDesiredState

log = logging.getLogger("swarm.up")

AUTO = "auto"
FIRST = "1"


@dataclass(frozen=True)
class KnownVersions:
    """The versions of a model in a mesh. names: of all. manifests: JSON by version, of those that
    can be believed; the one that serves first, then from the last number down."""

    names: tuple[str, ...] = ()
    manifests: Mapping[str, bytes] = field(default_factory=dict)

    def write(self, folder: Path) -> list[Path]:
        """Each manifest in a folder of its own, as `swarm model split --like` reads them."""
        written = []
        for version, manifest in self.manifests.items():
            (folder / version).mkdir(parents=True)
            (folder / version / FILE_NAME).write_bytes(manifest)
            written.append(folder / version)
        return written


@dataclass(frozen=True)
class VersionChoice:
    """A version's name, and the sentence that says why it is this one."""

    version: str
    why: str = ""


def chosen(asked: str, model: str, manifest: bytes, known: KnownVersions) -> VersionChoice:
    """The version of a manifest, JSON, whose own version does not count. asked: `AUTO`, or a
    version that the user names."""
    if asked != AUTO:
        return VersionChoice(asked)
    for version, there in known.manifests.items():
        if same_content(there, manifest):
            return VersionChoice(
                version, f"{model}@{version} is in the mesh: the same file and options"
            )
    if not known.names:
        return VersionChoice(FIRST)
    version = str(max((int(each) for each in known.names if _is_number(each)), default=0) + 1)
    have = ", ".join(sorted(known.names, key=_order))
    return VersionChoice(
        version,
        f"a new version, {model}@{version}: the mesh has {have} of another file or other options",
    )


async def known_versions(mesh: swarm.Mesh, model: str) -> KnownVersions:
    """What a mesh has of a model. Raises `SwarmError`."""
    names = [version for name, version in await mesh.registry.models() if name == model]
    try:
        serving = await mesh.registry.served(model) if names else ""
    except BadDesiredState:
        serving = ""
    manifests = {}
    for version in sorted(names, key=lambda each: (each == serving, *_order(each)), reverse=True):
        try:
            manifests[version] = await mesh.registry.manifest(model, version)
        except SwarmError as error:  # its name is taken all the same
            log.warning("%s@%s is not looked at: %s", model, version, error)
    return KnownVersions(tuple(names), manifests)


def _is_number(version: str) -> bool:
    return version.isascii() and version.isdecimal()


def _order(version: str) -> tuple[int, str]:
    return (int(version) if _is_number(version) else -1, version)
