"""What requesters observed: how many of their requests ended with which status.

A failure that nobody but the client sees (no server, no node, a budget that is over) is counted by
no node. So a client that uses the library tells the mesh now and then, on
`swarm.<mesh>.observed.<client>`, what became of its requests since it last told:

    {"v": 1, "client": "<id>", "requests": {"<model>": {"OK": 12, "UNAVAILABLE": 3}},
     "degraded": {"<model>": 2}}

`degraded` counts those of the answers that a lighter model gave.

What happens while there is no connection is told at the next one. A lost report is not sent again,
since nobody is billed by it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from swarm.errors import DecodeError, Status
from swarm.fleet.documents import COUNT, Faults, form, name, number, parse, table
from swarm.flow.bucket import TokenBucket
from swarm.subjects import TOKEN

REPORT_EVERY = 5.0  # seconds
MOST_MODELS = 64
LARGEST_REPORT = 16 << 10  # bytes
REPORTS_PER_SECOND, REPORTS_AT_ONCE = 1000.0, 4000.0  # of all clients
_STATUSES = frozenset(map(str, Status))
_REPORT = form(
    {
        "v": number(1, 1),
        "client": name,
        "requests": table(table(COUNT), MOST_MODELS),
        "degraded": table(COUNT, MOST_MODELS),
    },
    ("v", "requests"),
)

Counts = dict[str, dict[str, int]]  # by model, by status


class Observed:
    """One client's own count, until it is told."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._counts: Counts = {}
        self._degraded: dict[str, int] = {}  # of the models in `_counts`
        self._told_at = clock()

    def note(self, model: str, status: str, degraded: bool = False) -> None:
        """One request has ended. model: without its version. A name that the mesh does not have is
        the caller's mistake, and not counted."""
        if status == Status.NOT_FOUND:
            return
        counts = self._counts.get(model)
        if counts is None:
            if len(self._counts) >= MOST_MODELS:
                return
            counts = self._counts[model] = {}
        counts[status] = counts.get(status, 0) + 1
        if degraded:
            self._degraded[model] = self._degraded.get(model, 0) + 1

    @property
    def is_due(self) -> bool:
        """Whether there is something to tell, and the last report is old enough."""
        return bool(self._counts) and self._clock() - self._told_at >= REPORT_EVERY

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not self._counts

    def report(self, client: str) -> bytes:
        """What was not told yet, as it is sent."""
        report = {"v": 1, "client": client, "requests": self._counts}
        return json.dumps(
            report | ({"degraded": self._degraded} if self._degraded else {})
        ).encode()

    def told(self) -> None:
        """The report was sent."""
        self._counts, self._degraded, self._told_at = {}, {}, self._clock()


class ObservedTotals:
    """Adds up what all clients tell, for whoever shows it. by_model: requests by status, since this
    reader came; of `MOST_MODELS` models, and of all that serve. degraded: answers of lighter
    models, by the model that was asked."""

    def __init__(self) -> None:
        self.by_model: Counts = {}
        self.degraded: dict[str, int] = {}
        self._bucket = TokenBucket(REPORTS_PER_SECOND, REPORTS_AT_ONCE)

    def expect(self, model: str) -> None:
        """A model that serves. It is shown before a client reports on it, and keeps its place
        whatever names clients make up."""
        self.by_model.setdefault(model, {})

    def take(self, data: bytes | memoryview, now: float) -> None:
        """Count a client's report; a message that is no report is ignored. now: seconds,
        monotonic."""
        if not self._bucket.take(now):
            return
        try:
            report = _REPORT(parse(data, LARGEST_REPORT), "", faults := Faults())
        except DecodeError:
            return
        if not isinstance(report, Mapping) or faults.count:
            return
        for model, counts in report["requests"].items():
            if TOKEN.fullmatch(model) is None:
                continue
            if model not in self.by_model and len(self.by_model) >= MOST_MODELS:
                continue
            known = self.by_model.setdefault(model, {})
            for status in counts.keys() & _STATUSES:
                known[status] = known.get(status, 0) + int(counts[status])
        for model, count in (report.get("degraded") or {}).items():
            if model in self.by_model:
                self.degraded[model] = self.degraded.get(model, 0) + int(count)
