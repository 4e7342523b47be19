"""`swarm demo --secure` loses nothing through a rotation, a kill and a revocation, and says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from meshes import commands

from nodes.cli.demo_secure import all_held, files_with, pieces_of

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
def test_nothing_is_lost_through_a_rotation_a_kill_and_a_revocation(tmp_path: Path) -> None:
    with commands(tmp_path / "commands") as run:
        command = run.start("nodes.cli.main", "demo", "--secure", "--seconds", "8", "--json")
        assert command.wait(90.0) == 0, command.stdout + command.stderr
        doc = json.loads(command.stdout)
        assert (doc["lost"], doc["wrong"]) == (0, 0)
        assert doc["connections_ended"] >= 5
        assert all_held(doc)
        assert doc["revoked"] != doc["new_credentials"]
        assert not command.remaining()
        steps = ("has certificate", "gets SIGKILL", "are refused", "starts again")
        places = [command.stderr.find(step) for step in steps]
        assert places == sorted(places)
        assert -1 not in places


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
    assert all_held(GOOD)
    assert not all_held(GOOD | {name: value})


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
