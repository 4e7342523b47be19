"""What `swarm auth add` says to do next is a command that takes credentials of that role."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import typer
from support.commands import said

from nodes.cli.main import app
from nodes.config import settings_of_nodes
from swarm.security.rights.table import ROLES, Role

NODES = {f"--{each.name}" for each in settings_of_nodes()} | {"--node", "--http"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("authority") / "auth"
    assert said("auth", "init", str(folder)).code == 0
    return folder


@pytest.mark.parametrize("role", sorted({"shard-2", *ROLES} - {Role.SHARD}))
def test_the_next_line_of_each_role_is_a_command_for_it(authority: Path, role: str) -> None:
    role = str(role)
    words = ("--role", role, "--model", "digits", "--auth", str(authority))
    told = said("auth", "add", f"u-{role}", *words)
    if told.code:  # a role without models takes none
        told = said("auth", "add", f"u-{role}", "--role", role, "--auth", str(authority))
    assert told.code == 0, told.stderr
    program, *line = shlex.split(told.stderr.partition("and there: ")[2].splitlines()[0])
    flags = {word for word in line if word.startswith("--") and " " not in word}
    assert "--credentials" in flags
    if program == "swarm-node":
        assert "--node" not in flags, "with credentials its id is the user's, and made up"
        assert line[line.index("--role") + 1] == role
        assert flags <= NODES
    else:
        assert program == "swarm"
        command = typer.main.get_command(app)
        while hasattr(command, "commands"):
            command = command.commands[line.pop(0)]
        assert flags <= {name for parameter in command.params for name in parameter.opts}
