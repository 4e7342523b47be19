"""The embedded server of a local mesh, watched as the nodes are: started again after its death,
killed when it hangs.

The decisions are in `nodes.up.server_rules`. The kernel tells of a death at once. A hang is seen
by probes: the server greets each new connection with a line, and a process that does not run greets
nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nodes.up.embedded_server import EmbeddedServer
from nodes.up.server_rules import (
    Life,
    ServerAction,
    ServerEvent,
    StoreFiles,
    StoreState,
    judged,
    next_step,
)
from nodes.up.supervisor import one_ends
from swarm.errors import Unavailable

log = logging.getLogger("swarm.up")

PROBE_EVERY = 0.5  # seconds between probes at a server that answers
PROBE_TIMEOUT = 1.0  # seconds that a probe waits for the greeting

IN_MEMORY = "requests that waited in lanes (their requesters ask again)"
IN_FILES = "keys, artifacts, and which version serves"

Tell = Callable[[str, dict[str, Any]], None]


def ended_how(code: int | None) -> str:
    """A process's end in words. code: its exit code, negative for a signal's number."""
    if code is not None and code < 0:
        return f"it was ended by {signal.Signals(-code).name}"
    return f"it ended with code {code}"


def read_store(store: Path) -> StoreFiles:
    """The files below the store's directory, and the room on its disk."""
    found: list[str] = []
    with contextlib.suppress(OSError):  # somebody may be deleting it just now
        found = [path.name for path in store.glob("jetstream/*/streams/*")]
    buckets = frozenset(name for name in found if name.startswith(("KV_", "OBJ_")))
    for folder in (store, *store.parents):
        with contextlib.suppress(OSError):
            return StoreFiles(buckets, shutil.disk_usage(folder).free)
    return StoreFiles(buckets, 0)


class ServerWatch:
    """`run()` watches a server that was started.

    tell(kind, detail): is told of each event, see `swarm/fleet/README.md`. is_up, restarts, store,
    files: for reports.
    """

    def __init__(self, server: EmbeddedServer, tell: Tell) -> None:
        self.server = server
        self.is_up = True
        self.restarts = 0
        self.store = StoreState.FINE
        self.files = StoreFiles(frozenset(), 0)
        self._tell = tell
        self._known: frozenset[str] = frozenset()
        self._cause = ""  # of the death that is to come
        self._away_since = 0.0

    async def run(self) -> None:
        """Until cancelled."""
        life = Life()
        began = time.monotonic()
        event = await self._probe()
        while True:
            life, step = next_step(life, event, began, time.monotonic())
            await asyncio.sleep(step.after)
            if step.do is ServerAction.KILL:
                await self.kill("it answered nothing for 3 s and was killed")
            began = time.monotonic()
            event = await (self._start() if step.do is ServerAction.START else self._probe())

    async def kill(self, cause: str) -> None:
        """End the server; `run` starts it again. cause: what people are told."""
        log.warning("the server: %s", cause)
        self._cause = cause
        await self.server.kill()

    async def _probe(self) -> ServerEvent:
        """How the server is. Lasts until it is due again, or until the server ends."""
        due = time.monotonic() + PROBE_EVERY
        answered = self.server.alive and await self.server.answers(PROBE_TIMEOUT)
        if answered:
            self.is_up = True
            await self._check_files()
        if self.server.alive:
            await one_ends([self.server.pid], max(0.0, due - time.monotonic()))
        if not self.server.alive:
            self._ended()
            return ServerEvent.ENDED
        return ServerEvent.ANSWERED if answered else ServerEvent.SILENT

    def _ended(self) -> None:
        if self.is_up:
            self._away_since = time.monotonic()
        self.is_up = False
        self._cause = self._cause or ended_how(self.server.exit_code)

    async def _start(self) -> ServerEvent:
        """Start the server again, on its port and its store."""
        cause = self._cause
        is_gone = self._files_are_gone()
        log.warning("the server starts again: %s", cause)
        try:
            await self.server.start()
        except (Unavailable, OSError) as error:
            log.warning("%s", error)
            self._tell("server-start-failed", {"detail": str(error)[-500:]})
            return ServerEvent.START_FAILED
        self.restarts += 1
        self._cause = ""
        self._known = frozenset()
        self.store = StoreState.FINE
        self._tell(
            "server-restarted",
            {
                "detail": cause,
                "away_ms": round((time.monotonic() - self._away_since) * 1e3),
                "lost": [IN_MEMORY, IN_FILES] if is_gone else [IN_MEMORY],
                "kept": [] if is_gone else [IN_FILES],
            },
        )
        return (
            ServerEvent.ANSWERED if await self.server.answers(PROBE_TIMEOUT) else ServerEvent.SILENT
        )

    # --- its files ----------------------------------------------------------------------

    def _files_are_gone(self) -> bool:
        store = self.server.store
        return store is None or not self._known <= read_store(store).buckets

    async def _check_files(self) -> None:
        store = self.server.store
        if store is None:
            return
        self.files = read_store(store)
        before, self.store = self.store, judged(self.files, self._known, self.store)
        self._known |= self.files.buckets
        if self.store is before:
            return
        if self.store is StoreState.GONE:
            self._tell(
                "store-gone",
                {
                    "detail": f"the files below {store} were deleted",
                    "lost": [f"at the server's next start: {IN_FILES}"],
                    "kept": ["until then everything: the server goes on from open files"],
                },
            )
        elif self.store is StoreState.FULL:
            self._tell(
                "store-full",
                {
                    "detail": f"the disk of {store} is full: no model can be pushed or promoted; "
                    "free some space",
                    "lost": [],
                    "kept": [IN_FILES, "requests: they are in memory, and are served"],
                },
            )
        elif before is StoreState.FULL:
            # A bucket that met the full disk takes nothing more until the server's next start.
            await self.kill("the disk has room again")
