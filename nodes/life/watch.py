"""The node's watchdog: a run that hangs, a loop that stalls, a stage that computes wrongly.

What is decided is in `swarm.flow.watchdog`; here it is observed and carried out. A stage that
fails gives its work back to its lane, gets a new session, and returns; after three failures
in a minute it stays out and says so. A loop that is blocked for good cannot do any of this:
a thread ends the process then, and whoever supervises it starts it again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakKeyDictionary

from nodes.stage.server import StageServer
from shards.errors import ShardsError
from swarm.errors import SwarmError
from swarm.flow.watchdog import Action, Verdict, Watchdog
from swarm.periodic import BEAT, beat, next_beat

log = logging.getLogger("swarm.watchdog")

LOOK_EVERY = BEAT  # seconds
PULSE_EVERY = 5 * BEAT  # seconds
SELF_TEST_EVERY = 30.0  # seconds
RELOAD_EVERY = 1.0  # seconds
GUARD_EVERY = 0.5  # seconds
BLOCKED_FOR_GOOD = 15.0  # seconds without a turn of the event loop
EXIT_CODE = 70  # EX_SOFTWARE


class Watch:
    """`run()` watches until cancelled. reload(server) gives a stage a new, tested session.

    tell(kind, detail) publishes an event; on_out(reason) is called when a stage stays out.
    """

    def __init__(
        self,
        servers: Callable[[], list[StageServer]],
        reload: Callable[[StageServer], Awaitable[Any]],
        tell: Callable[[str, dict[str, Any]], None],
        on_out: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._servers = servers
        self._reload = reload
        self._tell = tell
        self._on_out = on_out
        self._dogs: WeakKeyDictionary[StageServer, Watchdog] = WeakKeyDictionary()
        # Stages that did not get a new session, and when to try again.
        self._waiting: WeakKeyDictionary[StageServer, float] = WeakKeyDictionary()
        self._beat = time.monotonic()
        self._ticks = 0  # of the guarding thread
        self._pulse: asyncio.TimerHandle | None = None
        self._ended = threading.Event()

    async def run(self) -> None:
        """Until cancelled."""
        self._turn()
        threading.Thread(target=self._guard, name="watchdog", daemon=True).start()
        tested = time.monotonic()
        try:
            while True:
                ticks = self._ticks
                due_at = await beat(LOOK_EVERY)
                now = time.monotonic()
                late = asyncio.get_running_loop().time() - due_at
                if (self._ticks - ticks) * GUARD_EVERY < late / 2:
                    # The thread stood still as well: the process was stopped, or the machine
                    # slept. That is nobody's fault, and the lanes have recovered from it.
                    late = 0.0
                due = now - tested > SELF_TEST_EVERY
                if due:
                    tested = now
                for server in self._servers():
                    await self._look(server, now, late, due)
        finally:
            self._ended.set()
            if self._pulse is not None:
                self._pulse.cancel()

    def _turn(self) -> None:
        """The loop's pulse: apart from the looks, since a look may wait for a long reload."""
        self._beat = time.monotonic()
        self._pulse = asyncio.get_running_loop().call_at(next_beat(PULSE_EVERY), self._turn)

    async def _look(self, server: StageServer, now: float, late: float, due: bool) -> None:
        dog = self._dogs.setdefault(server, Watchdog())
        if dog.out:
            return
        if server in self._waiting:
            if now >= self._waiting[server]:
                await self._restart(server)
            return
        verdict = dog.loop_late(late, now)
        since = server.running_since
        if not verdict and since:
            p99 = server.stats.compute.percentile(0.99, now)
            verdict = dog.running(f"{since:.6f}", now - since, p99, now)
        if not verdict and due and not server.queued:
            # In a thread: a long run on the loop would stall every other stage of this node.
            verdict = dog.self_test(await asyncio.to_thread(server.self_test), now)
        if verdict:
            await self._act(server, verdict)

    async def _act(self, server: StageServer, verdict: Verdict) -> None:
        log.error("stage %d: %s", server.stage, verdict.reason)
        actions = verdict.actions
        detail = {
            "stage": server.stage,
            "detail": verdict.reason,
            "actions": [str(action) for action in actions],
        }
        self._tell("watchdog", detail)
        if Action.RETURN in actions:
            server.suspend()
        if Action.STAY_OUT in actions:
            log.error("stage %d stays out: restart the node", server.stage)
            self._on_out(f"stage {server.stage} stays out: {verdict.reason}; restart the node")
            return
        if Action.RESTART in actions:
            await self._restart(server)
        else:
            server.resume()

    async def _restart(self, server: StageServer) -> None:
        """A new session, now or, where it cannot be had (no server, no memory), later."""
        try:
            await self._reload(server)
        except (SwarmError, ShardsError) as error:
            log.error("stage %d did not get a new session: %s", server.stage, error)
            self._waiting[server] = time.monotonic() + RELOAD_EVERY
            return
        self._waiting.pop(server, None)
        server.resume()

    def _guard(self) -> None:
        """In a thread: the loop must turn now and then."""
        while not self._ended.is_set():
            slept = time.monotonic()
            self._ended.wait(GUARD_EVERY)
            now = time.monotonic()
            self._ticks += 1
            # If this thread was late too, the whole process was stopped, not the loop blocked.
            if now - slept > 3.0:
                self._beat = now
            elif now - self._beat > BLOCKED_FOR_GOOD:
                log.critical("the event loop is blocked for %.0f s: exiting", now - self._beat)
                os._exit(EXIT_CODE)
            for server in self._servers():
                server.end_overdue(now)
