"""`swarm dashboard` of a local mesh, as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator

from nodes.event_loop import die_with_parent
from nodes.up.mesh import LocalMesh
from swarm.errors import Unavailable

START_WITHIN, END_WITHIN = 15.0, 5.0  # seconds


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
