"""A setting that no restart mends ends a node with code 2, at which service managers leave it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from support.commands import ROOT, node_said

pytestmark = pytest.mark.integration


def test_what_cannot_be_listened_on_or_read_is_one_line_and_code_2(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wrong = [
            ("--metrics-port", str(taken.getsockname()[1])),
            ("--health", str(tmp_path / "absent" / "health")),
            ("--teachers", str(tmp_path / "absent")),
            ("--otlp", "nonsense"),
            ("--state-dir", str(file / "state")),
            ("--state-dir", "/proc/state"),  # where no user can write, the superuser neither
            ("--cache", str(file)),
            ("--cache", "/proc/cache/swarm"),
            ("--congestion", "nope"),
        ]
        who = ("--role", "shard-1", "--model", "digits", "--nats", "nats://127.0.0.1:1")
        for flags in wrong:
            node = node_said(*who, *flags)
            assert node.code == 2, f"{flags}: {node.stderr}"
            lines = node.stderr.splitlines()
            assert [line for line in lines if line.startswith("swarm-node: ")] == lines[-1:]


def test_service_managers_leave_a_node_alone_that_ended_with_code_2() -> None:
    for unit in (ROOT / "deploy" / "systemd").glob("*.service"):
        assert "RestartPreventExitStatus=2\n" in unit.read_text(), unit.name
