"""Runs each command of `swarm`, with the least that it must be given, in this process: prints a
JSON line for each, how it ended and its last line."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from nodes.cli.main import app
from shards.zoo import digits_model

NOBODY = "nats://127.0.0.1:1"
SECONDS = 30  # for a command
# They change the machine, or measure it for minutes.
NOT_HERE = {"install node", "install updater", "install remove", "bench"}
MORE = {
    "demo": ["--seconds", "6"],
    "demo learn": ["--learn"],
    "demo secure": ["--secure"],
    "demo camera": ["--camera"],
    "demo chat": ["--chat"],
    "model split": ["digits.onnx", "-o", "split"],
    "model quantize": ["digits.onnx", "-o", "small.onnx", "--dynamic"],
    "up": ["--model", "digits.onnx"],
    "up toy": ["--model", "toy"],
}


def leaves(command: Any, words: str = "") -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from leaves(inner, f"{words} {name}".strip())
    else:
        yield words, command


def least(command: Any) -> list[str]:
    """Arguments that a command cannot do without."""
    given = []
    for parameter in command.params:
        if parameter.param_type_name == "argument" and parameter.required:
            given.append("x")
        elif parameter.required:
            given += [parameter.opts[-1], "x"]
    if any(parameter.name == "nats" for parameter in command.params):
        given += ["--nats", NOBODY]
    return given


def lines(words: str, command: Any) -> Iterator[list[str]]:
    found = [more for name, more in MORE.items() if name == words or name.startswith(f"{words} ")]
    named = [more for name, more in MORE.items() if name == words] + [
        more for name, more in MORE.items() if name.partition(" ")[0] == words and name != words
    ]
    for arguments in named if found and named else [least(command)]:
        yield [*words.split(), *arguments]


def late(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def run(arguments: list[str]) -> dict[str, Any]:
    signal.alarm(SECONDS)
    result = CliRunner().invoke(app, arguments)
    signal.alarm(0)
    error = result.exception
    told = result.stderr.strip().splitlines()
    return {
        "command": " ".join(arguments),
        "code": result.exit_code,
        "defect": "" if isinstance(error, SystemExit | None) else repr(error),
        "last": told[-1] if told else "",
    }


def main() -> None:
    signal.signal(signal.SIGALRM, late)
    wanted = set(sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"XDG_CONFIG_HOME": folder, "XDG_CACHE_HOME": folder, "COLUMNS": "300"}
        os.chdir(folder)
        Path("digits.onnx").write_bytes(digits_model())
        for words, command in leaves(typer.main.get_command(app)):
            if words in NOT_HERE or words.partition(" ")[0] in NOT_HERE:
                continue
            if wanted and words not in wanted:
                continue
            for arguments in lines(words, command):
                print(json.dumps(run(arguments)), flush=True)


if __name__ == "__main__":
    main()
