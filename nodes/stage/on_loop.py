"""A run on the event loop, which a thread ends from outside where it lasts.

A Loop of a model may turn for ever on some values, also where other runs take microseconds. The run
is begun again in a thread then, and so are all others for a while.
"""

from __future__ import annotations

from shards.runtimes.runtime import CancelToken

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
