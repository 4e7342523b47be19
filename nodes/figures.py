"""What is told of a node's status as figures, to Prometheus by `watch`: small tables, of which a
feature has its own in the module that its `Feature.figures` names, as `FIGURES`.

Names are Prometheus's: base units, a counter's without `_total`. Labels come from closed lists, or
from documents that were read within bounds (`swarm.fleet.documents`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from nodes.cli.fields import part, rows

MOST_ROWS = 32  # of one node that are told
Fields = Mapping[str, Any]
OF_STAGE = {name: name for name in ("model", "version", "stage")}


@dataclass(frozen=True)
class Figure:
    """One metric: a number; counts by one more label, `by`; or the histogram of seconds that a
    status has. told: the field, as `counters.tokens`, or what makes it of the fields; nothing is
    told of None and of an empty map. names: the keys of a map that are told. unit: so many of the
    field's units are one of the figure's."""

    kind: Literal["gauge", "counter", "by_kind", "durations"]
    about: str
    told: str | Callable[[Fields], Any]
    by: str = ""
    names: Collection[str] = ()
    unit: float = 1.0

    def of(self, fields: Fields) -> Any:
        """What is told: pairs of a label and a number for a figure with `by`."""
        if not isinstance(self.told, str):
            return self.told(fields)
        *maps, name = self.told.split(".")
        for each in maps:
            fields = part(fields, each)
        if self.by or self.kind == "durations":
            found = part(fields, name) if name else fields
            return known(found, self.names) if self.by else found
        value = fields.get(name)
        return value if value is None or self.unit == 1.0 else value / self.unit


gauge, counter = partial(Figure, "gauge"), partial(Figure, "counter")
counters, durations = partial(Figure, "by_kind"), partial(Figure, "durations")


@dataclass(frozen=True)
class FiguresOf:
    """The figures, by name, of a part of the status, a map or a list of maps, or of what `where`
    makes of the status. labels: the fields that tell the maps apart, by label."""

    where: str | Callable[[Fields], Sequence[Fields]]
    figures: Mapping[str, Figure]
    labels: Mapping[str, str] = field(default_factory=dict)
    most: int = MOST_ROWS

    def rows(self, status: Fields) -> Sequence[Fields]:
        """The maps that are told of, `most` at most."""
        if not isinstance(self.where, str):
            return self.where(status)[: self.most]
        one = part(status, self.where)
        return [one] if one else rows(status.get(self.where))[: self.most]


def known(counts: Fields, names: Iterable[str]) -> list[tuple[str, Any]]:
    """The counts of known names; others would be labels without bounds."""
    return [(name, counts[name]) for name in sorted(set(names) & counts.keys())]
