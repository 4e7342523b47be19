"""What the contenders that are the mesh share: the client's loop and its record of requests."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import psutil

from bench.rivals.contract import REQUEST_TIMEOUT, START_TIMEOUT, AsyncContender
from bench.rivals.processes import descendants
from bench.rivals.workload import Tensors, Workload

T = TypeVar("T")

MODEL = "bench"
DURABLE, FAST = "durable", "fast"
LANE_FULL_PAUSE = 0.001
"""Least seconds that the client waits after a refused request; as a rule the refusal names more."""


@dataclass(slots=True)
class RequestLog:
    """The client's own records of its requests.

    latencies: seconds. ends: `time.perf_counter()`; both in the order of the ends. refused:
    requests that a full first lane refused and that were sent again.
    """

    latencies: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    refused: int = 0


class MeshContender(AsyncContender):
    """The client's event loop lives in a thread of its own and never pauses between two calls: the
    server disconnects a client that stops answering pings."""

    packages: ClassVar[tuple[str, ...]] = ("onnxruntime", "msgpack", "nats", "uvloop")
    delivery: ClassVar[str] = DURABLE

    def __init__(self, workload: Workload, scratch: Path) -> None:
        super().__init__(workload, scratch)
        self.log = RequestLog()
        self._thread = _LoopThread(self.use_uvloop)
        self._mesh: Any = None
        self._model = MODEL
        self.family: list[psutil.Process] = []
        """The processes that `start` brought up: nodes, servers, the command that owns them."""

    @property
    @abstractmethod
    def restarts(self) -> int:
        """How often a node's process has ended since all were ready; it should be 0. The mesh
        answers nevertheless, so the answers would not show it."""

    @abstractmethod
    async def serve(self, ready: Callable[[], None], stopping: asyncio.Event) -> None:
        """Connect a client, call `ready` once requests are answered, return after `stopping`."""

    def launch(self) -> None:
        """Start what must run before the client's loop does. Nothing, unless overridden."""

    def start(self) -> None:
        others = {process.pid for process in descendants(os.getpid())}
        self.launch()
        self._thread.start(self.serve, START_TIMEOUT)
        self.family = [p for p in descendants(os.getpid()) if p.pid not in others]

    def start_log(self) -> RequestLog:
        """A new, empty log, which the requests from now on are entered in."""
        self.log = RequestLog()
        return self.log

    async def ask(self, inputs: Tensors) -> Tensors:
        from swarm.errors import ResourceExhausted

        started = time.perf_counter()
        while True:
            try:
                result = await self._mesh.infer(
                    self._model, inputs, budget=REQUEST_TIMEOUT, delivery=self.delivery
                )
            except ResourceExhausted as error:
                self.log.refused += 1
                await asyncio.sleep(max(LANE_FULL_PAUSE, error.retry_after))
                continue
            ended = time.perf_counter()
            self.log.ends.append(ended)
            self.log.latencies.append(ended - started)
            outputs: Tensors = result.outputs
            return outputs

    def _run(self, work: Coroutine[Any, Any, T], timeout: float) -> T:
        return self._thread.run(work, timeout)

    def stop(self) -> None:
        self._thread.stop()


Serve = Callable[[Callable[[], None], asyncio.Event], Coroutine[Any, Any, None]]
"""A coroutine function of (ready, stopping): it calls `ready()` once it serves, and returns after
`stopping` is set."""


class _LoopThread:
    """An event loop that runs in a thread of its own from `start` to `stop`."""

    def __init__(self, use_uvloop: bool) -> None:
        self._use_uvloop = use_uvloop
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._started = threading.Event()
        self._failure: BaseException | None = None

    def start(self, serve: Serve, timeout: float) -> None:
        """Return when `serve` is ready. Raises its error, or `TimeoutError` after `timeout` s."""
        self._thread = threading.Thread(
            target=self._live, args=(serve,), name="swarm client", daemon=True
        )
        self._thread.start()
        if not self._started.wait(timeout):
            raise TimeoutError(f"the mesh was not ready after {timeout:.0f} s")
        if self._failure is not None:
            raise self._failure

    def _live(self, serve: Serve) -> None:
        from nodes.event_loop import run_event_loop

        async def live() -> None:
            loop, stopping = asyncio.get_running_loop(), asyncio.Event()

            def ready() -> None:
                self._loop, self._stopping = loop, stopping
                self._started.set()

            await serve(ready, stopping)

        try:
            (run_event_loop if self._use_uvloop else asyncio.run)(live())
        except BaseException as error:
            self._failure = error
        finally:
            self._started.set()

    def run(self, work: Coroutine[Any, Any, T], timeout: float) -> T:
        """Run a coroutine on the loop, from another thread; `TimeoutError` after `timeout` s."""
        assert self._loop is not None, "not started"
        future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, timeout), self._loop)
        return future.result(timeout + 5)

    def stop(self) -> None:
        if self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._loop = None
        if self._thread is not None:
            self._thread.join(30)
            self._thread = None
