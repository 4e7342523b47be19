"""One node, all that is known of it. Pure; see `panels`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.text import Text

from nodes.cli.status_table import UNMEASURED, count_text, figure_text
from nodes.watch.top.panels import event_text, lines
from nodes.watch.top.signs import bars, sign_of, state_text

LABEL = 10  # columns
EVENTS_SHOWN = 20
CHARTS = (
    ("rate", "req/s"),
    ("compute_p99", "compute"),
    ("queue_p99", "queue"),
    ("waiting", "waiting"),
)


def node_text(
    row: Mapping[str, Any],
    history: Mapping[str, list[float | None]],
    events: Sequence[Mapping[str, Any]],
    width: int,
) -> Text:
    """row: `PageState.row`. history: `PageState.history_of`, or nothing. events: those about it."""
    sign, style = sign_of(row)
    found = [Text(row["node"], style="bold"), Text(f"{sign} {state_text(row)}", style=style)]
    if row["offence"]:
        found.append(Text(f"▲ not believed: {row['offence']}", style="yellow", overflow="fold"))
    found += _facts(row)
    found += [Text(), *_stages(row["stages"])] if row["stages"] else []
    found += [Text(), *_charts(history, width)] if history else []
    found += [_fact("objective", _objective(objective)) for objective in row["objectives"]]
    if events:
        found += [Text(), Text("events", style="bold")]
        found += [event_text(event, {}) for event in reversed(events[-EVENTS_SHOWN:])]
    text = lines(found)
    text.no_wrap, text.overflow = False, "fold"
    return text


def _fact(label: str, words: str) -> Text:
    return Text.assemble((f"{label:<{LABEL}}", "dim"), words)


def _facts(row: Mapping[str, Any]) -> Iterable[Text]:
    model = f"{row['model']}@{row['version']}" if row["model"] else ""
    facts = {
        "detail": row["detail"],
        "role": f"{row['role']} ({row['kind']})",
        "model": model,
        "host": f"{row['host']} pid {row['pid']}" if row["host"] else "",
        "software": row["software"],
        "since": row["since"],
        "rate": f"{figure_text(row['rate'])} requests a second",
        "memory": f"{row['rss'] / 1e6:.0f} MB" if row["rss"] else "",
        "cpu": f"{row['cpu']:.1f} s, ready in {row['ready_ms'] / 1e3:.1f} s" if row["cpu"] else "",
        "peers": ", ".join(f"{count} {state}" for state, count in row["peers"].items() if count),
        "edge": ", ".join(f"{count_text(count)} {name}" for name, count in row["edge"].items()),
    }
    requests, learning = row["requests"], row["learning"]
    if requests:
        p50, p99 = requests["latency"]
        facts["answers"] = (
            f"{count_text(requests['answered'])} OK, {count_text(requests['failed'])} not, "
            f"p50 {figure_text(p50)} p99 {figure_text(p99)} ms"
        )
    if learning:
        accuracy = learning["accuracy"]
        facts["learning"] = (
            f"weights {learning['weights']}, {learning['rounds']} rounds, "
            f"{learning['samples']} samples, accuracy "
            f"{UNMEASURED if accuracy is None else f'{accuracy:.3f}'} {learning['problem']}"
        )
    return [_fact(label, words) for label, words in facts.items() if words]


HEADINGS = ("stage", "model", "req/s", "compute ms", "queue ms", "wait", "hand", "failed", "served")
WIDTHS = (5, 10, 6, 11, 11, 5, 5, 6, 6)


def _stages(stages: Sequence[Mapping[str, Any]]) -> Iterable[Text]:
    yield Text(_line(HEADINGS), style="dim")
    for stage in stages:
        cells = (
            str(stage["stage"]),
            f"{stage['model']}@{stage['version']}"[: WIDTHS[1]],
            figure_text(stage["rate"]),
            "/".join(map(figure_text, stage["compute"])),
            "/".join(map(figure_text, stage["queue"])),
            count_text(stage["waiting"]),
            count_text(stage["in_hand"]),
            count_text(stage["failed"]),
            count_text(stage["served"]),
        )
        yield Text(_line(cells))


def _line(cells: Sequence[str]) -> str:
    return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True))


def _charts(history: Mapping[str, list[float | None]], width: int) -> Iterable[Text]:
    room = max(10, width - 2 * LABEL - 4)
    for figure, label in CHARTS:
        values = history[figure]
        last = values[-1] if values else None
        chart = bars(values, room)
        words = f"{figure_text(last):>7} "
        yield Text.assemble((f"{label:<{LABEL}}", "dim"), words, (chart, "cyan"))


def _objective(objective: Mapping[str, Any]) -> str:
    parts = []
    if objective["p99_ms"] is not None:
        parts.append(f"99 % within {objective['p99_ms']:g} ms")
    if objective["errors"] is not None:
        parts.append(f"at most {objective['errors']:.2%} errors")
    burning = f"BURNS ({objective['burning']})" if objective["burning"] else "holds"
    return f"{objective['model']}: {', '.join(parts)}; {burning}, {objective['burn']:g} times"
