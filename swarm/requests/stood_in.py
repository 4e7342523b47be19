"""What lighter models have answered in the place of others, and why: pure."""

from __future__ import annotations

from typing import Any

from swarm.flow.recent_counts import RecentCounts
from swarm.requests.lighter import LIGHTER_ANSWERS

MOST_TOLD = 32  # versions and causes
LONGEST = 140  # characters
CAUSES = frozenset(map(str, LIGHTER_ANSWERS))


def in_place_of(model: str, version: str, cause: str) -> str:
    """As it travels with a request: NAME@VERSION CAUSE. cause: the status of the failure."""
    return f"{model}@{version} {cause}"


class StoodIn:
    """Counts answers by the version that could not answer, and by cause."""

    def __init__(self) -> None:
        self._answers: dict[str, tuple[int, RecentCounts]] = {}

    def note(self, instead: str, now: float) -> None:
        """One was given. instead: as of `in_place_of`; what is none is not counted. now:
        seconds."""
        count, recent = self._answers.get(instead, (0, None))
        if recent is None:
            name, _, cause = instead.rpartition(" ")
            of = name.partition("@")
            if len(self._answers) >= MOST_TOLD or len(instead) > LONGEST:
                return
            if cause not in CAUSES or not (of[0] and of[2]):
                return
            recent = RecentCounts()
        recent.add(now, 1)
        self._answers[instead] = count + 1, recent

    def rows(self, now: float) -> list[dict[str, Any]]:
        """For status documents. answers: since the node's start; recent: of five minutes."""
        rows = []
        for instead, (count, recent) in self._answers.items():
            name, _, cause = instead.rpartition(" ")
            model, _, version = name.partition("@")
            of = {"model": model, "version": version, "cause": cause}
            rows.append({**of, "answers": count, "recent": recent.sums(now)[0]})
        return rows
