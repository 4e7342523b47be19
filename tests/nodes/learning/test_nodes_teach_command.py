"""`swarm teach`: what it reads, and what it says of files that it cannot use."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from nodes.cli.arrays import read_inputs, read_labels
from nodes.console import guarded
from nodes.learning.commands.teach import TeachOptions, teach
from swarm.errors import InvalidArgument


def test_inputs_and_labels_are_read_from_files_of_numpy(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", image=np.ones((2, 3)))
    np.savez(tmp_path / "y.npz", digit=np.array([1, 2]))
    np.save(tmp_path / "y.npy", np.array([1, 2]))
    assert read_inputs(str(tmp_path / "x.npz"))["image"].shape == (2, 3)
    for name in ("y.npz", "y.npy"):
        np.testing.assert_array_equal(read_labels(str(tmp_path / name)), [1, 2])


def test_files_that_cannot_be_used_are_named_with_the_reason(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", a=np.ones(1), b=np.ones(1))
    np.save(tmp_path / "code.npy", np.array([{}]), allow_pickle=True)
    (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04")
    (tmp_path / "empty.npy").write_bytes(b"")
    with pytest.raises(InvalidArgument, match=r"two\.npz: one array of labels.*a, b"):
        read_labels(str(tmp_path / "two.npz"))
    for name in ("missing.npz", "code.npy", "torn.npz", "empty.npy", "image.jpg"):
        with pytest.raises(InvalidArgument, match=name):
            read_inputs(str(tmp_path / name))


def test_without_a_learner_the_command_fails_and_says_how_to_start_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "x.npz", image=np.ones((2, 3)))
    np.save(tmp_path / "y.npy", np.array([1, 2]))
    files = {"input": str(tmp_path / "x.npz"), "labels": str(tmp_path / "y.npy")}
    options = TeachOptions(**files, timeout="2s", mesh="no-such-mesh", json=True)
    assert guarded(lambda: teach("digits", options), options.json) == 1
    doc = json.loads(capsys.readouterr().out)
    assert doc["status"] == "NOT_FOUND"
    assert "swarm-node --role learner" in doc["error"]
