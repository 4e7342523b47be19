"""The help of `swarm fleet updater`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

import nodes.process
from nodes.cli.main import app


def test_the_updaters_help_shows_the_flags_that_its_page_uses() -> None:
    page = (Path(nodes.process.__file__).parent / "upgrade" / "README.md").read_text()
    root: Any = typer.main.get_command(app)
    command = root.commands["fleet"].commands["updater"]
    named = {name for each in command.params for name in each.opts if f"{name}`" in page}
    line = next(each for each in page.splitlines() if each.startswith("swarm fleet updater "))
    named |= {word for word in line.split() if word in ("--node", "--trust")}
    assert {"--node", "--trust", "--ready"} <= named
    told = CliRunner().invoke(app, ["fleet", "updater", "--help"], terminal_width=200).output
    assert [name for name in sorted(named) if name not in told] == []
