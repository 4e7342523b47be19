"""`swarm keys show > FILE` makes a file of trusted keys, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import said

from swarm.security.trusted_keys import TrustedKeys


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def test_what_it_prints_is_a_list_that_nodes_trust(tmp_path: Path) -> None:
    public = said("keys", "new").stdout.split()[0]
    shown = said("keys", "show")
    (tmp_path / "trusted").write_text(shown.stdout)
    (tmp_path / "trusted").chmod(0o600)
    assert set(TrustedKeys([tmp_path / "trusted"]).listed()) == {public}
    assert f"trusted  {public}" in shown.stderr


def test_without_a_key_it_prints_no_list_and_says_what_makes_one() -> None:
    shown = said("keys", "show")
    assert (shown.code, shown.stdout) == (2, "")
    assert "swarm keys new" in shown.stderr
