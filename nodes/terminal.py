"""A program's output on whatever terminal, or file, there is: its encoding, and escape codes."""

from __future__ import annotations

import io
import os
import shutil
import sys


def any_encoding() -> None:
    """Let texts pass that the encoding of standard output or error lacks: `?` stands for such a
    character, and no command ends for it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def plain_where_asked() -> None:
    """With NO_COLOR (no-color.org) print no escape code at all, bold and cursor moves neither: the
    terminal counts as one that knows none, of the size that it has."""
    if not os.environ.get("NO_COLOR"):
        return
    size = shutil.get_terminal_size()
    os.environ |= {"TERM": "dumb", "COLUMNS": str(size.columns), "LINES": str(size.lines)}
