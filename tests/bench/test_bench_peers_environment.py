"""The peers' environment is made once, and never over somebody's files."""

from __future__ import annotations

import sys
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


def test_without_uv_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment.shutil, "which", lambda name: None)
    with pytest.raises(environment.EnvironmentFailed, match="uv is not on PATH"):
        environment.ensure_env(tmp_path / "new")


def test_a_finished_environment_is_used_again_without_running_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    (tmp_path / "peers.sha256").write_text(environment.fingerprint())
    monkeypatch.setattr(environment.shutil, "which", lambda name: pytest.fail("not needed"))
    if sys.platform != "win32":
        assert environment.ensure_env(tmp_path) == python
