"""What guards have seen in the last five minutes, and whether people should look: pure.

The bound is that of the alert `SwarmUnfamiliarInputs` in deploy/monitoring.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nodes.notes import ModelNote

TIMES, LEAST = 5.0, 10  # as calibrated, and unfamiliar rows: fewer say nothing


@dataclass(frozen=True, slots=True)
class Lately:
    """Rows of five minutes. false_alarms: the share of usual rows that are unfamiliar."""

    rows: int
    unfamiliar: int
    false_alarms: float

    @property
    def bound(self) -> float:
        """The share of unfamiliar rows above which people should look."""
        return min(1.0, TIMES * self.false_alarms)

    @property
    def are_too_many(self) -> bool:
        """Whether they are above the bound."""
        return self.unfamiliar >= LEAST and self.unfamiliar > self.bound * self.rows


def notes(documents: Iterable[Mapping[str, Any]]) -> Iterator[ModelNote]:
    """A row for each version with a guard, of all nodes of its stage 1."""
    told: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for document in documents:
        for row in document.get("guards", ()):
            told.setdefault((row["model"], row["version"]), []).append(row)
    for (model, version), rows in sorted(told.items()):
        judged = sum(row.get("recent_rows", 0) for row in rows)
        far = sum(row.get("recent_unfamiliar", 0) for row in rows)
        since = min((row["since"] for row in rows if row.get("since")), default="")
        yield ModelNote(
            model,
            version,
            "guard",
            {
                "unfamiliar, 5 minutes": f"{far / judged:.1%} of {judged:.0f} rows"
                if judged
                else "no rows",
                "bound": f"{max(row.get('bound', 0.0) for row in rows):.1%}",
                "above it since": since or "-",
            },
            bool(since),
        )
