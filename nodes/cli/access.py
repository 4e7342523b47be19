"""The flags of access, for every command that connects: those that have `--nats`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from nodes.access import HELP, Access, present


def add_access_flags(*apps: typer.Typer) -> None:
    """Give the commands of these apps that have `--nats` the flags of access too."""
    for app in apps:
        for command in app.registered_commands:
            callback = command.callback
            if callback is not None and "nats" in inspect.signature(callback).parameters:
                command.callback = _with_access(callback)


def _with_access(command: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(command)
    def run(**settings: Any) -> None:
        present.set(Access.of({name: settings.pop(name) for name in HELP}))
        command(**settings)

    signature = inspect.signature(command, eval_str=True)
    flags = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default="",
            annotation=Annotated[
                str, typer.Option(help=about, envvar=f"SWARM_{name.upper()}", show_default=False)
            ],
        )
        for name, about in HELP.items()
    ]
    del run.__wrapped__  # or its signature would be shown
    parameters = [*signature.parameters.values(), *flags]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run
