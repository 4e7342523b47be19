"""What `swarm demo --secure` shows beside the takeover, with figures for each step:

rotate    a new certificate for the server; all connections end, and all processes come back
revoke    the killed shard's credentials are worth nothing, while its work goes on elsewhere
renew     the shard comes back with new credentials
search    the model is encrypted: its weights are on no disk
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nodes.demo.frame import Step
from nodes.up.mesh import LocalMesh, push
from nodes.up.rights import LocalRights
from nodes.up.supervisor import NodeProcess
from nodes.versions.sealing import sealed_version
from shards.manifest import write_dir
from shards.split.split import SplitResult
from swarm.errors import NotAdmitted, SwarmError
from swarm.link import Link, LinkOptions
from swarm.scratch import Scratch
from swarm.security.mesh_keys import new_key
from swarm.security.sealed import ModelKey

ROTATE_AT, REVOKE_AT, RENEW_AT = 0.15, 0.45, 0.5  # parts of the stream's time
BACK_WITHIN = 10.0  # seconds in which all processes are connected again
ASK_EVERY = 0.05  # seconds between two calls to those who are not back
REFUSED_WITHIN = 5.0  # seconds
WINDOW, WINDOWS = 32, 8  # bytes, and how many of them a file of weights is known by

Tell = Callable[[str], None]


class SecureStory:
    """The steps of one demo in a mesh with rights. folder: for the model's key and the nodes'
    cache, which end with the demo. tell: a line of the story."""

    def __init__(self, local: LocalMesh, rights: LocalRights, folder: Path, tell: Tell) -> None:
        self._local = local
        self._rights = rights
        self._tell = tell
        self._cache = folder / "cache"
        self._key_file = folder / "model.key"
        self._key_file.touch(0o600)
        self._key_file.write_bytes(new_key())
        self._pieces: list[bytes] = []
        self._kept = folder / "revoked.creds"
        self._figures: dict[str, Any] = {}

    @property
    def flags(self) -> list[str]:
        """Of each node: what opens the model, and a cache that the search looks through."""
        return ["--model-key", f"file:{self._key_file}", "--cache", str(self._cache)]

    @property
    def steps(self) -> list[Step]:
        """Beside the kill and the return of a shard."""
        return [(ROTATE_AT, self.rotate), (REVOKE_AT, self.revoke), (RENEW_AT, self.renew)]

    async def push(self, result: SplitResult, sent: Callable[[int], None]) -> None:
        """Encrypt the model, push it, and let it serve."""
        self._pieces = pieces_of(result.files)
        key = ModelKey.of(f"file:{self._key_file}")
        assert key is not None
        with Scratch("demo") as directory:
            source, sealed = directory / "plain", directory / "sealed"
            write_dir(source, result.manifest, result.files)
            sealed.mkdir()
            plain = {name: source / name for name in result.manifest.files()}
            manifest, files = await sealed_version(
                self._local.mesh, result.manifest, plain, key, sealed
            )
            await push(self._local, manifest.to_json(), files, sent)

    async def renew(self, victim: NodeProcess) -> None:
        """New credentials for the shard's next process."""
        at = victim.arguments.index("--credentials") + 1
        fresh = self._rights.issue(victim.role, "digits").credentials
        victim.arguments[at] = fresh
        self._figures["new_credentials"] = Path(fresh).stem

    async def finish(self) -> dict[str, Any]:
        """The figures of all steps, and of the search. Raises `OSError`."""
        server = self._local.server
        assert server is not None
        stores = [self._cache, self._local.logs, *([server.store] if server.store else [])]
        found = await asyncio.to_thread(files_with, self._pieces, stores)
        refused = [line for line in server.log.splitlines() if "ermissions Violation" in line]
        return self._figures | {
            "files_searched": found.searched,
            "files_with_weights": len(found.names),
            "permission_violations": len(refused),
        }

    async def rotate(self, victim: NodeProcess) -> None:
        """A new certificate for the server; all connections end. Raises `SwarmError`."""
        server = self._local.server
        assert server is not None
        serial = self._rights.new_certificate()
        await server.reload()
        before = [(node, self._local.status_of(node)) for node in self._nodes()]
        began = time.monotonic()
        # Who counts the answers stays: what is published while a listener is away, it misses.
        keep = self._local.mesh.link.options.name
        ended = await self._rights.end_connections(self._local.url, keep)
        back = await self._all_speak_again(before)
        took = round((time.monotonic() - began) * 1e3, 1)
        self._figures |= {
            "connections_ended": ended,
            "all_back": back,
            "all_back_ms": took,
        }
        self._tell(
            f"the server has certificate {serial[:8]}…; {ended} nodes lost their connections, "
            f"and all are back after {took:.0f} ms"
        )

    async def revoke(self, victim: NodeProcess) -> None:
        """The credentials of the killed shard end. Raises `SwarmError`, `OSError`."""
        credentials = credentials_of(victim)
        shutil.copy(credentials, self._kept)
        began = time.monotonic()
        await self._rights.revoke(str(credentials), self._local.url)
        refused = await is_refused(self._local.url, str(self._kept), self._local.mesh.link.options)
        took = round((time.monotonic() - began) * 1e3, 1)
        self._figures |= {
            "revoked": credentials.stem,
            "revoked_is_refused": refused,
            "refused_ms": took,
        }
        said = "are refused" if refused else "are TAKEN STILL"
        self._tell(f"the credentials {credentials.stem} of the killed shard {said} ({took:.0f} ms)")

    def _nodes(self) -> list[NodeProcess]:
        return [node for node in self._local.supervisor.nodes if node.alive]

    async def _all_speak_again(
        self, before: list[tuple[NodeProcess, dict[str, Any] | None]]
    ) -> bool:
        """Whether each node publishes another status than `before`, by the new connections."""
        mesh, deadline = self._local.mesh, time.monotonic() + BACK_WITHIN
        while time.monotonic() < deadline:
            with contextlib.suppress(SwarmError):  # this process is not connected yet
                mesh.link.publish(mesh.subjects.status_request)
            if await self._local.until(
                lambda: all(self._local.status_of(node) is not old for node, old in before),
                ASK_EVERY,
            ):
                return True
        return False


def credentials_of(node: NodeProcess) -> Path:
    """The file of a node's credentials."""
    return Path(node.arguments[node.arguments.index("--credentials") + 1])


async def is_refused(url: str, credentials: str, known: LinkOptions) -> bool:
    """Whether a server refuses these credentials. known: how the server is trusted."""
    options = LinkOptions(servers=(url,), credentials=credentials, tls_ca=known.tls_ca)
    link = Link(options)
    running = asyncio.create_task(link.run(), name="a revoked user")
    try:
        await link.ready(REFUSED_WITHIN)
    except NotAdmitted:
        return True
    except SwarmError:
        return False
    finally:
        await link.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return False


def pieces_of(files: Mapping[str, bytes]) -> list[bytes]:
    """Pieces of each file's weights, by which the file is known again."""
    pieces = []
    for data in files.values():
        for at in range(len(data) // WINDOWS, len(data) - WINDOW, len(data) // WINDOWS):
            piece = data[at : at + WINDOW]
            if len(set(piece)) > WINDOW // 2:  # no run of zeros
                pieces.append(piece)
    return pieces


class FoundPieces:
    """What a search saw. names: of the files that hold a piece."""

    def __init__(self) -> None:
        self.searched = 0
        self.names: list[str] = []


def files_with(pieces: list[bytes], folders: list[Path]) -> FoundPieces:
    """The files below some folders that hold any of these pieces."""
    found = FoundPieces()
    for folder in folders:
        for path in folder.rglob("*"):
            try:
                if not path.is_file() or not path.stat().st_size:
                    continue
                with (
                    path.open("rb") as file,
                    mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
                ):
                    found.searched += 1
                    if any(data.find(piece) >= 0 for piece in pieces):
                        found.names.append(str(path))
            except FileNotFoundError:  # a process replaces its files meanwhile
                continue
    return found


def all_protected(figures: Mapping[str, Any]) -> bool:
    """Whether the protection held in each step."""
    return bool(
        figures.get("all_back")
        and figures.get("revoked_is_refused")
        and figures.get("new_credentials")
        and figures["files_searched"]
        and not figures["files_with_weights"]
        and not figures["permission_violations"]
    )
