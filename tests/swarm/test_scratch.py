"""A killed process leaves no folder for longer than until the next one starts."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from swarm.scratch import Scratch, sweep

OWNER = """
import sys
from swarm.scratch import Scratch
print(Scratch("test").path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary folder, of this process and of those that it starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_a_folder_is_gone_with_its_use(temporary: Path) -> None:
    with Scratch("test") as folder:
        (folder / "model").write_bytes(b"x")
        assert folder.parent == temporary
    assert not folder.exists()
    scratch = Scratch("test")
    scratch.remove()
    scratch.remove()
    assert list(temporary.iterdir()) == []


@pytest.mark.processes
def test_what_a_killed_process_leaves_is_removed_and_what_a_living_one_has_stays(
    temporary: Path,
) -> None:
    words = [sys.executable, "-c", OWNER]
    owners = [
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        folders = [Path(owner.stdout.readline().strip()) for owner in owners if owner.stdout]
        assert sweep() == []
        owners[0].send_signal(signal.SIGKILL)
        owners[0].wait(10)
        assert sweep() == [folders[0]]
        assert [folder.exists() for folder in folders] == [False, True]
    finally:
        for owner in owners:
            owner.kill()
            owner.communicate()


def test_a_folder_that_another_process_still_fills_goes_with_a_later_sweep(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = temporary / "swarm-test-left"
    (folder / "cache").mkdir(parents=True)
    (folder / "lock").touch()
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr("shutil.rmtree", lambda *_, **__: None)
        assert sweep() == []
    assert (folder / "lock").exists()
    assert sweep() == [folder]
    assert not folder.exists()


def test_folders_of_others_are_left_alone(temporary: Path) -> None:
    theirs = temporary / "swarm-by-hand"
    theirs.mkdir()
    (temporary / "other").mkdir()
    (temporary / "other" / "lock").touch()
    (temporary / "swarm-link").symlink_to(temporary / "other")
    assert sweep() == []
    assert theirs.exists()
    assert (temporary / "other" / "lock").exists()


def test_a_folder_whose_maker_was_killed_before_it_locked_it_goes(temporary: Path) -> None:
    made = Path(tempfile.mkdtemp(prefix="swarm-test-"))
    assert sweep() == [made]
    assert list(temporary.iterdir()) == []


def test_a_maker_whose_folder_is_swept_at_that_moment_makes_another(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, taken = tempfile.mkdtemp, []

    def made_and_taken(**how: str) -> str:
        folder = make(**how)
        if len(taken) < 3:
            taken.extend(sweep())
        return folder

    monkeypatch.setattr(tempfile, "mkdtemp", made_and_taken)
    with Scratch("test") as folder:
        assert len(taken) == 3
        assert list(temporary.iterdir()) == [folder]
