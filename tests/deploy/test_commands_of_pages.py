"""Every command line in a page, or in a file that is shipped, is one that the programs take."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from support.commands import ROOT

from nodes.cli.main import app
from nodes.config import settings_of_nodes

SHIPPED = ["*.md", "deploy", ":!CHANGELOG.md"]
IN_A_SENTENCE = re.compile(r"`((?:uv run )?(?:\S*/)?swarm(?:-node)? [^`]+)`")
IN_A_BLOCK = re.compile(r"(?:^|[;&(|]|(?<!-t)\s)(?:\S*/)?(swarm(?:-node)? [^#;&|`)]+)")
ROOT_COMMAND: Any = typer.main.get_command(app)
OPTION = re.compile(r"--?[a-z][a-z0-9-]*")


def files() -> list[str]:
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *SHIPPED]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    texts = (name for name in set(names.splitlines()) if not name.endswith((".png", ".json")))
    return sorted(name for name in texts if any(told((ROOT / name).read_text())))


def told(text: str) -> Iterator[str]:
    """The command lines of a text: in backticks, in fenced blocks, and in comments."""
    text = text.replace("\\\n", " ")
    for found in IN_A_SENTENCE.findall(text):
        yield " ".join(found.removeprefix("uv run ").split())
    inside = False
    for line in text.splitlines():
        inside ^= line.lstrip().startswith("```")
        if inside or re.match(r"#? *swarm(-node)? ", line):
            yield from (found.strip() for found in IN_A_BLOCK.findall(line))


def words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # a part of a quoted text
        return line.split()


def unknown(line: str) -> list[str]:
    """What a command line names that is not there."""
    program, *rest = words(line)
    given = [found[0] for word in rest if (found := OPTION.match(word)) and " " not in word]
    if program.endswith("swarm-node"):
        known = {flag for each in settings_of_nodes() for flag in each.flags} | {
            "--help",
            "--config",
            "--check",
        }
        known |= {f"--no-{flag[2:]}" for flag in known}
        return [option for option in given if option not in known]
    command, named = ROOT_COMMAND, 0
    while named < len(rest) and rest[named] in (commands := getattr(command, "commands", {})):
        command, named = commands[rest[named]], named + 1
    if hasattr(command, "commands"):  # a group alone is a name
        return [word for word in rest[named:] if not word.isupper()] if named else []
    known = {one for each in command.params for one in (*each.opts, *each.secondary_opts)}
    return [option for option in given if option not in known]


@pytest.mark.parametrize("name", files())
def test_the_commands_and_options_that_a_file_names_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    wrong = {line: missing for line in told(text) if (missing := unknown(line))}
    assert not wrong
