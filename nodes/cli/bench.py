"""`swarm bench …`: the benchmarks of a clone. They lie beside the tests, outside of the wheel."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

ABSENT = "benchmarks are not in this package: clone the repository, then `uv run swarm bench`"
FOLDER = Path(__file__).resolve().parents[2] / "tests"


def register(app: typer.Typer) -> None:
    """Add the commands of the clone that this program runs from; without one, a line that says
    where they are."""
    if not (FOLDER / "bench" / "commands.py").is_file():
        app.info.cls = _Absent
        app.callback()(lambda: None)
        return
    sys.path.append(str(FOLDER))
    from bench.commands import add_commands

    add_commands(app)


def reach_benchmarks() -> None:
    """Let processes that a benchmark starts import `bench` and `sim`, too."""
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(FOLDER) not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(FOLDER), *filter(None, known)])


class _Absent(TyperGroup):
    """`swarm bench`, with any words behind it, says where the benchmarks are."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        typer.echo(ABSENT, err=True)
        raise typer.Exit(2)
