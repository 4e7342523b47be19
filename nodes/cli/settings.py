"""Settings of `swarm`: flags > environment (`SWARM_*`) > TOML file > defaults, by the CLI library.

`nodes.settings` reads those of a node, without that library.
"""

from __future__ import annotations

import typer

from nodes.settings import read_settings


def settings_callback(context: typer.Context, value: str) -> str:
    """Take a TOML file's keys as defaults. Raises `typer.BadParameter` for a bad file."""
    if not value:
        return value
    known = {parameter.name for parameter in context.command.params if parameter.name}
    try:
        defaults = read_settings(value, known)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    context.default_map = {**(context.default_map or {}), **defaults}
    return value
