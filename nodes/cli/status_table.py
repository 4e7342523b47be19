"""Status documents as a table that fits its screen: a node a line, the most needed columns first.

Documents come from the network: each field is read as if it were of any type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from nodes.cli.fields import one_line, part, rows
from nodes.cli.short_ids import short_ids

UNMEASURED, ABSURD = "-", "?"
MOST = 1e15  # no count, rate, time or memory of a node is more
GAP = 2  # between two columns
LONGEST_FIELD = 200  # characters of a text that are looked at
COLORS = {"ready": "green", "silent": "red", "killed": "red", "failed": "red", "left": "dim"}


@dataclass(frozen=True, slots=True)
class NodeView:
    """What a table shows of a node. A figure is None where nothing was measured, and NaN where the
    document says something absurd. Latencies (p50, p99) in ms, rate in requests a second."""

    node: str
    role: str
    stages: str  # of its slots in plans
    state: str
    detail: str
    model: str
    host: str
    weights: tuple[float, ...]
    served: float | None
    failed: float | None
    waiting: float | None
    rate: float | None
    compute: tuple[float | None, float | None]
    queue: tuple[float | None, float | None]
    rss: float | None


def node_view(status: dict[str, Any], state: str = "", rate: float | None = None) -> NodeView:
    """Read a document; never raises. A node with several stages shows the sums and the worst
    latencies of them. state: what the reader knows better than the document, or ''.
    """
    stages = rows(status.get("stages"))
    counts = [part(stage, "counters") for stage in stages]
    edge = part(status, "edge")
    weights = {amount(stage.get("weights")) for stage in stages}
    model, version = text(status.get("model")), text(status.get("version"))
    return NodeView(
        node=text(status.get("node")),
        role=text(status.get("role")),
        stages=",".join(filter(None, map(_slot, rows(status.get("plans")))))[:LONGEST_FIELD],
        state=state or text(status.get("state")),
        detail=_with_slots(status, text(status.get("detail"))),
        model=f"{model}@{version}" if model else "",
        host=text(status.get("host")),
        weights=tuple(sorted({w for w in weights if w})),
        served=served(status),
        failed=amount(edge.get("failed")) if edge else _total(c.get("failed") for c in counts),
        waiting=amount(status.get("queue_depth")) if stages else None,
        rate=rate,
        compute=_worst(stages, "compute_ms"),
        queue=_worst(stages, "queue_ms"),
        rss=amount(status.get("rss_bytes")) or None,
    )


def _with_slots(status: dict[str, Any], detail: str) -> str:
    """With the stages of its slots in front, where it is a node of role auto."""
    told = []
    for plan in rows(status.get("plans")):
        if stages := _slot(plan):
            told.append(f"stages {stages} of plan {count_text(amount(plan.get('plan')))}")
        elif plan.get("lacking"):
            told.append(text(plan["lacking"]))
        else:
            told.append("no slot" if plan.get("measured") is True else "measures its pace")
    return "; ".join([*told, detail])[:LONGEST_FIELD] if told else detail


def _slot(plan: dict[str, Any]) -> str:
    """The first and the last stage of a node's slot in a plan; '' without one."""
    slot = plan.get("slot")
    if not isinstance(slot, list) or len(slot) != 2:
        return ""
    return "-".join(count_text(amount(stage)) for stage in slot)


def served(status: dict[str, Any]) -> float | None:
    """The requests that a node has answered since its start; None where it does not count them,
    NaN where its count is absurd."""
    edge = part(status, "edge")
    if edge:
        return amount(edge.get("answered"))
    return _total(part(stage, "counters").get("served") for stage in rows(status.get("stages")))


def amount(value: object) -> float | None:
    """A figure of a document: None where it is absent, NaN where it is absurd."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST:
        return math.nan
    return float(value)


def text(value: object) -> str:
    """A text of a document, for one line of a terminal; a long one is cut."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return ABSURD
    return one_line(value[:LONGEST_FIELD])


def _total(values: Iterable[object]) -> float | None:
    known = [a for a in map(amount, values) if a is not None]
    return sum(known) if known else None


def _worst(stages: list[dict[str, Any]], name: str) -> tuple[float | None, float | None]:
    return _most(stages, name, "p50"), _most(stages, name, "p99")


def _most(stages: list[dict[str, Any]], name: str, percentile: str) -> float | None:
    """The largest figure; a latency of zero is a window without requests."""
    known = [a for a in (amount(part(s, name).get(percentile)) for s in stages) if a]
    return math.nan if any(map(math.isnan, known)) else max(known, default=None)


def count_text(value: float | None) -> str:
    """At most six characters."""
    if value is None or math.isnan(value):
        return UNMEASURED if value is None else ABSURD
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size * (100 if unit == "k" else 1):
            return f"{value / size:.0f}{unit}"
    return f"{value:.0f}"


def figure_text(value: float | None) -> str:
    """A rate or a time, with as many digits as tell something; at most six characters."""
    if value is None or math.isnan(value) or value >= 1000:
        return count_text(value)
    if 0 < value < 0.01:
        return "<0.01"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _pair_text(pair: tuple[float | None, float | None]) -> str:
    return UNMEASURED if pair == (None, None) else "/".join(map(figure_text, pair))


def _megabytes(rss: float | None) -> str:
    return count_text(None if rss is None else rss / 1e6)


def _any(_: Sequence[NodeView]) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class StatusColumn:
    """A column: its cell for a node, and how wide it may be. need: 0 for always, else the columns
    with the least need come first. It is left out where `says` nothing."""

    heading: str
    need: int
    least: int
    most: int
    cell: Callable[[NodeView], str]
    right: bool = True
    says: Callable[[Sequence[NodeView]], bool] = _any

    def width(self, cells: Iterable[str]) -> int:
        """Columns of the screen. `least` leaves room for growth: a table that is shown again
        each half second does not jump with each digit."""
        widest = max((cell_len(cell) for cell in (*cells, *self.heading.split("\n"))), default=0)
        return max(self.least, min(self.most, widest))


COLUMNS = (
    StatusColumn("role", 0, 8, 10, lambda v: v.role or ABSURD, right=False),
    StatusColumn("node", 0, 6, 16, lambda v: v.node, right=False),
    StatusColumn("state", 0, 8, 8, lambda v: v.state or ABSURD, right=False),
    StatusColumn(
        "stages",
        1,
        6,
        12,
        lambda v: v.stages or UNMEASURED,
        says=lambda views: any(v.stages for v in views),
    ),
    StatusColumn("rate\n1/s", 1, 6, 6, lambda v: figure_text(v.rate)),
    StatusColumn("compute ms\np50/p99", 2, 11, 13, lambda v: _pair_text(v.compute)),
    StatusColumn("waiting", 3, 7, 7, lambda v: count_text(v.waiting)),
    StatusColumn("failed", 4, 6, 6, lambda v: count_text(v.failed)),
    StatusColumn(
        "weights",
        5,
        7,
        9,
        lambda v: ",".join(map(count_text, v.weights)) or UNMEASURED,
        says=lambda views: any(v.weights for v in views),
    ),
    StatusColumn("model", 6, 9, 24, lambda v: v.model or UNMEASURED, right=False),
    StatusColumn("queue ms\np50/p99", 7, 11, 13, lambda v: _pair_text(v.queue)),
    StatusColumn("served", 8, 6, 6, lambda v: count_text(v.served)),
    StatusColumn("RSS\nMB", 9, 5, 6, lambda v: _megabytes(v.rss)),
    StatusColumn("host", 10, 8, 20, lambda v: v.host or UNMEASURED, right=False),
    StatusColumn("detail", 11, 10, 60, lambda v: v.detail or UNMEASURED, right=False),
)


def columns_that_fit(columns: Sequence[tuple[int, int]], width: int) -> list[int]:
    """The positions of the columns that a screen has room for, of (need, width) of each.

    Those of need 0 always; the others by need, until one does not fit: a wider screen shows all
    that a narrower one does.
    """
    chosen: list[int] = []
    left = width + GAP
    for position in sorted(range(len(columns)), key=lambda p: columns[p][0]):
        need, wide = columns[position]
        left -= wide + GAP
        if need and left < 0:
            break
        chosen.append(position)
    return sorted(chosen)


def rows_that_fit(views: Sequence[NodeView], lines: int) -> list[NodeView]:
    """By role and id. Where there are too many for so many lines, nodes that are not ready stay."""
    order = sorted(views, key=lambda v: (v.role, v.node))
    troubled_first = sorted(order, key=lambda v: v.state == "ready")
    kept = set(map(id, troubled_first[: max(0, lines)]))
    return [view for view in order if id(view) in kept]


def status_table(views: Sequence[NodeView], width: int, height: int | None = None) -> Table:
    """A line for each node, by role, none longer than `width`; in `height` lines, or as many as it
    takes. Raises nothing, whatever the documents said."""
    names = short_ids(view.node for view in views)
    headings = 3  # lines: two of headings, one below them
    shown = rows_that_fit(views, len(views) if height is None else height - headings)
    if len(shown) < len(views):  # one line less, for the caption
        shown = rows_that_fit(views, (height or 0) - headings - 1)
    cells = {
        column: [names[v.node] if column.heading == "node" else column.cell(v) for v in shown]
        for column in COLUMNS
        if column.says(views)
    }
    widths = {column: column.width(own) for column, own in cells.items()}
    columns = list(cells)
    fit = columns_that_fit([(c.need, widths[c]) for c in columns], width)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    for column in (columns[position] for position in fit):
        table.add_column(
            column.heading,
            justify="right" if column.right else "left",
            no_wrap=True,
            overflow="ellipsis",
            min_width=min(widths[column], width),
            max_width=widths[column],
        )
    for row, view in enumerate(shown):
        # `Text` and not markup: brackets of an id or a model's name stay text.
        table.add_row(
            *(
                Text(cells[columns[p]][row], style=_style(columns[p], view), overflow="ellipsis")
                for p in fit
            )
        )
    if len(shown) < len(views):
        table.caption = Text(f"and {len(views) - len(shown)} more nodes", style="dim")
    return table


def _style(column: StatusColumn, view: NodeView) -> str:
    return COLORS.get(view.state, "yellow") if column.heading == "state" else ""
