"""What waits for a stage's worker, and how many of it make a run."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from nodes.stage.batching import ArrivalRate, BatchLimit, waits_until
from nodes.stage.jobs import Job
from swarm.flow.shares import FairShares
from swarm.wire.urgency import HIGH, IN_USE_FOR, WEIGHTS


class Waiting:
    """First in, first out; requests of equal shapes run together. From the first request that is
    not normal until none waits, requests have turns by the weights of their urgencies, and one of
    high priority waits for no company, and runs with its like alone. While priorities are in use no
    batch is larger than it has to be: who is in a hurry waits for the run that has begun.
    `again()` is called when the wait for company is over."""

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
        self._queue: deque[Job] = deque()
        self._shares: FairShares[int, Job] | None = None  # in place of the queue
        self._priorities_until = 0.0
        self._arrivals = ArrivalRate()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._queue) if self._shares is None else len(self._shares)

    def arrived(self, now: float) -> None:
        """A request came, whether it will wait here or not."""
        self._arrivals.add(now)

    def add(self, job: Job) -> None:
        urgency = job.features.urgency
        if urgency:
            self._priorities_until = job.arrived + IN_USE_FOR
        if self._shares is None:
            if not urgency:
                self._queue.append(job)
                return
            self._shares = FairShares()
            for each in self._queue:
                self._shares.push(each.features.urgency, each, WEIGHTS[each.features.urgency])
            self._queue.clear()
        self._shares.push(urgency, job, WEIGHTS[urgency])

    def take(self, run_s: float) -> list[Job]:
        """The next run's requests, where a run takes `run_s` seconds; none while waiting for
        company pays."""
        if self._shares is not None:
            return self._take_by_shares(self._shares, run_s)
        if not self._queue:
            return []
        size = self._size(self._queue[0], run_s) if self._together else 1
        taken: list[Job] = []
        shape = self._queue[0].shape
        while self._queue and len(taken) < size and self._queue[0].shape == shape:
            taken.append(self._queue.popleft())
        return taken

    def _take_by_shares(self, shares: FairShares[int, Job], run_s: float) -> list[Job]:
        first = shares.head()
        urgent = first.features.urgency == HIGH
        size = 1
        if self._together:
            size = self.limit.size if urgent else self._size(first, run_s)
        taken: list[Job] = []
        while shares and len(taken) < size:
            head = shares.head()
            if head.shape != first.shape or (head.features.urgency == HIGH) != urgent:
                break
            taken.append(shares.pop())
        if not shares:
            self._shares = None
        return taken

    def take_all(self) -> list[Job]:
        """Everything; nothing is awaited any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        taken = [*self._queue, *(self._shares or ())]
        self._queue.clear()
        self._shares = None
        return taken

    def take_out(self, request_id: str) -> list[Job]:
        """All attempts at one request."""
        if (shares := self._shares) is not None:
            taken = [job for job in shares if job.features.id == request_id]
            for job in taken:
                shares.remove(job.features.urgency, job)
            if not shares:
                self._shares = None
            return taken
        taken = [job for job in self._queue if job.features.id == request_id]
        if taken:
            self._queue = deque(job for job in self._queue if job.features.id != request_id)
        return taken

    def _size(self, first: Job, run_s: float) -> int:
        """How many to run now; 0: wait, a timer is set. first: who is next."""
        now, most = self._clock(), max(1, self.limit.size)
        if now < self._priorities_until:
            most = max(1, self.limit.shortest)
        until = waits_until(
            len(self),
            first.arrived,
            now,
            max_batch=most,
            max_wait_s=self._max_wait,
            arrivals_per_s=self._arrivals.per_s(now),
            run_s=run_s,
        )
        if until is None:
            return min(len(self), most)
        if self._timer is None:
            delay = max(0.0, min(until - now, self._max_wait))
            self._timer = asyncio.get_running_loop().call_later(delay, self._timeout)
        return 0

    def _timeout(self) -> None:
        self._timer = None
        self._again()
