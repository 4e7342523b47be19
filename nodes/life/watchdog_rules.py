"""What to do about a run that hangs, a loop that stalls, a self-test that fails.

A node that looks healthy but computes nothing does more harm than a dead one. The decisions here
make it return its work and, if a restart does not help, leave the mesh.
"""

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum

from swarm.flow.window import SlidingCount


class WatchdogAction(StrEnum):
    """return: hand the work back to its lane, so that another node does it; restart: replace the
    worker or the session; stay-out: leave the lanes until a person or a supervisor restarts the
    process."""

    RETURN = "return"
    RESTART = "restart"
    STAY_OUT = "stay-out"


@dataclass(frozen=True, slots=True)
class WatchdogVerdict:
    """What to do, in order (nothing, where all is well), and why."""

    actions: tuple[WatchdogAction, ...] = ()
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.actions)


WELL = WatchdogVerdict()


# When a stage has failed, and what is tried then. All times are in seconds.
# A run hangs after so many times its p99: smaller finds it sooner, and kills slow honest runs.
RUN_FACTOR = 10.0
RUN_FLOOR = 1.0  # no run hangs earlier
STALL = 1.0  # by which a timer of the event loop may be late
MAX_FAILURES, WINDOW = 3, 60.0  # so many within the window keep a stage out
CHECK_EVERY = 0.2  # between two checks of the stages, on the beat of all regular work
TEST_EVERY = 30.0  # between two self-tests
# In which a self-test ends, so many times a run's p99 besides: it gives way to all others.
TEST_WITHIN, TEST_FACTOR = 10.0, 20.0
RELOAD_EVERY = 1.0  # between two attempts at a new session
# So many times a run's bound, in which known input is computed beside it, where the fault is the
# request's and not the stage's. In as much time again, the run has ended by then.
ASK_FACTOR = 2.0


def run_bound(p99_s: float) -> float:
    """Seconds from which on a run may hang, where others take `p99_s`."""
    return max(RUN_FACTOR * p99_s, RUN_FLOOR)


class Watchdog:
    """Counts failures of one worker; the `MAX_FAILURES`-th within `WINDOW` keeps it out."""

    def __init__(self) -> None:
        self.out = False
        """Whether it was kept out, for good."""
        self._failures = SlidingCount(WINDOW)
        self._judged: OrderedDict[str, None] = OrderedDict()

    def may_hang(self, run: str, elapsed_s: float, p99_s: float) -> bool:
        """Whether a run that has taken `elapsed_s` takes too long, and was not judged yet."""
        return elapsed_s > run_bound(p99_s) and run not in self._judged

    def running(self, run: str, elapsed_s: float, p99_s: float, now: float) -> WatchdogVerdict:
        """Judge a run that has taken `elapsed_s`. Each run id is condemned at most once."""
        bound = run_bound(p99_s)
        if not self.may_hang(run, elapsed_s, p99_s):
            return WELL
        self._judged[run] = None
        if len(self._judged) > 1024:
            self._judged.popitem(last=False)
        return self._failed(f"run {run} took over {bound:.3g} s", now)

    def loop_late(self, late_s: float, now: float) -> WatchdogVerdict:
        """Judge a timer of the event loop that fired `late_s` seconds late: what it has in hand may
        have been redelivered meanwhile, so it is returned; a stall restarts nothing by itself."""
        if late_s <= STALL:
            return WELL
        reason = f"the event loop stalled for {late_s:.3g} s"
        return self._failed(reason, now, restart=False)

    def self_test(self, ok: bool, now: float) -> WatchdogVerdict:
        """Judge a run on known input: `ok` where its output was right and in time."""
        return WELL if ok else self._failed("the self-test failed", now)

    def _failed(self, reason: str, now: float, *, restart: bool = True) -> WatchdogVerdict:
        self._failures.add(1, now)
        failures = self._failures.total(now)
        if self.out or failures >= MAX_FAILURES:
            self.out = True
            return WatchdogVerdict(
                (WatchdogAction.RETURN, WatchdogAction.STAY_OUT),
                f"{reason}; {failures} failures in {WINDOW:g} s",
            )
        actions = (
            (WatchdogAction.RETURN, WatchdogAction.RESTART) if restart else (WatchdogAction.RETURN,)
        )
        return WatchdogVerdict(actions, reason)
