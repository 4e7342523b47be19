"""`swarm bench overload`: measure, print."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from bench.cost.overload.measure import measure_overload
from nodes.console import err, guarded, out, print_json

LEAST_GOODPUT_SHARE = 0.85
"""Goodput under overload, as a share of the capacity, from which the benchmark passes."""


def run_overload(
    seconds: float = 30.0, factor: float = 3.0, budget: float = 0.1, as_json: bool = False
) -> int:
    """The command; exit code 0 when goodput under overload is at least `LEAST_GOODPUT_SHARE`.

    seconds: length of the overload. factor: offered load in capacities. budget: seconds a request.
    """

    async def main() -> int:
        document = await measure_overload(seconds, factor, budget, _announce)
        if as_json:
            print_json(document)
        else:
            out.print(table(document))
        return 0 if document["goodput_share"] >= LEAST_GOODPUT_SHARE else 1

    return guarded(main, as_json)


def _announce(text: str) -> None:
    err.print(text)


def table(document: dict[str, Any]) -> Table:
    """The figures, for people."""
    shown = Table("figure", "value", title="overload")
    for key, value in document.items():
        shown.add_row(key.replace("_", " "), str(value))
    return shown
