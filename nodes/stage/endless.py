"""Runs that may never end: a Loop of a model may turn for ever on some values. Pure.

A run on the event loop that lasts too long is ended by another thread, even where usual runs take
microseconds. It is begun again in a thread then, and so are all others for a while.

Who asks for such a run again and again would hold the thread all the time, until each request's
budget is over: clients whose runs had to be ended get a small share of it.
"""

from __future__ import annotations

from nodes.stage.jobs import Job
from shards.runtimes.runtime import CancelToken
from swarm.flow.bucket import Spending

LONGEST = 0.25  # seconds of a run on the loop
THREAD_FOR = 60.0  # seconds after such a run, in which none is done on the loop


class OnLoop:
    """Times are `time.monotonic()`. `is_allowed` before a run, `begin`, which gives its token, and
    `end`; where it raised `RunTerminated`, `lasted`. `end_overdue` is called by a thread."""

    def __init__(self) -> None:
        self._run: tuple[float, CancelToken] | None = None  # until when
        self._thread_until = 0.0
        self._ended = False

    def is_allowed(self, now: float) -> bool:
        """Whether a short run may be done on the loop."""
        return now >= self._thread_until

    def begin(self, expires: float, now: float) -> CancelToken:
        """A run begins, whose budget ends at `expires`."""
        token = CancelToken()
        self._run = (min(expires, now + LONGEST), token)
        return token

    def end(self) -> None:
        """It has ended."""
        self._run = None

    def lasted(self, now: float) -> None:
        """A run was ended: the next ones are done in the thread."""
        self._thread_until = now + THREAD_FOR

    def end_overdue(self, now: float) -> None:
        """End the run that lasts too long, or whose budget is over."""
        run = self._run
        if run is not None and now > run[0]:
            self._ended = True
            run[1].cancel()

    def take_ended(self) -> bool:
        """Whether `end_overdue` has ended a run since the last call."""
        ended, self._ended = self._ended, False
        return ended


# A run counts that was ended after so many times the usual one, and after so many seconds.
FACTOR, FLOOR = 10.0, 0.1
# Of the thread's time, which a client may spend on such runs. Its other requests are refused while
# it is in debt.
SHARE = 0.1


class Unending:
    """Times are seconds. `ended` for each run that was ended; `owes` before each run."""

    def __init__(self) -> None:
        self._spending: Spending | None = None  # from the first such run on

    def owes(self, job: Job, now: float) -> float:
        """Seconds until a request's client may have another run; 0.0 if it may now."""
        return 0.0 if self._spending is None else self._spending.owes(_client(job), now)

    def ended(self, job: Job, took: float, usual: float, now: float) -> None:
        """The run of one request was ended after `took`, where others take `usual`."""
        if took > max(FLOOR, FACTOR * usual):
            self._spending = self._spending or Spending(1.0 / SHARE)
            self._spending.spend(_client(job), SHARE, took, now)


def _client(job: Job) -> str:
    """The agent, and the process that the answer goes to: most clients name no agent."""
    return f"{job.features.agent} {job.features.reply.rpartition('.')[0]}"
