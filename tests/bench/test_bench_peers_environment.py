"""The peers' environment is made once, and never over somebody's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.rivals import environment


def test_a_folder_with_other_files_is_never_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    monkeypatch.setattr(environment.shutil, "which", lambda name: f"/nowhere/{name}")
    with pytest.raises(environment.EnvironmentFailed, match="choose another"):
        environment.ensure_env(tmp_path)
    assert (tmp_path / "precious.txt").read_text() == "mine"
