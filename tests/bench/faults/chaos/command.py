"""`swarm bench chaos`: play, print, judge."""

from __future__ import annotations

import logging
from typing import Any

from rich.table import Table

from bench.faults.chaos.figures import failures
from bench.faults.chaos.play import ChaosPlan, play
from nodes.console import err, guarded, out, print_json
from nodes.logs import LogForm, set_up_logging


def run_chaos(plan: ChaosPlan, at_least: float, as_json: bool = False) -> int:
    """The command; exit code 1 where an answer was wrong, a request was lost, or less than the
    share `at_least` (0..1) was answered."""
    set_up_logging(LogForm())
    logging.getLogger("swarm").setLevel(logging.ERROR)

    async def main() -> int:
        doc = await play(plan, lambda text: err.print(f"chaos: {text}", highlight=False))
        reasons = failures(doc, at_least)
        doc["passed"] = not reasons
        if as_json:
            print_json(doc)
        else:
            out.print(table(doc))
        for reason in reasons:
            err.print(f"chaos: {reason}; `--seed {plan.seed}` plays the same faults again")
        return int(bool(reasons))

    return guarded(main, as_json)


def table(doc: dict[str, Any]) -> Table:
    """The figures, for people; the faults one by one are in the JSON document."""
    shown = Table("figure", "value", title="chaos")
    for key, value in doc.items():
        if key not in ("v", "bench", "faults", "machine"):
            text = (
                ", ".join(f"{k}: {v}" for k, v in value.items())
                if isinstance(value, dict)
                else value
            )
            shown.add_row(key.replace("_", " "), str(text))
    return shown


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {inner}" for key, inner in value.items())
    return str(value)
