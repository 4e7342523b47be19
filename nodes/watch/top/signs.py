"""A sign and a colour for each health and each level: told apart without colours too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from nodes.watch.dashboard.health import HealthLevel

HEALTH = {
    HealthLevel.WELL: ("✓", "green"),
    HealthLevel.BUSY: ("…", "yellow"),
    HealthLevel.SUSPECT: ("?", "yellow"),
    HealthLevel.FAILED: ("!", "bold red"),
    HealthLevel.DEAD: ("✕", "bold red"),
    HealthLevel.LEFT: ("○", "dim"),
}
LEVEL = {
    "well": ("✓", "green"),
    "good": ("✓", "green"),
    "note": ("·", ""),
    "warn": ("▲", "yellow"),
    "bad": ("✕", "bold red"),
}
MARKED = ("▲", "yellow")  # a node that is not believed
BARS = "▁▂▃▄▅▆▇█"
STATE_TEXTS = {HealthLevel.DEAD: "gone", HealthLevel.LEFT: "left", HealthLevel.SUSPECT: "suspect"}


def state_text(row: Mapping[str, Any]) -> str:
    """The state of a node, of its row in the view."""
    return STATE_TEXTS.get(row["health"], str(row["state"]))


def sign_of(row: Mapping[str, Any]) -> tuple[str, str]:
    """Sign and style of a node; one that is marked shows that as long as nothing is worse."""
    well = row["health"] in (HealthLevel.WELL, HealthLevel.BUSY)
    return MARKED if row["offence"] and well else HEALTH[row["health"]]


def line_of(level: str, text: str) -> Text:
    """A line of the verdict or of the events."""
    sign, style = LEVEL.get(level, LEVEL["note"])
    return Text(f"{sign} {text}", style=style, no_wrap=True, overflow="ellipsis")


def bars(values: list[float | None], width: int) -> str:
    """The last `width` figures as bars, of the largest of them; a blank where none was measured."""
    last = values[-width:] if width > 0 else []
    most = max((value for value in last if value is not None), default=0.0)
    if not most:
        return "".join(" " if value is None else BARS[0] for value in last)
    top = len(BARS) - 1
    return "".join(" " if v is None else BARS[min(top, round(v / most * top))] for v in last)
