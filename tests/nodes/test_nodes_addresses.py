"""Where servers are named: a flag, the environment, a file. What can be no address is refused
there, before anything is done."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.commands import product_commands
from typer.testing import CliRunner

from nodes.cli.main import app
from nodes.cli.node import node
from nodes.config import NodeConfig
from swarm.errors import BadAddress


def nats_of(command: Any) -> Any:
    return next((each for each in command.params if each.name == "nats"), None)


OF_SERVERS = {
    words: command for words, command in product_commands().items() if nats_of(command) is not None
}


def required(command: Any) -> list[str]:
    """What the command does not go without, as words that mean nothing."""
    flags = [
        ([each.opts[0]] if each.opts[0].startswith("-") else [])
        for each in command.params
        if each.required
    ]
    return [word for flag in flags for word in (*flag, "x")]


def told(words: Sequence[str], **environment: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words), env={"COLUMNS": "400", **environment})
    return done.exit_code, done.output


def test_there_are_commands_that_name_servers() -> None:
    assert len(OF_SERVERS) > 15
    assert "status" in OF_SERVERS


@pytest.mark.parametrize("words", OF_SERVERS)
def test_every_command_refuses_a_flag_that_can_be_no_address(words: str) -> None:
    command = OF_SERVERS[words]
    code, said = told([*words.split(), *required(command), "--nats", "nats://:4222"])
    assert (code, "no address of a server" in said) == (2, True), said
    if nats_of(command).default:
        code, said = told([*words.split(), *required(command), "--nats", ""])
        assert (code, "an address of a server is empty" in said) == (2, True), said


@pytest.mark.parametrize("bad", [" ", "nats://", "http://127.0.0.1:4222", "a:1,,b:2", "::1"])
def test_the_environment_and_a_file_are_read_as_strictly(bad: str, tmp_path: Path) -> None:
    code, said = told(["status"], SWARM_NATS=bad)
    assert (code, "Invalid value" in said) == (2, True), said
    file = tmp_path / "swarm.toml"
    file.write_text(f'nats = "{bad}"\n')
    code, said = told(["status", "--config", str(file)])
    assert (code, "Invalid value" in said) == (2, True), said


SHARD = ["--role", "shard-1", "--model", "digits"]


@pytest.mark.parametrize("bad", ["", " ", "nats://", "nats://a:x", "ws://a:80", "a:1,"])
def test_a_node_ends_at_once_with_a_wrong_setting(
    bad: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "node.toml"
    file.write_text(f'nats = "{bad}"\n')
    ways: list[tuple[list[str], dict[str, str]]] = [
        (["--nats", bad], {}),
        (["--servers", bad], {}),
        (["--config", str(file)], {}),
    ]
    ways += [([], {"SWARM_NATS": bad})] if bad else []
    for flags, environment in ways:
        assert node([*SHARD, *flags], environment) == 2
        assert "an address" in capsys.readouterr().err.replace("no address", "an address")
    with pytest.raises(BadAddress):
        NodeConfig(role="gateway", nats=bad)
