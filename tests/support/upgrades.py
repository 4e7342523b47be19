"""Devices with updaters, and releases for them: the present code under another version's name."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from nodes.access import NOTHING, AccessOptions
from nodes.up.mesh import LocalMesh
from nodes.upgrade.device import UpgradeLimits
from nodes.upgrade.environments import Environments
from nodes.upgrade.release import INSTALL, release_of
from nodes.upgrade.releases import Releases
from nodes.upgrade.units import ProcessUnits, Units
from nodes.upgrade.updater import Pace, Updater
from swarm.link import LinkOptions
from swarm.security.identity import Identity
from swarm.security.trusted_keys import TrustedKeys, trust

NODE = Path(sys.executable).with_name("swarm-node")
SERVES = f'exec {NODE} "$@"'
DIES = "[ $1 = --help ] || exit 1"
FIRST = "1.0"
QUICK = UpgradeLimits(prepare=60.0, ready=30.0, proof=0.3)
LOOK = Pace(look=0.1, ask=0.1)

# The program makes an environment with the one command that a device starts.
_INSTALL = """#!/bin/sh
mkdir -p "$1/bin"
cat > "$1/bin/swarm-node" <<'END'
#!/bin/sh
{program}
END
chmod 755 "$1/bin/swarm-node"
"""


def release_folder(folder: Path, program: str = SERVES) -> Path:
    """A release whose nodes are this line of a shell."""
    folder.mkdir(parents=True)
    (folder / INSTALL).write_text(_INSTALL.format(program=program))
    return folder


def environment_folder(folder: Path, program: str = SERVES) -> Path:
    """An environment that was there before any release."""
    (folder / "bin").mkdir(parents=True)
    node = folder / "bin" / "swarm-node"
    node.write_text(f"#!/bin/sh\n{program}\n")
    node.chmod(0o755)
    return folder


def node_arguments(local: LocalMesh, role: str) -> list[str]:
    """Of a node of the digits model in this mesh."""
    trusted = ["--trust", local.trusted] if local.trusted else []
    return [
        *("--role", role, "--model", "digits", "--nats", local.url, "--mesh", local.name),
        *trusted,
    ]


@dataclass
class Publisher:
    """Who makes releases: a key, and the list in which devices have it."""

    local: LocalMesh
    folder: Path
    identity: Identity = field(default_factory=Identity.make)

    @property
    def trusted(self) -> Path:
        return self.folder / "trusted"

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        trust(self.identity.public, "releases", self.trusted)

    def releases(self, signer: Identity | None = None) -> Releases:
        mesh = self.local.mesh
        return Releases(mesh.link, mesh.subjects, signer or self.identity)

    async def push(self, version: str, program: str = SERVES) -> None:
        folder = release_folder(self.folder / version, program)
        await self.releases().push(folder, release_of(folder, version))


def updater(
    publisher: Publisher,
    home: Path,
    units: Units,
    device: str = "device-1",
    limits: UpgradeLimits = QUICK,
    access: AccessOptions = NOTHING,
) -> Updater:
    """A device's updater in this process."""
    local = publisher.local
    return Updater(
        device,
        local.name,
        LinkOptions(servers=(local.url,), **access.options()),
        TrustedKeys([publisher.trusted]),
        Environments(home),
        units,
        limits,
        LOOK,
    )


def adopted(home: Path) -> Environments:
    """A device's home, with the release that it has from the beginning."""
    return adopted_from(home, environment_folder(home / "first"))


def adopted_from(home: Path, folder: Path) -> Environments:
    """The same, of an environment that is somewhere else."""
    environments = Environments(home)
    environments.adopt(FIRST, folder)
    environments.switch(FIRST)
    return environments


@asynccontextmanager
async def node_processes(
    environments: Environments, nodes: Sequence[Sequence[str]]
) -> AsyncIterator[ProcessUnits]:
    """Behind the block none of them runs."""
    units = ProcessUnits(environments, nodes)
    try:
        yield units
    finally:
        await units.stop()


@asynccontextmanager
async def running(one: Updater) -> AsyncIterator[asyncio.Task[None]]:
    """The updater runs in the block, unless it is cancelled there."""
    task = asyncio.create_task(one.run(), name="updater")
    try:
        yield task
        if task.done() and not task.cancelled():
            task.result()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
