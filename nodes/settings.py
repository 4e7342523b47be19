"""Settings of `swarm`: flags > environment (`SWARM_*`) > TOML file > defaults, by the CLI library.

A node's are in `nodes.flags`, which does without that library.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import typer


def settings_callback(context: typer.Context, value: str) -> str:
    """Take a TOML file's keys as defaults. Raises `typer.BadParameter` for a bad file."""
    if not value:
        return value
    try:
        doc = tomllib.loads(Path(value).read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{value}: {error}") from None
    known = {parameter.name for parameter in context.command.params}
    defaults = {key.replace("-", "_"): item for key, item in doc.items()}
    if unknown := sorted(set(defaults) - known):
        raise typer.BadParameter(f"{value}: unknown settings {', '.join(map(str, unknown))}")
    context.default_map = {**(context.default_map or {}), **defaults}
    return value
