"""A program's output in whatever encoding its terminal, or a file, has."""

from __future__ import annotations

import io
import sys


def any_encoding() -> None:
    """Let texts pass that the encoding of standard output or error lacks: `?` stands for such a
    character, and no command ends for it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
