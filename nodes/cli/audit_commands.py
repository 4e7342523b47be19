"""`swarm audit …`: the commands and their options."""

from __future__ import annotations

from typing import Annotated

import typer

Nats = Annotated[
    str, typer.Option(help="NATS server URLs, separated by commas.", envvar="SWARM_NATS")
]
MeshName = Annotated[str, typer.Option(help="Name of the mesh.", envvar="SWARM_MESH")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON documents.", show_envvar=False)]
URL = "nats://127.0.0.1:4222"


def init(
    max_days: Annotated[float, typer.Option(min=0.01, help="Days that records are kept.")] = 90.0,
    max_mb: Annotated[
        int, typer.Option(min=1, help="Megabytes of records; the oldest go first.")
    ] = 256,
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
) -> None:
    """Make the audit's stream, or change its limits. Nodes without rights need it made."""
    from nodes.cli.audit import run_init

    raise typer.Exit(run_init(max_days, max_mb, nats, mesh, json_))


def tail(
    agent: Annotated[
        str, typer.Option(help="Only of this agent; `operator` for what commands did.")
    ] = "",
    last: Annotated[int, typer.Option("-n", "--last", min=1, help="Records to show.")] = 20,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on with what comes, until Ctrl-C.")
    ] = False,
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
) -> None:
    """Show the last records: who asked what, which nodes worked on it, with what outcome."""
    from nodes.cli.audit import run_tail

    raise typer.Exit(run_tail(agent, last, follow, nats, mesh, json_))


def export(
    output: Annotated[str, typer.Argument(help="The file to write: one record a line.")],
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
) -> None:
    """Write all records to a file that `swarm audit verify` checks without a server."""
    from nodes.cli.audit import run_export

    raise typer.Exit(run_export(output, nats, mesh, json_))


def verify(
    file: Annotated[str, typer.Argument(help="An export; the mesh itself when left out.")] = "",
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
) -> None:
    """Find records that were removed, altered or moved. Exits with 1 if there is one."""
    from nodes.cli.audit import run_verify

    raise typer.Exit(run_verify(file, nats, mesh, json_))


def register(app: typer.Typer) -> None:
    """Add all commands to `swarm audit`."""
    for command in (init, tail, export, verify):
        app.command()(command)
