"""What the programs print in terminals that lack most characters."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from support.commands import ROOT, environment

from nodes.cli.main import app

COMMAND = typer.main.get_command(app)
NOBODY = "nats://127.0.0.1:1"


@pytest.mark.parametrize("setting", ["ascii", pytest.param("C", marks=pytest.mark.benchmark)])
@pytest.mark.parametrize(
    "line",
    [
        ("nodes.cli.main", "up", "--help"),
        ("nodes.cli.main", "teach", "x", "--input", "\u6570", "--labels", "y"),
        ("nodes.cli.node", "--help"),
        ("nodes.cli.node", "--role", "shard-1", "--model", "\u6570"),
    ],
    ids=" ".join,
)
def test_no_command_ends_for_a_character_that_the_terminal_lacks(
    setting: str, line: tuple[str, ...]
) -> None:
    encoding = "utf-8" if setting == "C" else setting  # Python's own choice there
    given = {"PYTHONIOENCODING": "ascii:strict"}
    if setting == "C":
        given = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-m", *line],
        env=environment(given),
        cwd=ROOT,
        capture_output=True,
        timeout=60,
    )
    told = (done.stdout + done.stderr).decode(encoding)
    assert told.strip()
    assert "Traceback" not in told
    assert "UnicodeEncodeError" not in told


@pytest.mark.parametrize(
    "line",
    [
        ("nodes.cli.main", "--help"),
        ("nodes.cli.main", "up", "--help"),
        ("nodes.cli.main", "status", "--nats", NOBODY),
        ("nodes.cli.main", "infer", "a.b"),
        pytest.param(("nodes.cli.main", "doctor"), marks=pytest.mark.benchmark),
        pytest.param(
            ("nodes.cli.main", "up", "--model", "toy", "--nats", NOBODY),
            marks=pytest.mark.benchmark,
        ),
        pytest.param(("nodes.cli.node", "--help"), marks=pytest.mark.benchmark),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize(
    "setting",
    [{"NO_COLOR": "1"}, pytest.param({"TERM": "dumb"}, marks=pytest.mark.benchmark)],
    ids=str,
)
def test_a_terminal_without_colours_is_sent_no_escape_code(
    line: tuple[str, ...], setting: dict[str, str]
) -> None:
    given = environment({"TERM": "xterm-256color", **setting})
    del given["COLUMNS"]
    told = on_terminal(line, given)
    assert told.strip()
    assert b"\x1b" not in told
    assert b"Traceback" not in told


def test_the_width_of_a_terminal_without_colours_is_its_own() -> None:
    given = environment({"TERM": "xterm-256color", "NO_COLOR": "1"})
    del given["COLUMNS"]
    told = on_terminal(("nodes.cli.main", "up", "--help"), given, columns=150).decode()
    assert max(len(line.rstrip("\r")) for line in told.split("\n")) == 150


def on_terminal(line: tuple[str, ...], given: dict[str, str], columns: int = 100) -> bytes:
    """What a program prints on a terminal of this width."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    words = [sys.executable, "-m", *line]
    with subprocess.Popen(
        words, stdin=its, stdout=its, stderr=its, env=given, cwd=ROOT, start_new_session=True
    ) as program:
        os.close(its)
        told = b""
        with contextlib.suppress(OSError):  # the terminal ends with its last writer
            while piece := os.read(ours, 65536):
                told += piece
        os.close(ours)
        program.wait(60)
    return told


def leaves(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from leaves(inner, (*words, name))


@pytest.mark.benchmark
@pytest.mark.parametrize("width", [40, 80, 120, 200])
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_the_help_of_every_command_fits_its_width_in_any_encoding(
    width: int, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    all_commands = list(leaves(COMMAND))
    assert len(all_commands) > 70
    for words in all_commands if encoding == "ascii" else all_commands[:12]:
        sink = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace")
        with contextlib.redirect_stdout(sink), pytest.raises(SystemExit) as ended:
            COMMAND.main([*words, "--help"], prog_name="swarm")
        sink.seek(0)
        told = sink.read()
        assert not ended.value.code, words
        assert "Usage" in told, words
        assert max(map(len, told.splitlines())) <= width, words
