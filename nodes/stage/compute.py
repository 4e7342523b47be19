"""A stage's runs: on the event loop where they are short, else in one thread, in small batches.

Each run takes the model that is present when it begins, to its end, and its outcome names the
weights of that model. A request that asks for newer weights than the present model's waits for them
here, for a short while: all nodes of a mesh take new weights within moments of each other.

A picture is decoded in a thread of its own, one at a time, before its request is let to a run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from nodes.look import Look
from nodes.stage.batching import split_on_failure
from nodes.stage.counters import StageStats
from nodes.stage.endless import OnLoop, Unending
from nodes.stage.jobs import Job
from nodes.stage.rules import BEFORE_RUN, HAND_BACK_DELAY, Ready, StartMove
from nodes.stage.waiting import Waiting
from nodes.stage.worker import Worker
from shards.errors import InputError, RunTerminated
from shards.runtimes.runtime import CancelToken
from swarm.errors import Status, SwarmError
from swarm.flow.recent import RecentIds
from swarm.flow.rules import decide
from swarm.transport.api import Delivery

log = logging.getLogger("swarm.stage")

# Seconds; shorter runs are done on the event loop: a thread and back costs more (60-120 us).
INLINE_BELOW = 0.0003
# Seconds; runs shorter than this are done on the event loop too, after a pause of IDLE_RUNS runs.
# Behind large tensors, with cold caches, the way to the thread and back takes 0.3 ms, measured.
# Nothing else of a node suffers from such a stop: gossip waits 100 ms for an answer, a lane 60 ms
# for an acknowledgement. Under load the thread lets requests gather.
INLINE_ALONE_BELOW = 0.010
# Seconds, and a share of the budget that is left, for which a request waits for newer weights.
# After that the requester decides, and still has time to ask again.
BEHIND_FOR, BEHIND_SHARE = 2.0, 0.5
MOST_BEHIND = 32  # requests that wait so; one more is told at once
MOST_DOUBTED = 64  # requests that take no credit while their age is measured again
IDLE_RUNS = 1.2  # measured: with 1.0, a busy pipeline's throughput falls by 3 %


class StageModel(Protocol):
    """What a stage needs of a loaded shard (`shards.runtimes.load.StageRuntime`)."""

    batchable: bool
    compute_ms: float
    weights_version: int

    @property
    def device(self) -> str: ...
    @property
    def wanted_device(self) -> str: ...
    def check(self, tensors: Any) -> None: ...
    def run(self, tensors: Any, cancel: CancelToken | None = None) -> dict[str, np.ndarray]: ...
    def run_batch(
        self, requests: Any, cancel: CancelToken | None = None
    ) -> list[dict[str, np.ndarray]]: ...


@dataclass(slots=True)
class StageOptions:
    """max_batch: requests in one run. max_wait: seconds a request may wait for company.
    start_check: do not start what cannot finish inside its budget. quota: requests a second
    from one agent that stage 1 takes, 0 for any number. inline_below, inline_alone_below: seconds;
    shorter runs are done on the event loop, always or while little comes. look: at each request."""

    max_batch: int = 4
    max_wait: float = 0.0005
    start_check: bool = True
    inline_below: float = INLINE_BELOW
    inline_alone_below: float = 0.0
    quota: float = 0.0
    look: Look | None = None


class Pictures(Protocol):
    """What a stage needs of a picture input (`nodes.stage.pictures.PictureReader`)."""

    def comes_as_picture(self, tensors: Any) -> bool: ...
    def decoded(self, tensors: Any) -> dict[str, np.ndarray]: ...


class Outcomes(Protocol):
    """Who learns what came of jobs; each is called once for every job that `Compute` took."""

    def computed(
        self, job: Job, outputs: dict[str, np.ndarray], seconds: float, batch: int, weights: int
    ) -> None:
        """The run took `seconds`, for `batch` requests together, with that weight version."""
        ...

    def behind(self, weights: int) -> None:
        """A request asks for at least this weight version, which the model does not have."""
        ...

    def stayed_behind(self, job: Job, weights: int) -> None:
        """The job waited in vain: the model still has this weight version."""
        ...

    def not_computed(self, job: Job, status: Status, reason: str, retry_after: float = 0.0) -> None:
        """The run failed, or was not begun. retry_after: seconds until another try may pay."""
        ...

    def cancelled(self, job: Job) -> None:
        """Nobody waits for the job any more."""
        ...


class StageRuns(Protocol):
    """What computes the requests of a stage: `Compute`, or what a feature has in its place."""

    @property
    def model(self) -> StageModel: ...
    @property
    def on_loop(self) -> OnLoop: ...
    @property
    def waiting(self) -> int: ...
    @property
    def running_since(self) -> float: ...
    def take(self, delivery: Delivery) -> None: ...
    def use(self, model: StageModel) -> None: ...
    def cancel(self, request_id: str, now: float) -> None: ...
    def end_runs(self) -> None: ...
    def take_all_waiting(self) -> list[Job]: ...
    def abandon(self) -> None: ...
    def restart(self) -> None: ...
    def close(self) -> None: ...


class Compute:
    """Runs one stage's jobs."""

    def __init__(
        self,
        stage: int,
        model: StageModel,
        options: StageOptions,
        stats: StageStats,
        outcomes: Outcomes,
        clock: Callable[[], float] = time.monotonic,
        pictures: Pictures | None = None,
        is_sound: Callable[[], bool] = lambda: False,
    ) -> None:
        """clock: seconds, monotonic: the one that deliveries are received by. pictures: of the
        stage that takes the model's input, where this may come as a picture. is_sound: whether the
        model is known to compute rightly now; asked in the thread of a run that failed."""
        self.model = model
        self._look = options.look
        self._is_sound = is_sound
        self._clock = clock
        self._stage = stage
        self._options = options
        self._stats = stats
        self._outcomes = outcomes
        self._loop = asyncio.get_running_loop()
        self._behind: dict[Job, asyncio.TimerHandle] = {}  # they wait for newer weights
        self._doubted: set[Job] = set()  # they seem too old, and are measured again
        self._waiting = Waiting(
            options.max_batch, options.max_wait, model.batchable, self._dispatch, clock
        )
        self._cancelled = RecentIds()  # requests
        self._running: dict[CancelToken, list[Job]] = {}
        self._ended = 0.0  # the last run, `time.monotonic()`
        self.on_loop = OnLoop()
        self._too_long: set[CancelToken] = set()  # of runs that were ended for it
        self._unending = Unending()
        self._short = model.compute_ms / 1e3 < options.inline_below
        self._worker = None if self._short else Worker(self._loop, f"stage-{stage}")
        self._pictures = pictures
        self._decoding: set[Job] = set()
        self._decoder: Worker | None = None  # from the first picture on

    @property
    def waiting(self) -> int:
        """Requests that wait for a run, for newer weights, for their picture, or for their age."""
        apart = (self._behind, self._decoding, self._doubted)
        return len(self._waiting) + sum(map(len, apart))

    @property
    def running_since(self) -> float:
        """`time.monotonic()` when the thread's present run, or picture, began; 0.0 while it has
        none."""
        threads = [each for each in (self._worker, self._decoder) if each is not None]
        return min([since for each in threads if (since := each.busy_since)], default=0.0)

    def take(self, delivery: Delivery) -> None:
        """Check the tensors; then run at once, or queue for the thread."""
        job = Job.of(delivery)
        if not job.is_sure:
            delivery.measure_age()
        if self._cancelled.until and job.features.id in self._cancelled:
            self._outcomes.cancelled(job)
            return
        if job.features.weights > self.model.weights_version:
            self._wait_for_weights(job)
            return
        self._admit(job)

    def _admit(self, job: Job) -> None:
        if self._pictures is not None and self._pictures.comes_as_picture(job.inputs):
            self._decode(job, self._pictures)
            return
        if self._short and self.on_loop.is_allowed(job.arrived):
            self._run_on_loop(job)  # which checks the tensors itself
            return
        self._waiting.arrived(job.arrived)
        if self._is_alone(job):
            self._run_on_loop(job)
            return
        try:
            self.model.check(job.inputs)
        except InputError as error:
            self._outcomes.not_computed(job, Status.INVALID_ARGUMENT, str(error))
            return
        if self.model.batchable:
            job.shape = tuple(a.shape[1:] for a in job.inputs.values())
        self._waiting.add(job)
        self._dispatch()

    def _wait_for_weights(self, job: Job) -> None:
        if len(self._behind) >= MOST_BEHIND:
            self._outcomes.stayed_behind(job, self.model.weights_version)
            return
        job.delivery.release_credit()  # for requests that need no wait
        left = job.expires - self._clock()
        wait = max(0.0, min(BEHIND_FOR, left * BEHIND_SHARE))
        self._behind[job] = self._loop.call_later(wait, self._still_behind, job)
        self._outcomes.behind(job.features.weights)

    def _still_behind(self, job: Job) -> None:
        del self._behind[job]
        self._outcomes.stayed_behind(job, self.model.weights_version)

    def use(self, model: StageModel) -> None:
        """Compute with this model from the next run on."""
        self.model = model
        reached = [j for j in self._behind if j.features.weights <= model.weights_version]
        for job in reached:
            self._behind.pop(job).cancel()
            try:
                self._admit(job)
            except Exception:
                self._hand_back(job)

    @property
    def _usual(self) -> float:
        """Seconds of a run."""
        return self._stats.compute.ewma or self.model.compute_ms / 1e3

    def _is_alone(self, job: Job) -> bool:
        """Whether a run may block the loop: it is short, and little else comes."""
        if not self.on_loop.is_allowed(job.arrived):
            return False
        # The time at the start says little where all nodes of a host start at once.
        usual = self._usual
        if usual >= self._options.inline_alone_below or len(self._waiting):
            return False
        busy = self._worker is not None and self._worker.queued > 0
        return not busy and job.arrived - self._ended > IDLE_RUNS * usual

    def _starts(self, job: Job, now: float) -> bool:
        """Refuse a job that cannot end inside its budget; whether it may start."""
        usual = self._stats.compute.ewma if self._options.start_check else 0.0
        left, owed = job.expires - now, self._unending.owes(job, now)
        if left >= usual and left > 0 and job.is_sure and not owed:
            return True  # as the table says, which costs 2 us
        start = decide(BEFORE_RUN, Ready(left, usual, job.age, job.is_sure, owed))
        if start is StartMove.RUN:
            return True
        if start is StartMove.MEASURE:
            self._doubt(job)
        elif start is StartMove.REFUSE:
            text = f"stage {self._stage}: runs of this client did not end; wait for {owed:.3g} s"
            self._outcomes.not_computed(job, Status.RESOURCE_EXHAUSTED, text, owed)
        else:
            self._stats.counters.expired += 1
            spent = job.most_spent(self._stage, now)
            text = f"the budget ended before stage {self._stage}: most of it, {spent}"
            self._outcomes.not_computed(job, Status.DEADLINE_EXCEEDED, text)
        return False

    def _may_start(self, job: Job, now: float) -> bool:
        """As `_starts`, of a job among others, which a defect with it must not keep from their run;
        and begin it."""
        try:
            if not self._starts(job, now):
                return False
        except Exception:
            self._hand_back(job)
            return False
        self._begin(job, now)
        return True

    def _doubt(self, job: Job) -> None:
        """Its budget has ended, if the server's clock was not set since it was read last."""
        apart = len(self._doubted) < MOST_DOUBTED
        self._doubted.add(job)
        if apart:
            job.delivery.release_credit()

        def measured() -> None:
            if job not in self._doubted:  # cancelled, or given back
                return
            self._doubted.discard(job)
            job.take_as_new()
            try:
                job.delivery.take_credit()
                self._admit(job)
            except Exception:
                self._hand_back(job)

        job.delivery.measure_age(measured)

    def _begin(self, job: Job, now: float) -> None:
        job.started, job.idle_since = now, self._ended
        job.queue_us = int((now - job.arrived + job.age) * 1e6) - job.decode_us

    def _decode(self, job: Job, pictures: Pictures) -> None:
        """Make a picture the model's input; then go on as with any other request."""
        if not self._starts(job, self._clock()):
            return
        self._decoding.add(job)
        self._decoder = self._decoder or Worker(self._loop, f"pictures-{self._stage}")

        def work() -> dict[str, np.ndarray] | None:
            return pictures.decoded(job.inputs) if job in self._decoding else None

        def done(inputs: Any, error: Exception | None, seconds: float) -> None:
            if job not in self._decoding:  # cancelled, or given back
                return
            self._decoding.discard(job)
            if error is not None:
                self._not_decoded(job, error)
                return
            job.inputs, job.decode_us = inputs, int(seconds * 1e6)
            try:
                self._admit(job)
            except Exception:
                self._hand_back(job)

        self._decoder.submit(work, done)

    def _not_decoded(self, job: Job, error: Exception) -> None:
        status = error.status if isinstance(error, SwarmError) else Status.INTERNAL
        if status is Status.INTERNAL:
            log.error("stage %d: a picture was not decoded", self._stage, exc_info=error)
        if not job.delivery.intact():  # the memory that it lay in is another one's by now
            status = Status.UNAVAILABLE
        self._outcomes.not_computed(job, status, str(error))

    # --- on the loop ------------------------------------------------------------------

    def _run_on_loop(self, job: Job) -> None:
        started = self._clock()
        if not self._starts(job, started):
            return
        # Short ones too: a Loop that ends on usual values may turn for ever on others.
        token, model = self.on_loop.begin(job.expires, started), self.model
        try:
            result = self._run_one(model, job, token)
        except InputError as error:
            self._outcomes.not_computed(job, Status.INVALID_ARGUMENT, str(error))
            return
        except RunTerminated as error:
            self._leave_loop(job, error, started)
            return
        except Exception as error:
            self._failed([job], error)
            return
        finally:
            self.on_loop.end()
        self._begin(job, started)
        self._ended = self._clock()
        seconds = self._ended - started
        self._tell_computed(job, result, seconds, 1, model.weights_version)

    def _run_one(self, model: StageModel, job: Job, token: CancelToken) -> dict[str, np.ndarray]:
        """One request's run. Where it fails, known input tells whose fault that is: an index
        behind a table's end fails on each node, and says nothing of other requests."""
        try:
            result = model.run(job.inputs, token)
        except (InputError, RunTerminated):
            raise
        except Exception:
            job.is_own_fault = self._is_sound()
            raise
        if self._look is not None:
            _look_at(job, result, self._look)
        return result

    def _leave_loop(self, job: Job, error: RunTerminated, started: float) -> None:
        """A run on the loop was ended: it is done again in the thread, and others meanwhile are."""
        self._ended = self._clock()
        self.on_loop.lasted(self._ended)
        self._worker = self._worker or Worker(self._loop, f"stage-{self._stage}")
        if job.expires <= self._ended:
            self._unending.ended(job, self._ended - started, self._usual, self._ended)
            self._failed([job], error)
            return
        self._waiting.add(job)
        self._dispatch()

    # --- in the thread ----------------------------------------------------------------

    def _dispatch(self) -> None:
        """Start a run if the thread is free, and to wait for company does not pay."""
        worker = self._worker
        while worker is not None and not worker.queued:
            taken = self._waiting.take(self._stats.compute.ewma)
            if not taken:
                return
            now = self._clock()
            batch = [job for job in taken if self._may_start(job, now)]
            if batch:
                self._start(batch, now)

    def _start(self, batch: list[Job], now: float) -> None:
        assert self._worker is not None
        token, model = CancelToken(), self.model
        self._running[token] = batch
        # A run is ended when no request in it has any budget left.
        latest = max(job.expires for job in batch)
        timer = self._loop.call_later(max(0.0, latest - now), token.cancel)
        tensors = [job.inputs for job in batch]

        def work() -> list[dict[str, np.ndarray]]:
            if len(batch) == 1:
                return [self._run_one(model, batch[0], token)]
            results = model.run_batch(tensors, token)
            if self._look is not None:
                for job, result in zip(batch, results, strict=True):
                    _look_at(job, result, self._look)
            return results

        def done(results: Any, error: Exception | None, seconds: float) -> None:
            timer.cancel()
            self._ended = self._clock()
            self._running.pop(token, None)
            too_long = token in self._too_long
            self._too_long.discard(token)
            try:
                if isinstance(error, RunTerminated) and len(batch) == 1:
                    self._unending.ended(batch[0], seconds, self._usual, self._ended)
                if too_long and isinstance(error, RunTerminated):
                    self._ended_for_length(batch, seconds)
                elif error is not None:
                    self._failed(batch, error)
                else:
                    self._waiting.limit.ran(len(batch), seconds)
                    self._stats.counters.batches += 1
                    for job, result in zip(batch, results, strict=True):
                        self._pass_on(job, result, seconds, len(batch), model.weights_version)
            finally:
                self._dispatch()

        self._worker.submit(work, done)

    def _ended_for_length(self, batch: list[Job], seconds: float) -> None:
        """Known input was computed meanwhile. Where several ran together, one may be the cause."""
        if (halves := split_on_failure(batch)) is not None:
            for half in halves:
                self._start(list(half), self._clock())
            return
        [job] = batch
        job.is_own_fault = True
        text = (
            f"the run of stage {self._stage} was ended after {seconds:.3g} s, while known input "
            "was computed well: on these values it takes too long, or does not end"
        )
        self._outcomes.not_computed(job, Status.DEADLINE_EXCEEDED, text)

    def _pass_on(
        self, job: Job, result: dict[str, np.ndarray], seconds: float, batch: int, weights: int
    ) -> None:
        """A defect with one result, of a routing policy say, must not cost the others theirs, nor
        keep its own message in hand for ever."""
        try:
            self._tell_computed(job, result, seconds, batch, weights)
        except Exception:
            self._hand_back(job)

    def _tell_computed(
        self, job: Job, result: dict[str, np.ndarray], seconds: float, batch: int, weights: int
    ) -> None:
        if job.refused:
            self._outcomes.not_computed(job, Status.INVALID_ARGUMENT, job.refused)
        else:
            self._outcomes.computed(job, result, seconds, batch, weights)

    def _hand_back(self, job: Job) -> None:
        """A defect has left this job without an end. Give its message back, so that it does not
        stay in hand for ever. Where a message has just come, the lane itself gives it back."""
        log.exception("stage %d: a result was not passed on", self._stage)
        job.delivery.hand_back(HAND_BACK_DELAY)

    def _failed(self, batch: list[Job], error: Exception) -> None:
        halves = split_on_failure(batch)
        if halves is not None and not isinstance(error, RunTerminated):
            # One member may be poison: the others must not fail with it.
            for half in halves:
                self._start(list(half), self._clock())
            return
        for job in batch:
            try:
                self._tell_failed(job, error)
            except Exception:  # and with a defect of one the others are told nevertheless
                self._hand_back(job)

    def _tell_failed(self, job: Job, error: Exception) -> None:
        if isinstance(error, RunTerminated):
            self._ended_early(job)
        elif isinstance(error, InputError):
            self._outcomes.not_computed(job, Status.INVALID_ARGUMENT, str(error))
        else:
            self._outcomes.not_computed(job, Status.INTERNAL, str(error))

    def _ended_early(self, job: Job) -> None:
        if job.features.id in self._cancelled:
            self._outcomes.cancelled(job)
            return
        self._stats.counters.expired += 1
        text = f"the budget ended during the run of stage {self._stage}"
        self._outcomes.not_computed(job, Status.DEADLINE_EXCEEDED, text)

    # --- orders -----------------------------------------------------------------------

    def cancel(self, request_id: str, now: float) -> None:
        """Nobody waits for this request: do not compute it, now or when it comes again."""
        self._cancelled.add(request_id, now)
        behind = [job for job in self._behind if job.features.id == request_id]
        for job in behind:
            self._behind.pop(job).cancel()
        decoding = [job for job in self._decoding if job.features.id == request_id]
        self._decoding.difference_update(decoding)
        doubted = [job for job in self._doubted if job.features.id == request_id]
        self._doubted.difference_update(doubted)
        for job in (*self._waiting.take_out(request_id), *behind, *decoding, *doubted):
            self._outcomes.cancelled(job)
        for token, batch in self._running.items():
            if all(job.features.id in self._cancelled for job in batch):
                token.cancel()

    def end_runs(self) -> None:
        """End the runs in the thread for taking too long."""
        for token in self._running:
            self._too_long.add(token)
            token.cancel()

    def take_all_waiting(self) -> list[Job]:
        """The jobs that wait; they are not run."""
        apart = [*self._decoding, *self._doubted]
        self._decoding.clear()
        self._doubted.clear()
        return [*self._waiting.take_all(), *self._take_behind(), *apart]

    def _take_behind(self) -> list[Job]:
        for timer in self._behind.values():
            timer.cancel()
        taken = list(self._behind)
        self._behind.clear()
        return taken

    def abandon(self) -> None:
        """Give up all jobs, and a run that hangs."""
        self.take_all_waiting()
        self._running.clear()
        self._too_long.clear()
        if self._worker is not None:
            self._worker.abandon()
        if self._decoder is not None:
            self._decoder.abandon()
            self._decoder = None

    def restart(self) -> None:
        """A new thread for the one that was abandoned."""
        if self._worker is not None:
            self._worker = Worker(self._loop, f"stage-{self._stage}")

    def close(self) -> None:
        """Let the present run end, then the thread."""
        for thread in (self._worker, self._decoder):
            if thread is not None:
                thread.close()


def _look_at(job: Job, result: dict[str, np.ndarray], look: Look) -> None:
    try:
        job.told = look.looked(job.inputs, result)
    except InputError as error:
        job.refused = str(error)
