"""`swarm up --draft-model`."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from nodes.cli.main import app


@pytest.mark.parametrize(
    ("flags", "said"), [([], "--drafts"), (["--drafts", "4", "--secure"], "--secure")]
)
def test_a_draft_model_is_refused_with_what_it_cannot_go_with(flags: list[str], said: str) -> None:
    words = ["up", "--model", "toy", "--draft-model", "toy-draft"]
    told = CliRunner().invoke(app, [*words, *flags])
    assert told.exit_code == 1
    assert said in told.stderr
