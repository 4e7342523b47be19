"""Beside a local mesh: lines that say how to watch it, and its page, in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator

from nodes.access import NOTHING
from nodes.event_loop import die_with_parent
from nodes.feature import Given
from nodes.up.companion import Companion, Line
from nodes.up.how_to_ask import swarm_line
from nodes.up.mesh import LocalMesh
from nodes.watch.settings import PageOptions
from shards.manifest import Manifest
from swarm.errors import Unavailable

START_WITHIN, END_WITHIN = 15.0, 5.0  # seconds


class HowToWatch(Companion):
    """Lines that people paste."""

    def lines(self, local: LocalMesh, manifest: Manifest) -> list[Line]:
        reads = watches = NOTHING
        if local.rights is not None:
            reads = local.rights.access("top", "requester", manifest.model)
            watches = local.rights.access("dashboard", "dashboard")
        return [
            ("Watch it (Ctrl-C here ends all)", swarm_line("top", local.url, local.name, reads)),
            ("Watch it in a browser", swarm_line("dashboard", local.url, local.name, watches)),
        ]


class ShownPage(Companion):
    """`swarm dashboard`, which ends with the mesh."""

    stays = True

    def __init__(self) -> None:
        self._address = ""

    async def opened(self, local: LocalMesh, model: str) -> None:
        shown: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        local.own(self._show(local, shown), "dashboard")
        self._address = await shown

    def lines(self, local: LocalMesh, manifest: Manifest) -> list[Line]:
        return [("watch it at", self._address)]

    @staticmethod
    async def _show(local: LocalMesh, shown: asyncio.Future[str]) -> None:
        try:
            async with dashboard_of(local) as address:
                shown.set_result(address)
                await asyncio.Event().wait()
        except Unavailable as error:
            shown.set_exception(error)


@contextlib.asynccontextmanager
async def dashboard_of(local: LocalMesh) -> AsyncIterator[str]:
    """The address of the page; its process ends with the block, and with this process.

    Raises `Unavailable`, with the process's own words, where it does not start.
    """
    access = local.access
    if local.rights is not None:
        access = local.rights.access("dashboard", "dashboard")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "nodes.cli.main", "dashboard", "--json", "--port", "0"),
        *("--nats", local.url, "--mesh", local.name, *access.arguments()),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        # Ctrl-C goes to the whole foreground group: the page outlives the nodes that drain.
        start_new_session=True,
        preexec_fn=die_with_parent if sys.platform == "linux" else None,
    )
    try:
        yield await _address(process)
    finally:
        if process.returncode is None:
            process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_WITHIN):
                    await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _address(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    line = b""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(START_WITHIN):
            line = await process.stdout.readline()
    try:
        document = json.loads(line)
        if "url" in document:
            return str(document["url"])
        raise Unavailable(f"the dashboard did not start: {document.get('error')}")
    except ValueError:
        raise Unavailable(f"the dashboard did not start within {START_WITHIN:g} s") from None


def companions(given: Given) -> list[Companion]:
    """A demo has a page where one is asked for; `swarm up` says how to watch."""
    page = given.of(PageOptions)
    if page is None:
        return [HowToWatch()]
    return [ShownPage()] if page.dashboard else []
