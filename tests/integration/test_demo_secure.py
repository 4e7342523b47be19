"""`swarm demo --secure` loses nothing through a rotation, a kill and a revocation, and says so."""

from __future__ import annotations

import json
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from support.commands import commands
from support.waiting import eventually_now

from nodes.demo.secure import all_protected, files_with, pieces_of
from swarm.scratch import sweep

GOOD: dict[str, Any] = {
    "all_back": True,
    "revoked_is_refused": True,
    "new_credentials": "shard-2-6",
    "files_searched": 80,
    "files_with_weights": 0,
    "permission_violations": 0,
}


@pytest.mark.integration
@pytest.mark.processes
@pytest.mark.benchmark  # a whole story, longer than ten seconds
def test_nothing_is_lost_through_a_rotation_a_kill_and_a_revocation(tmp_path: Path) -> None:
    with commands(tmp_path / "commands") as run:
        command = run.start("nodes.cli.main", "demo", "--secure", "--seconds", "8", "--json")
        assert command.wait(90.0) == 0, command.stdout + command.stderr
        doc = json.loads(command.stdout)
        assert (doc["lost"], doc["wrong"]) == (0, 0)
        assert doc["connections_ended"] >= 5
        assert all_protected(doc)
        assert doc["revoked"] != doc["new_credentials"]
        assert not command.remaining()
        steps = ("has certificate", "gets SIGKILL", "are refused")
        places = [command.stderr.find(step) for step in steps]
        assert places == sorted(places)
        assert -1 not in places
        # Its supervisor starts it, at some moment behind the kill.
        assert command.stderr.find("starts again") > places[1]


@pytest.mark.integration
@pytest.mark.processes
def test_the_folders_of_a_killed_demo_go_when_the_next_command_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with commands(tmp_path / "commands") as run:
        command = run.start("nodes.cli.main", "demo", "--secure", "--json")
        monkeypatch.setattr(tempfile, "tempdir", str(run.temporary))
        eventually_now(lambda: list(run.temporary.glob("swarm-demo-*/lock")), "its folder", 90.0)
        command.signal(signal.SIGKILL)
        command.process.wait()
        command.leaves_nothing()
        sweep()
        assert not list(run.temporary.glob("swarm-demo-*"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("all_back", False),
        ("revoked_is_refused", False),
        ("new_credentials", ""),
        ("files_searched", 0),
        ("files_with_weights", 1),
        ("permission_violations", 1),
    ],
)
def test_one_protection_that_did_not_hold_is_enough_to_fail(name: str, value: object) -> None:
    assert all_protected(GOOD)
    assert not all_protected(GOOD | {name: value})


def test_weights_on_a_disk_are_found(tmp_path: Path) -> None:
    weights = bytes(range(256)) * 20
    pieces = pieces_of({"a.onnx": weights})
    (tmp_path / "deep").mkdir()
    (tmp_path / "harmless").write_bytes(b"x" * 5000)
    assert (files_with(pieces, [tmp_path]).searched, files_with(pieces, [tmp_path]).names) == (
        1,
        [],
    )
    (tmp_path / "deep" / "leak").write_bytes(b"before" + weights + b"behind")
    assert files_with(pieces, [tmp_path]).names == [str(tmp_path / "deep" / "leak")]
