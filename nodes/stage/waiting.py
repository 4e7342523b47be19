"""What waits for a stage's worker, and how many of it make a run."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from nodes.stage.batching import ArrivalRate, BatchLimit, waits_until
from nodes.stage.jobs import Job


class Waiting:
    """First in, first out; requests of equal shapes run together. `again()` is called when the
    wait for company is over."""

    def __init__(
        self,
        max_batch: int,
        max_wait: float,
        batchable: bool,
        again: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """max_batch: requests in one run. max_wait: seconds a request may wait for company."""
        self._clock = clock
        self.limit = BatchLimit(max_batch)
        self._max_wait = max_wait
        self._together = batchable and max_batch > 1
        self._again = again
        self.queue: deque[Job] = deque()
        self._arrivals = ArrivalRate()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self.queue)

    def arrived(self, now: float) -> None:
        """A request came, whether it will wait here or not."""
        self._arrivals.add(now)

    def add(self, job: Job) -> None:
        self.queue.append(job)

    def take(self, run_s: float) -> list[Job]:
        """The next run's requests, where a run takes `run_s` seconds; none while waiting for
        company pays."""
        if not self.queue:
            return []
        size = self._size(self._clock(), run_s) if self._together else 1
        taken: list[Job] = []
        shape = self.queue[0].shape
        while self.queue and len(taken) < size and self.queue[0].shape == shape:
            taken.append(self.queue.popleft())
        return taken

    def take_all(self) -> list[Job]:
        """Everything; nothing is awaited any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        taken = list(self.queue)
        self.queue.clear()
        return taken

    def take_out(self, request_id: str) -> list[Job]:
        """All attempts at one request."""
        taken = [job for job in self.queue if job.features.id == request_id]
        if taken:
            self.queue = deque(job for job in self.queue if job.features.id != request_id)
        return taken

    def _size(self, now: float, run_s: float) -> int:
        """How many to run now; 0: wait, a timer is set."""
        most = max(1, self.limit.size)
        until = waits_until(
            len(self.queue),
            self.queue[0].arrived,
            now,
            max_batch=most,
            max_wait_s=self._max_wait,
            arrivals_per_s=self._arrivals.per_s(now),
            run_s=run_s,
        )
        if until is None:
            return min(len(self.queue), most)
        if self._timer is None:
            delay = max(0.0, min(until - now, self._max_wait))
            self._timer = asyncio.get_running_loop().call_later(delay, self._timeout)
        return 0

    def _timeout(self) -> None:
        self._timer = None
        self._again()
