"""What to do about a run that hangs, a loop that stalls, a self-test that fails.

A node that looks healthy and is dead is worse than a dead one: the decisions here make it return
its work and, if restarting does not cure it, leave the mesh.
"""

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum

from swarm.flow.window import SlidingCount


class Action(StrEnum):
    """return: nak what is held, so that another node serves it; restart: replace the worker or
    the session; stay-out: leave the lanes until a person or a supervisor restarts the process."""

    RETURN = "return"
    RESTART = "restart"
    STAY_OUT = "stay-out"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do, in order (nothing, where all is well), and why."""

    actions: tuple[Action, ...] = ()
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.actions)


WELL = Verdict()


class Watchdog:
    """Counts failures of one worker; the `max_failures`-th within `window_s` keeps it out.

    run_factor: a run is hung after this many times its p99; smaller finds it sooner, and kills
        slow honest runs.
    run_floor_s: seconds; no run is hung earlier.
    stall_s: seconds by which a timer of the event loop may be late.
    max_failures, window_s: failures, and seconds in which they count.
    Raises ValueError for a knob that is not positive.
    """

    def __init__(
        self,
        *,
        run_factor: float = 10.0,
        run_floor_s: float = 1.0,
        stall_s: float = 1.0,
        max_failures: int = 3,
        window_s: float = 60.0,
    ) -> None:
        if not (run_factor > 0 and run_floor_s > 0 and stall_s > 0 and max_failures >= 1):
            raise ValueError("every knob of a watchdog is positive")
        self.out = False
        """Whether it was kept out, for good."""
        self._run_factor = run_factor
        self._run_floor_s = run_floor_s
        self._stall_s = stall_s
        self._max_failures = max_failures
        self._failures = SlidingCount(window_s)
        self._judged: OrderedDict[str, None] = OrderedDict()

    def running(self, run: str, elapsed_s: float, p99_s: float, now: float) -> Verdict:
        """Judge a run that has taken `elapsed_s`. Each run id is condemned at most once."""
        bound = max(self._run_factor * p99_s, self._run_floor_s)
        if elapsed_s <= bound or run in self._judged:
            return WELL
        self._judged[run] = None
        if len(self._judged) > 1024:
            self._judged.popitem(last=False)
        return self._failed(f"run {run} took over {bound:.3g} s", now)

    def loop_late(self, late_s: float, now: float) -> Verdict:
        """Judge a timer of the event loop that fired `late_s` seconds late: what is held may have
        been redelivered meanwhile, so it is returned; a stall restarts nothing by itself."""
        if late_s <= self._stall_s:
            return WELL
        reason = f"the event loop stalled for {late_s:.3g} s"
        return self._failed(reason, now, restart=False)

    def self_test(self, ok: bool, now: float) -> Verdict:
        """Judge a run on known input: `ok` where its output was right and in time."""
        return WELL if ok else self._failed("the self-test failed", now)

    def _failed(self, reason: str, now: float, *, restart: bool = True) -> Verdict:
        self._failures.add(1, now)
        failures = self._failures.total(now)
        if self.out or failures >= self._max_failures:
            self.out = True
            return Verdict(
                (Action.RETURN, Action.STAY_OUT),
                f"{reason}; {failures} failures in {self._failures.window_s:g} s",
            )
        actions = (Action.RETURN, Action.RESTART) if restart else (Action.RETURN,)
        return Verdict(actions, reason)
