"""The table of nodes: which columns a screen has room for, what a filter finds, in which order.

Rows are those of `PageState.row`. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nodes.cli.status_table import GAP, UNMEASURED, columns_that_fit, count_text, figure_text
from nodes.watch.dashboard.health import HealthLevel
from nodes.watch.top.signs import sign_of, state_text

Row = Mapping[str, Any]
TROUBLE = "trouble"  # the order without a column: what is wrong stands first
TROUBLED = {
    HealthLevel.FAILED: 0,
    HealthLevel.DEAD: 1,
    HealthLevel.SUSPECT: 2,
    HealthLevel.BUSY: 4,
    HealthLevel.WELL: 5,
    HealthLevel.LEFT: 6,
}
MARKED_RANK = 3  # of a node that is not believed, and else is busy or well


@dataclass(frozen=True, slots=True)
class TopColumn:
    """need: 0 for always; else the columns with the least need come first, as far as there is
    room. value: what is sorted by; None stands last."""

    key: str
    heading: str
    need: int
    width: int
    cell: Callable[[Row], str]
    value: Callable[[Row], float | str | None]
    right: bool = True


def _worst(part: str, which: int) -> Callable[[Row], float | None]:
    def read(row: Row) -> float | None:
        return max(
            (s[part][which] for s in row["stages"] if s[part][which] is not None), default=None
        )

    return read


def _sum(part: str) -> Callable[[Row], float | None]:
    return lambda row: sum(s[part] for s in row["stages"]) if row["stages"] else None


def _pair(part: str) -> Callable[[Row], str]:
    middle, high = _worst(part, 0), _worst(part, 1)

    def text(row: Row) -> str:
        pair = middle(row), high(row)
        return UNMEASURED if pair == (None, None) else "/".join(map(figure_text, pair))

    return text


def _figure(key: str, heading: str, need: int, value: Callable[[Row], float | None]) -> TopColumn:
    return TopColumn(
        key, heading, need, max(6, len(heading)), lambda r: figure_text(value(r)), value
    )


def _count(key: str, heading: str, need: int, value: Callable[[Row], float | None]) -> TopColumn:
    return TopColumn(
        key, heading, need, max(6, len(heading)), lambda r: count_text(value(r)), value
    )


def _text(key: str, need: int, width: int, value: Callable[[Row], str]) -> TopColumn:
    return TopColumn(key, key, need, width, lambda r: value(r) or UNMEASURED, value, right=False)


def _served(row: Row) -> float | None:
    if row["edge"]:
        return float(row["edge"]["answered"])
    return _sum("served")(row)


def _failed(row: Row) -> float | None:
    if row["edge"]:
        return float(row["edge"]["failed"])
    return _sum("failed")(row)


def _state(row: Row) -> str:
    return f"{sign_of(row)[0]} {state_text(row)}"


def _weights(row: Row) -> float | None:
    return max((s["weights"] for s in row["stages"]), default=None) or None


def _megabytes(row: Row) -> float | None:
    return row["rss"] / 1e6 if row["rss"] else None


NODE = "node"
COLUMNS = (
    TopColumn("state", "state", 0, 10, _state, _state, right=False),
    TopColumn(
        NODE, NODE, 0, 10, lambda row: str(row[NODE]), lambda row: str(row[NODE]), right=False
    ),
    _text("role", 0, 8, lambda row: str(row["role"])),
    _text("model", 4, 9, lambda row: f"{row['model']}@{row['version']}" if row["model"] else ""),
    _figure("rate", "req/s", 1, lambda row: row["rate"]),
    TopColumn("compute", "compute ms", 2, 11, _pair("compute"), _worst("compute", 1)),
    TopColumn("queue", "queue ms", 5, 11, _pair("queue"), _worst("queue", 1)),
    _count("waiting", "waiting", 3, _sum("waiting")),
    _count("failed", "failed", 6, _failed),
    _count("served", "served", 7, _served),
    _count("weights", "weights", 8, _weights),
    _count("memory", "MB", 9, _megabytes),
    _text("host", 10, 14, lambda row: str(row["host"])),
    _text("software", 11, 8, lambda row: str(row["software"])),
    _text("detail", 12, 40, lambda row: str(row["offence"] or row["detail"])),
)


def columns_for(width: int) -> list[TopColumn]:
    """The columns for a screen of this width, less one for the scroll bar."""
    sizes = [(column.need, column.width) for column in COLUMNS]
    return [COLUMNS[place] for place in columns_that_fit(sizes, width - 1 - GAP)]


def cell_text(column: TopColumn, row: Row, names: Mapping[str, str]) -> str:
    """A cell, cut to the width of its column. names: short ids."""
    cell = names[row[NODE]] if column.key == NODE else column.cell(row)
    return cell if len(cell) <= column.width else cell[: column.width - 1] + "…"


def is_meant(row: Row, words: str) -> bool:
    """Whether a filter finds a node: each of its words is in some text of it."""
    texts = (row["node"], row["role"], row["model"], row["version"], row["host"], row["detail"])
    known = " ".join((*texts, row["kind"], str(row["health"]), state_text(row))).lower()
    if row["offence"]:
        known += f" marked {row['offence']}".lower()
    return all(word in known for word in words.lower().split())


def ordered(rows: Iterable[Row], key: str, backwards: bool) -> list[str]:
    """Ids in the order of a column, or of `TROUBLE`. Figures begin with the largest, texts with the
    first of the alphabet, unless `backwards`; what is not known stands last in any case."""
    known = sorted(rows, key=lambda row: (row["role"], row[NODE]))
    if key == TROUBLE:
        known.sort(key=_rank, reverse=backwards)
        return [row[NODE] for row in known]
    column = next(column for column in COLUMNS if column.key == key)
    values = [(column.value(row), row[NODE]) for row in known]
    measured = [(value, node) for value, node in values if value is not None]
    measured.sort(key=lambda pair: pair[0], reverse=column.right != backwards)
    return [*(node for _, node in measured), *(node for value, node in values if value is None)]


def _rank(row: Row) -> int:
    rank = TROUBLED[row["health"]]
    return min(rank, MARKED_RANK) if row["offence"] else rank
