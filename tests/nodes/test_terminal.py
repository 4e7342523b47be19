"""What the programs print in terminals that lack most characters."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.commands import ROOT, environment


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize(
    "line",
    [
        ("nodes.cli.main", "up", "--help"),
        ("nodes.cli.main", "teach", "x", "--input", "\u6570", "--labels", "y"),
        ("nodes.cli.node", "--help"),
        ("nodes.cli.node", "--role", "shard-1", "--model", "\u6570"),
    ],
    ids=" ".join,
)
def test_no_command_ends_for_a_character_that_the_terminal_lacks(
    encoding: str, line: tuple[str, ...]
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *line],
        env=environment({"PYTHONIOENCODING": f"{encoding}:strict", "NO_COLOR": "1"}),
        cwd=ROOT,
        capture_output=True,
        timeout=60,
    )
    told = (done.stdout + done.stderr).decode(encoding)
    assert told.strip()
    assert "Traceback" not in told
    assert "UnicodeEncodeError" not in told
