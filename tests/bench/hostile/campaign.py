"""All messages against all parsers, in processes that may die of them.

A worker tells the number of each message before it parses it, in memory that it shares. So a crash,
or a wait that Python cannot end, names its message; another worker goes on behind it.
"""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections.abc import Callable, Sequence
from ctypes import c_int64
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

from bench.feature import features
from bench.hostile import (
    fleet_targets,
    link_targets,
    message_targets,
    model_targets,
    trust_targets,
)
from bench.hostile.slices import Finding, SliceResult, message_at, run_slice
from bench.hostile.target import Target

_MODULES = (
    link_targets,
    message_targets,
    fleet_targets,
    trust_targets,
    model_targets,
)
TARGETS: dict[str, Target] = {
    target.name: target
    for targets in (
        *(module.TARGETS for module in _MODULES),
        *(feature.targets() for feature in features()),
    )
    for target in targets
}


def shares(messages: int, names: list[str]) -> dict[str, int]:
    """How many of the messages each of these parsers gets; one at least."""
    total = sum(TARGETS[name].share for name in names)
    return {name: max(1, round(messages * TARGETS[name].share / total)) for name in names}


STUCK_AFTER = 20.0  # seconds without another message, on a machine that is busy too
LOOK_EVERY = 0.2  # seconds
MOST_CRASHES = 5  # of one parser; it is given up then


@dataclass(frozen=True, slots=True)
class HostilePlan:
    """messages: of all parsers together. targets: names; all when empty. seconds: at most, for each
    parser its share. keep: a folder for the messages of findings, '' for none."""

    messages: int = 1_000_000
    seed: int = 1
    targets: tuple[str, ...] = ()
    seconds: float = float("inf")
    workers: int = 2
    keep: str = ""


def play(plan: HostilePlan, progress: Callable[[str], None]) -> list[SliceResult]:
    """The results, one for each parser, in the order of the catalogue."""
    names = list(plan.targets or TARGETS)
    counts = shares(plan.messages, names)
    context = multiprocessing.get_context("spawn")
    waiting, results = list(names), {name: SliceResult(name) for name in names}
    running: list[_Work] = []
    until = time.monotonic() + plan.seconds
    try:
        while waiting or running:
            while waiting and len(running) < plan.workers:
                name = waiting.pop(0)
                left = max(0.0, until - time.monotonic()) * plan.workers / (len(waiting) + 1)
                running.append(_Work(context, name, plan.seed, 0, counts[name], left))
            time.sleep(LOOK_EVERY)
            for work in list(running):
                ended = work.look(results[work.name])
                if not ended:
                    continue
                running.remove(work)
                again = work.next(context, results[work.name])
                if again is not None:
                    running.append(again)
                else:
                    progress(_line(results[work.name]))
    finally:
        for work in running:
            work.end()
    return [results[name] for name in names]


def _line(result: SliceResult) -> str:
    rate = result.messages / result.seconds if result.seconds else 0.0
    found = f"{len(result.findings)} findings"
    return f"{result.target}: {result.messages} messages, {rate:.0f}/s, {found}"


class _Work:
    """One worker's run of messages."""

    def __init__(
        self,
        context: SpawnContext,
        name: str,
        seed: int,
        first: int,
        count: int,
        seconds: float,
        crashes: int = 0,
    ) -> None:
        self.name = name
        self._seed, self._first, self._count, self._seconds = seed, first, count, seconds
        self._crashes = crashes
        self._at: Any = context.Value(c_int64, -1, lock=False)
        self._results, theirs = context.Pipe(duplex=False)
        self._process: SpawnProcess = context.Process(
            target=_worker, args=(name, seed, first, count, seconds, self._at, theirs)
        )
        self._process.start()
        theirs.close()
        self._last, self._moved = -1, time.monotonic()
        self._crashed_at: int | None = None

    def look(self, into: SliceResult) -> bool:
        """Whether the run has ended; its result is added then."""
        at: int = self._at.value
        if at != self._last:
            self._last, self._moved = at, time.monotonic()
        if self._results.poll():
            try:
                came = self._results.recv()
                if isinstance(came, BaseException):
                    raise came  # of the benchmark itself: judging catches those of parsers
                _add(into, came)
            except EOFError:
                self._failed(into, "crash", f"exit code {self._exit_code()}")
            self.end()
            return True
        if time.monotonic() - self._moved > STUCK_AFTER:
            self.end()
            self._failed(into, "hang", f"more than {STUCK_AFTER} s")
            return True
        return False

    def _exit_code(self) -> int | None:
        self._process.join(5.0)
        return self._process.exitcode

    def _failed(self, into: SliceResult, kind: str, text: str) -> None:
        self._crashed_at = at = max(self._last, self._at.value)
        message = b""
        if at >= 0:
            into.messages += at - self._first + 1
            message = _message(self.name, self._seed, at)
        into.add(Finding(self.name, kind, text, "", at, message))

    def next(self, context: SpawnContext, into: SliceResult) -> _Work | None:
        """The run behind a message that crashed the worker."""
        at = self._crashed_at
        if at is None or at < 0 or self._crashes >= MOST_CRASHES:
            return None
        left = self._first + self._count - at - 1
        if left <= 0:
            return None
        return _Work(context, self.name, self._seed, at + 1, left, self._seconds, self._crashes + 1)

    def end(self) -> None:
        """The process is gone afterwards."""
        if self._process.is_alive() and not self._results.closed:
            self._process.join(0.1)
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._results.close()


def _message(name: str, seed: int, at: int) -> bytes:
    from contextlib import ExitStack

    with ExitStack() as stack:
        target = TARGETS[name]
        return message_at(target, target.open(stack), seed, at)


def _worker(
    name: str, seed: int, first: int, count: int, seconds: float, at: Any, results: Connection
) -> None:
    def tell(index: int) -> None:
        at.value = index

    logging.disable(logging.CRITICAL)
    try:
        target = TARGETS[name]
        results.send(run_slice(target, seed, first, count, seconds=seconds, on_index=tell))
    except Exception as error:
        results.send(error)


def _add(into: SliceResult, more: SliceResult) -> None:
    into.messages += more.messages
    into.taken += more.taken
    into.refused += more.refused
    into.measured += more.measured
    into.seconds += more.seconds
    into.slowest = max(into.slowest, more.slowest)
    into.most_memory = max(into.most_memory, more.most_memory)
    for finding in more.findings:
        into.add(finding)


def all_findings(results: Sequence[SliceResult]) -> list[Finding]:
    return [finding for result in results for finding in result.findings]
