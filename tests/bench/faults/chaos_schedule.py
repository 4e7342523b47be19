"""The faults of a run, drawn from a seed: a pure function, whatever becomes of the victims."""

from __future__ import annotations

import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

SHORTEST_STOP, LONGEST_STOP = 0.2, 3.0  # seconds between SIGSTOP and SIGCONT


class Kind(StrEnum):
    """The signal that a victim gets. A stopped one goes on after a while."""

    KILL = "SIGKILL"
    STOP = "SIGSTOP"
    TERM = "SIGTERM"

    @property
    def number(self) -> signal.Signals:
        """The signal to send."""
        return signal.Signals[self.value]


@dataclass(frozen=True, slots=True)
class Fault:
    """at: seconds since the load began. victim: a place in the list of processes, whose present
    process gets the signal. stopped: seconds until SIGCONT, 0.0 for other signals."""

    at: float
    kind: Kind
    victim: int
    stopped: float = 0.0


def schedule(
    seed: int, seconds: float, every: float, victims: int, kinds: Sequence[Kind] = tuple(Kind)
) -> list[Fault]:
    """One fault each `every` seconds, for `seconds`: the kind, the victim out of `victims`
    processes, and the length of a stop are drawn evenly, each fault by itself.

    Raises ValueError for times that are not positive, or without a victim.
    """
    if not (seconds > 0 and every > 0 and victims > 0):
        raise ValueError("seconds > 0, every > 0, victims > 0")
    rng = random.Random(seed)
    faults = []
    for number in range(1, int(seconds / every) + 1):
        kind = rng.choice(kinds)
        victim = rng.randrange(victims)
        stopped = rng.uniform(SHORTEST_STOP, LONGEST_STOP)
        faults.append(Fault(number * every, kind, victim, stopped * (kind is Kind.STOP)))
    return faults


def rule(every: float, victims: Sequence[str], kinds: Sequence[Kind] = tuple(Kind)) -> str:
    """The rule of a run in words."""
    stop = f" and {SHORTEST_STOP:g}-{LONGEST_STOP:g} s later SIGCONT"
    signals = [f"{kind}{stop * (kind is Kind.STOP)}" for kind in kinds]
    return (
        f"each {every:g} s one of {', '.join(victims)}, drawn evenly, gets {', '.join(signals)}, "
        "drawn evenly; a process that is away when its turn comes is passed over"
    )
