"""`swarm site …`, `swarm submit`, `swarm results`: the commands and their options."""

from __future__ import annotations

from typing import Annotated

import typer

from nodes.cli.options import URL, Json, MeshName, Nats

Site = Annotated[
    str, typer.Option(help="JetStream domain of the site; that of the server when empty.")
]
Agent = Annotated[str, typer.Option(help="Whose requests they are; letters, digits, '_', '-'.")]
SiteName = Annotated[str, typer.Argument(help="JetStream domain of the site's server.")]


def add(
    site: SiteName,
    max_mb: Annotated[
        float, typer.Option(min=0.07, help="Megabytes of requests that wait, and of answers each.")
    ] = 1024.0,
    when_full: Annotated[
        str,
        typer.Option(help="refuse: the newest request. drop-oldest: and count it."),
    ] = "refuse",
    keep_days: Annotated[
        float, typer.Option(min=0.001, help="Days after which an answer is deleted, read or not.")
    ] = 7.0,
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
) -> None:
    """Make the store of a site's requests and answers, or change its limits."""
    from nodes.cli.site import run_add

    raise typer.Exit(run_add(site, max_mb, when_full, keep_days, nats, mesh, json_))


def status(
    site: Annotated[
        str, typer.Argument(help="JetStream domain of the site; that of the server when empty.")
    ] = "",
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
) -> None:
    """Show what a site stores: requests that wait, answers, how many were dropped."""
    from nodes.cli.site import run_status

    raise typer.Exit(run_status(site, nats, mesh, json_))


def remove(
    site: SiteName,
    yes: Annotated[bool, typer.Option("--yes", help="Delete what waits there, too.")] = False,
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
) -> None:
    """Delete the store of a site."""
    from nodes.cli.site import run_remove

    raise typer.Exit(run_remove(site, yes, nats, mesh, json_))


def submit(
    model: Annotated[str, typer.Argument(help="NAME, or NAME@VERSION.")],
    source: Annotated[
        str, typer.Option("--input", help="An .npz file with one array for each model input.")
    ],
    agent: Agent,
    site: Site = "",
    repeat: Annotated[int, typer.Option(min=1, help="How often to submit it.")] = 1,
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
) -> None:
    """Store a request that can wait at this site, also while the link to the hub is cut."""
    from nodes.cli.site import run_submit

    raise typer.Exit(run_submit(model, source, agent, site, repeat, nats, mesh, json_))


def results(
    agent: Agent,
    site: Site = "",
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more, until Ctrl-C.")] = False,
    count: Annotated[int, typer.Option(min=0, help="Answers to wait for; 0: no number.")] = 0,
    nats: Nats = URL,
    mesh: MeshName = "default",
    json_: Json = False,
) -> None:
    """Print the answers to what an agent has submitted, in order; each is printed once."""
    from nodes.cli.site import run_results

    raise typer.Exit(run_results(agent, site, follow, count, nats, mesh, json_))


def register(app: typer.Typer, sites: typer.Typer) -> None:
    """Add the commands to `swarm`, and to `swarm site`."""
    app.command()(submit)
    app.command()(results)
    for command in (add, status, remove):
        sites.command()(command)
