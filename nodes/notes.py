"""What people should know of versions beside how their stages are, of what nodes say: pure.

Lighter models that answer are told of here; features add theirs (`Feature.notes`), and
`nodes.noted` asks for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Documents = Iterable[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ModelNote:
    """A row of a table. about: the table. cells: by heading. warns: people should look."""

    model: str
    version: str
    about: str
    cells: Mapping[str, str] = field(default_factory=dict)
    warns: bool = False

    def line(self) -> str:
        """The row as a line for people."""
        said = "; ".join(f"{heading}: {cell}" for heading, cell in self.cells.items())
        return f"{self.about} of {self.model}@{self.version}: {said}"


def lighter_answers(documents: Documents) -> Iterator[ModelNote]:
    """A row for each version in whose place a lighter model has answered: of all clients, for the
    lighter model's nodes count them, and an edge those that it computes itself."""
    recent: dict[tuple[str, str], dict[str, float]] = {}
    ever: dict[tuple[str, str], float] = {}
    by: dict[tuple[str, str], set[str]] = {}
    for document in documents:
        of_stages = [
            (f"{stage.get('model')}@{stage.get('version')}", row)
            for stage in document.get("stages", ())
            for row in stage.get("stood_in", ())
        ]
        here = document.get("requests", {}).get("stood_in", ())
        for name, row in (*of_stages, *(("its edge", row) for row in here)):
            of = row["model"], row["version"]
            causes = recent.setdefault(of, {})
            causes[row["cause"]] = causes.get(row["cause"], 0) + row["recent"]
            ever[of] = ever.get(of, 0) + row["answers"]
            by.setdefault(of, set()).add(name)
    for of, causes in sorted(recent.items()):
        lately = [f"{count:.0f} {cause}" for cause, count in sorted(causes.items()) if count]
        cells = {
            "degraded answers, 5 minutes": ", ".join(lately) or "0",
            "by": ", ".join(sorted(by[of])),
            "since the nodes' start": f"{ever[of]:.0f}",
        }
        yield ModelNote(*of, "lighter model", cells, bool(lately))
