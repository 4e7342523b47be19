"""Tables for people, of one look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table

NOT_SHOWN = ("v", "bench", "machine", "missed")
"""Keys of a document that are no figures."""


def new_table(title: str, *headings: str, left: int = 1) -> Table:
    """Columns that do not wrap. left: how many of the first hold words, the others hold numbers."""
    table = Table(box=box.SIMPLE, title=title or None, title_justify="left", padding=(0, 1, 0, 0))
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place < left else "right", no_wrap=True)
    return table


def facts(document: Mapping[str, Any], *without: str) -> Table:
    """A line for each figure of a document. without: keys that are left out."""
    table = Table("figure", "value", title=str(document.get("bench", "")))
    for key, value in document.items():
        if key not in (*NOT_SHOWN, *without):
            if isinstance(value, Mapping):
                value = ", ".join(f"{inner}: {one}" for inner, one in value.items())
            table.add_row(key.replace("_", " "), str(value))
    return table
