"""The memory of a mesh as a table: one line a process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from bench.cost.memory.parts import KINDS
from nodes.console import out

MB = 1e6


def show(document: dict[str, Any]) -> None:
    """Print the document of `measure_memory`."""
    out.print(table(document))
    out.print(
        "MB: resident (RSS); proportional (PSS), where a page that n processes share counts 1/n in "
        "each of them; PSS by what it is for. The client is not counted."
    )


def table(document: dict[str, Any]) -> Table:
    """Resident and proportional MB of each process, and the latter by what it is for."""
    title = f"{Path(document['model']).stem}: {document['weights'] / MB:.1f} MB of weights"
    shown = Table(title=f"{title}, {document['stages']} stages")
    shown.add_column("process", no_wrap=True)
    for heading in ("RSS", "PSS", *KINDS):
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in document["processes"]:
        kinds = [row["parts"][kind]["proportional"] for kind in KINDS]
        figures = (row["resident"], row["proportional"], *kinds)
        shown.add_row(row["role"], *(f"{size / MB:.0f}" for size in figures))
    total = document["total"]
    kinds = [
        sum(row["parts"][kind]["proportional"] for row in document["processes"]) for kind in KINDS
    ]
    figures = (total["resident"], total["proportional"], *kinds)
    shown.add_row("all", *(f"{size / MB:.0f}" for size in figures), style="bold")
    return shown
