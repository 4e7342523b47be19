"""The contract that every contender fulfils: the class `Contender`.

A contender lives in the process that asks, the *client*. ``start`` brings up one process for each
stage, and whatever else the system needs. All of these processes are descendants of the client, so
that their CPU time and memory can be counted and none of them outlives the client.

A contender promises:

- every stage runs in a process of its own, by `stage.Stage` (one thread, no spinning);
- a request passes all stages in order, and every answer is returned to the caller, which compares
  it with the expected one;
- ``check`` and ``start`` raise `Unavailable`, with the reason, where the system cannot run;
- ``stop`` takes everything down, after a failed ``start`` too.

A system whose client is an event loop derives from `AsyncContender`, a system behind HTTP from
`systems.http_contender.HttpContender`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from bench.rivals.processes import Processes
from bench.rivals.workload import Tensors, Workload

T = TypeVar("T")

START_TIMEOUT = 60.0
"""Seconds until a contender must be ready to serve."""
REQUEST_TIMEOUT = 30.0
"""Seconds until one request must be answered."""
CLOSE_TIMEOUT = 10.0
"""Seconds until an event loop's client must be closed."""


class Unavailable(RuntimeError):
    """The contender cannot run here; the message says exactly why."""


def missing_packages(packages: Sequence[str]) -> list[str]:
    """The modules of `packages` that are not importable in this environment."""
    return [name for name in packages if importlib.util.find_spec(name) is None]


class Contender(ABC):
    """One system that runs the stages of a workload in separate processes.

    workload: the stages, one input, and the outputs to expect. scratch: an empty folder for the
    contender's own files; its owner removes it after ``stop``.
    """

    packages: ClassVar[tuple[str, ...]] = ()
    """Modules that must be importable; a missing module makes the contender unavailable."""
    install: ClassVar[str] = ""
    """The command that installs the packages, where one command does."""

    def __init__(self, workload: Workload, scratch: Path) -> None:
        self.workload = workload
        self.scratch = scratch
        self._processes = Processes(scratch)

    def check(self) -> None:
        """Raise :class:`Unavailable` with the reason when the contender cannot run here."""
        missing = missing_packages(self.packages)
        if missing:
            advice = f"; install with: {self.install}" if self.install else ""
            raise Unavailable(f"not installed: {', '.join(missing)}{advice}")

    @abstractmethod
    def start(self) -> None:
        """Bring every process up; return when the chain can answer."""

    @abstractmethod
    def request(self, inputs: Tensors) -> Tensors:
        """One request through all stages."""

    @abstractmethod
    def concurrent(self, inputs: Tensors, in_flight: int, total: int) -> list[Tensors]:
        """``total`` requests with ``in_flight`` of them under way; returns every answer."""

    @abstractmethod
    def stop(self) -> None:
        """Take everything down. Safe to call after a failed ``start``."""

    def sequential(self, inputs: Tensors, total: int) -> tuple[list[float], list[Tensors]]:
        """Latency in seconds and outputs of ``total`` requests, one after another."""
        latencies, answers = [], []
        for _ in range(total):
            started = time.perf_counter()
            answers.append(self.request(inputs))
            latencies.append(time.perf_counter() - started)
        return latencies, answers


class AsyncContender(Contender):
    """A contender whose client is an event loop: uvloop where uvloop is installed.

    The loop belongs to the main thread and runs only inside the calls below. Latencies are taken
    inside the loop, so that no request pays for entering and leaving the loop.
    """

    use_uvloop: ClassVar[bool] = True

    def __init__(self, workload: Workload, scratch: Path) -> None:
        super().__init__(workload, scratch)
        self._runner: asyncio.Runner | None = None

    @abstractmethod
    async def open(self) -> None:
        """Asynchronous part of ``start``."""

    @abstractmethod
    async def ask(self, inputs: Tensors) -> Tensors:
        """One request through all stages."""

    async def close(self) -> None:
        """Asynchronous part of ``stop``."""

    def start(self) -> None:
        self._runner = asyncio.Runner(loop_factory=_loop_factory(self.use_uvloop))
        self._run(self.open(), START_TIMEOUT)

    def stop(self) -> None:
        try:
            if self._runner is not None:
                self._run(self.close(), CLOSE_TIMEOUT)
        finally:
            if self._runner is not None:
                self._runner.close()
            self._runner = None
            self._processes.stop()

    def request(self, inputs: Tensors) -> Tensors:
        return self._run(self.ask(inputs), REQUEST_TIMEOUT)

    def sequential(self, inputs: Tensors, total: int) -> tuple[list[float], list[Tensors]]:
        async def measure() -> tuple[list[float], list[Tensors]]:
            latencies, answers = [], []
            for _ in range(total):
                started = time.perf_counter()
                answers.append(await self.ask(inputs))
                latencies.append(time.perf_counter() - started)
            return latencies, answers

        return self._run(measure(), REQUEST_TIMEOUT + total)

    def concurrent(self, inputs: Tensors, in_flight: int, total: int) -> list[Tensors]:
        answers: list[Tensors] = []
        left = total

        async def ask_in_turn() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                answers.append(await self.ask(inputs))

        async def measure() -> None:
            async with asyncio.TaskGroup() as group:
                for _ in range(in_flight):
                    group.create_task(ask_in_turn())

        self._run(measure(), REQUEST_TIMEOUT + total)
        return answers

    def _run(self, work: Coroutine[Any, Any, T], timeout: float) -> T:
        """Run a coroutine on the client's loop; ``TimeoutError`` after `timeout` seconds."""
        assert self._runner is not None, "not started"
        return self._runner.run(_within(work, timeout))


async def _within(work: Coroutine[Any, Any, T], timeout: float) -> T:
    async with asyncio.timeout(timeout):
        return await work


def _loop_factory(use_uvloop: bool) -> Any:
    if not use_uvloop:
        return None
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


class Pipelined(Contender):
    """Requests, one at a time or several in flight, by a way to send and a way to receive."""

    @abstractmethod
    def _send(self, inputs: Tensors) -> bytes:
        """Send a request; returns its token."""

    @abstractmethod
    def _receive(self) -> tuple[bytes, Tensors]:
        """The next answer, and its request's token."""

    def request(self, inputs: Tensors) -> Tensors:
        """The answer to one request. Raises `ValueError` for another request's answer."""
        sent = self._send(inputs)
        token, outputs = self._receive()
        if token != sent:
            raise ValueError("the answer belongs to another request")
        return outputs

    def concurrent(self, inputs: Tensors, in_flight: int, total: int) -> list[Tensors]:
        """The answers to `total` requests, of which `in_flight` are under way at a time."""
        pending = {self._send(inputs) for _ in range(min(in_flight, total))}
        sent = len(pending)
        answers = []
        while pending:
            token, outputs = self._receive()
            pending.remove(token)
            answers.append(outputs)
            if sent < total:
                pending.add(self._send(inputs))
                sent += 1
        return answers
