"""Clients whose runs had to be ended: they get a small share of a stage's thread. Pure.

A Loop of a model may turn for ever on some values. Who asks for that again and again would hold the
thread all the time, until each request's budget is over.
"""

from __future__ import annotations

from nodes.stage.jobs import Job
from swarm.flow.bucket import Spending

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
        """Until a request's client may have another run; 0.0 for now."""
        return 0.0 if self._spending is None else self._spending.owes(_client(job), now)

    def ended(self, job: Job, took: float, usual: float, now: float) -> None:
        """The run of one request was ended after `took`, where others take `usual`."""
        if took > max(FLOOR, FACTOR * usual):
            self._spending = self._spending or Spending(1.0 / SHARE)
            self._spending.spend(_client(job), SHARE, took, now)


def _client(job: Job) -> str:
    """The agent, and the process that the answer goes to: most clients name no agent."""
    return f"{job.features.agent} {job.features.reply.rpartition('.')[0]}"
