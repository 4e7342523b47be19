"""`swarm deploy k8s`."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from nodes.cli.main import app


def test_a_folder_that_is_not_there_is_told_before_the_mesh_is_asked(tmp_path: Path) -> None:
    output = str(tmp_path / "nodir" / "values.yaml")
    told = CliRunner().invoke(app, ["deploy", "k8s", "digits", "--output", output, "--json"])
    assert told.exit_code == 1
    assert f"make it (mkdir -p {tmp_path / 'nodir'})" in json.loads(told.stdout)["error"]
