"""`swarm bench site`: play, print, judge."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.faults.site.figures import failures
from bench.faults.site.play import SitePlan, play
from nodes.console import err, guarded, out, print_json
from nodes.logs import LogForm, set_up_logging


def run_site(plan: SitePlan, as_json: bool = False, output: str = "") -> int:
    """The command; exit code 1 where an answer is lost, wrong, there twice or out of order."""
    set_up_logging(LogForm())
    logging.getLogger("swarm").setLevel(logging.ERROR)

    async def main() -> int:
        doc = await play(plan, lambda text: err.print(f"site: {text}", highlight=False))
        reasons = failures(doc)
        doc["passed"] = not reasons
        if output:
            _write(Path(output), doc)
        if as_json:
            print_json(doc)
        else:
            out.print(table(doc))
        for reason in reasons:
            err.print(f"site: {reason}")
        return int(bool(reasons))

    return guarded(main, as_json)


def _write(path: Path, doc: dict[str, Any]) -> None:
    path.write_text(json.dumps(doc, indent=1) + "\n", encoding="utf-8")


def table(doc: dict[str, Any]) -> Table:
    """The figures, for people."""
    shown = Table("figure", "value", title="site")
    for key, value in doc.items():
        if key not in ("v", "bench", "machine"):
            shown.add_row(key.replace("_", " "), str(value))
    return shown
