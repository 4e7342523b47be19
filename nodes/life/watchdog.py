"""The node's watchdog: a run that hangs, a loop that stalls, a stage that computes wrongly.

A run that takes too long does not yet show that its stage is broken: a Loop of the model may turn
for ever on the values of one request. So known input is computed beside it. Where that comes out
right, the run is ended, its request is refused, and the stage goes on.

`nodes.life.watchdog_rules` decides; this module observes and carries out. A stage that fails hands
its work back to its lane, gets a new session, and returns. After three failures in a minute it
stays out and says so. An event loop that is blocked for good can do none of this: then a thread,
the `LoopGuard`, ends the process, and the process's supervisor starts it again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from nodes.connection.events import Tell
from nodes.life.watchdog_rules import (
    ASK_FACTOR,
    CHECK_EVERY,
    RELOAD_EVERY,
    TEST_EVERY,
    TEST_FACTOR,
    TEST_WITHIN,
    Watchdog,
    WatchdogAction,
    WatchdogVerdict,
    run_bound,
)
from nodes.low_priority import in_low_priority_thread
from nodes.stage.endless import OnLoop
from nodes.stage.server import StageServer
from shards.errors import ShardsError
from swarm.errors import SwarmError
from swarm.periodic import BEAT, beat, next_beat

log = logging.getLogger("swarm.watchdog")

PULSE_EVERY = 5 * BEAT  # seconds between two signs of life of the loop
GUARD_EVERY = 0.5  # seconds between two ticks of the guarding thread
STOPPED_FOR = 3.0  # seconds: a thread that slept so long was stopped with its process
BLOCKED_FOR_GOOD = 15.0  # seconds without a turn of the event loop
EXIT_CODE = 70  # EX_SOFTWARE


@dataclass(frozen=True, slots=True)
class _Test:
    outcome: asyncio.Future[bool]
    until: float


@dataclass(slots=True)
class _Question:
    """Whether the run that began at `since` hangs, or its stage. ended: the run was told to end."""

    since: float
    outcome: asyncio.Future[bool]
    until: float
    ended: bool = False


class NodeWatchdog:
    """`run()` watches until cancelled. reload(server) gives a stage a new, tested session.

    tell(kind, detail) publishes an event; on_out(reason) is called when a stage stays out. clock:
    seconds, the one that stages take their `running_since` from. in_thread: runs a self-test beside
    the event loop; the watchdog looks on meanwhile, and a test that hangs is one that failed.
    more_on_loop: runs on the event loop that are no stage's.
    """

    def __init__(
        self,
        servers: Callable[[], list[StageServer]],
        reload: Callable[[StageServer], Awaitable[Any]],
        tell: Tell,
        on_out: Callable[[str], None] = lambda reason: None,
        clock: Callable[[], float] = time.monotonic,
        in_thread: Callable[[Callable[[], bool]], Awaitable[bool]] = in_low_priority_thread,
        more_on_loop: Sequence[OnLoop] = (),
    ) -> None:
        self._in_thread = in_thread
        self._more_on_loop = more_on_loop
        self._servers = servers
        self._reload = reload
        self._tell = tell
        self._on_out = on_out
        self._clock = clock
        self._failures: WeakKeyDictionary[StageServer, Watchdog] = WeakKeyDictionary()
        # Stages that did not get a new session, and when to try again.
        self._reload_at: WeakKeyDictionary[StageServer, float] = WeakKeyDictionary()
        self._tests: WeakKeyDictionary[StageServer, _Test] = WeakKeyDictionary()
        self._questions: WeakKeyDictionary[StageServer, _Question] = WeakKeyDictionary()

    async def run(self) -> None:
        """Watch the stages until cancelled."""
        tested = self._clock()
        with LoopGuard(self._end_overdue) as guard:
            while True:
                ticks = guard.ticks
                due_at = await beat(CHECK_EVERY)
                now = self._clock()
                late = asyncio.get_running_loop().time() - due_at
                if (guard.ticks - ticks) * GUARD_EVERY < late / 2:
                    # The thread stood still as well: the process was stopped, or the machine
                    # slept. That is no stage's fault, and the lanes have recovered from it.
                    late = 0.0
                ended = [each.take_ended() for each in self._on_loop()]
                if any(ended):
                    # The cause is known: a request's run was ended from outside, and goes on in a
                    # thread.
                    late = 0.0
                test_due = now - tested > TEST_EVERY
                if test_due:
                    tested = now
                for server in self._servers():
                    await self._check(server, now, late, test_due)

    def _end_overdue(self, now: float) -> None:
        """In the guard's thread: a run on the loop that lasts too long is ended from outside."""
        for each in self._on_loop():
            each.end_overdue(now)

    def _on_loop(self) -> list[OnLoop]:
        return [*[server.on_loop for server in self._servers()], *self._more_on_loop]

    async def _check(self, server: StageServer, now: float, late: float, test_due: bool) -> None:
        failures = self._failures.setdefault(server, Watchdog())
        if failures.out:
            return
        if server in self._reload_at:
            if now >= self._reload_at[server]:
                await self._restart(server)
            return
        verdict = failures.loop_late(late, now)
        since = server.running_since
        if not verdict and since:
            p99 = server.stats.compute.percentile(0.99, now)
            run = f"{since:.6f}"
            may_hang = failures.may_hang(run, now - since, p99)
            if may_hang and self._found_to_hang(server, since, p99, now):
                verdict = failures.running(run, now - since, p99, now)
        if server in self._tests:
            right = self._tested(server, now)
            if not verdict and right is not None:
                verdict = failures.self_test(right, now)
        elif not verdict and test_due and not server.queued:
            self._begin_test(server, now)
        if verdict:
            await self._act(server, verdict)

    def _found_to_hang(self, server: StageServer, since: float, p99: float, now: float) -> bool:
        """Go on with finding out whether a run that takes too long is the stage's fault, and return
        True once it is found to be: known input hangs too, comes out wrong, or is not there, or the
        run does not end when it is told to. The first call has known input computed; one that
        follows a right result ends the run."""
        question, within = self._questions.get(server), ASK_FACTOR * run_bound(p99)
        if question is None or question.since != since:
            if not server.has_known_input:
                return True
            outcome = asyncio.ensure_future(self._in_thread(server.self_test))
            self._questions[server] = _Question(since, outcome, now + within)
            return False
        if not question.outcome.done():
            return now >= question.until
        if question.outcome.exception() is not None or not question.outcome.result():
            return True
        if not question.ended:
            log.warning("stage %d: a run that does not end is ended: its request's", server.stage)
            server.end_runs()
            question.ended, question.until = True, now + within
        return now >= question.until

    def _begin_test(self, server: StageServer, now: float) -> None:
        """In a thread: a long run on the loop would stall every other stage of this node."""
        p99 = server.stats.compute.percentile(0.99, now)
        within = TEST_WITHIN + TEST_FACTOR * p99
        outcome = asyncio.ensure_future(self._in_thread(server.self_test))
        self._tests[server] = _Test(outcome, now + within)

    def _tested(self, server: StageServer, now: float) -> bool | None:
        """Whether the self-test's output was right, and in time; None while it runs."""
        test = self._tests[server]
        if not test.outcome.done() and now < test.until:
            return None
        del self._tests[server]
        if not test.outcome.done():
            test.outcome.cancel()  # its thread goes on; nobody waits for it
            return False
        if (error := test.outcome.exception()) is not None:
            log.error("stage %d: the self-test met a defect: %r", server.stage, error)
            return False
        return test.outcome.result()

    async def _act(self, server: StageServer, verdict: WatchdogVerdict) -> None:
        log.error("stage %d: %s", server.stage, verdict.reason)
        actions = verdict.actions
        detail = {
            "stage": server.stage,
            "detail": verdict.reason,
            "actions": [str(action) for action in actions],
        }
        self._tell("watchdog", detail)
        if WatchdogAction.RETURN in actions:
            server.suspend()
        if WatchdogAction.STAY_OUT in actions:
            log.error("stage %d stays out: restart the node", server.stage)
            self._on_out(f"stage {server.stage} stays out: {verdict.reason}; restart the node")
            return
        if WatchdogAction.RESTART in actions:
            await self._restart(server)
        else:
            server.resume()

    async def _restart(self, server: StageServer) -> None:
        """Get a new session now, or later where none can be had (no server, no memory)."""
        try:
            await self._reload(server)
        except (SwarmError, ShardsError) as error:
            log.error("stage %d did not get a new session: %s", server.stage, error)
            self._reload_at[server] = self._clock() + RELOAD_EVERY
            return
        self._reload_at.pop(server, None)
        server.resume()


class LoopGuard:
    """A thread beside the event loop, for as long as this context is entered on that loop.

    It ends the process when the loop does not turn for `BLOCKED_FOR_GOOD`. each_tick(now) is
    called in the thread, every `GUARD_EVERY`. clock: seconds. end(code): ends the process. ticks:
    of the thread so far.
    """

    def __init__(
        self,
        each_tick: Callable[[float], None],
        clock: Callable[[], float] = time.monotonic,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        self._each_tick = each_tick
        self._clock = clock
        self._end = end
        self._turned_at = clock()
        self._pulse: asyncio.TimerHandle | None = None
        self._ended = threading.Event()
        self.ticks = 0

    def __enter__(self) -> LoopGuard:
        self._turn()
        threading.Thread(target=self._guard, name="loop guard", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._pulse is not None:
            self._pulse.cancel()

    def _turn(self) -> None:
        """The loop's pulse: a timer of its own, since a look may wait for a long reload."""
        self._turned_at = self._clock()
        self._pulse = asyncio.get_running_loop().call_at(next_beat(PULSE_EVERY), self._turn)

    def _guard(self) -> None:
        while not self._ended.is_set():
            slept = self._clock()
            self._ended.wait(GUARD_EVERY)
            self.tick(slept)

    def tick(self, slept: float) -> None:
        """The thread wakes, which has slept since `slept`."""
        now = self._clock()
        self.ticks += 1
        if now - slept > STOPPED_FOR:
            # This thread was late too: the whole process was stopped, not the loop blocked.
            self._turned_at = now
        elif now - self._turned_at > BLOCKED_FOR_GOOD:
            log.critical("the event loop is blocked for %.0f s: exiting", now - self._turned_at)
            self._end(EXIT_CODE)
        self._each_tick(now)
