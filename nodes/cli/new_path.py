"""A path that a command is about to write, checked before the work begins."""

from __future__ import annotations

from pathlib import Path

from swarm.errors import InvalidArgument


def new_path(path: str, kind: str) -> Path:
    """The path, which is not there yet. kind: `file` or `folder`. Raises `InvalidArgument`."""
    output = Path(path)
    if output.exists():
        raise InvalidArgument(f"{output} exists: remove it, or name another {kind} by -o")
    return in_folder(path)


def in_folder(path: str) -> Path:
    """The path of a file that may be there, in a folder that is. Raises `InvalidArgument`."""
    output = Path(path)
    if not output.parent.is_dir():
        raise InvalidArgument(
            f"{output.parent}: no such folder to write to; make it (mkdir -p {output.parent}), or "
            "name another file"
        )
    return output
