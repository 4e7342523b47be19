"""`swarm up --auto`."""

from __future__ import annotations

from typer.testing import CliRunner

from nodes.cli.main import app


def test_two_ways_to_add_nodes_are_not_mixed() -> None:
    told = CliRunner().invoke(app, ["up", "--model", "toy", "--auto", "2", "--autoscale", "1"])
    assert told.exit_code == 1
    assert "share by themselves" in told.stderr
