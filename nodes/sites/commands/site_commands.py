"""`swarm site …`, `swarm submit`, `swarm results`: the commands and their options; see
`nodes.cli.main`."""

from __future__ import annotations

from typing import Annotated

import typer

from nodes.cli.command import Ran, add_commands, argument, option, seldom
from nodes.cli.options import AGENT, DOMAIN, Input, Model, SiteLimits, Target

Site = Annotated[
    str, DOMAIN, typer.Option(help="JetStream domain of the site; that of the server when empty.")
]
Agent = Annotated[
    str, AGENT, typer.Option(help="Whose requests they are; letters, digits, '_', '-'.")
]
SiteName = Annotated[str, DOMAIN, typer.Argument(help="JetStream domain of the site's server.")]


def add(site: SiteName, options: SiteLimits, target: Target) -> Ran:
    """Make the store of a site's requests and answers, or change its limits."""
    from nodes.sites.commands.site import run_add

    return run_add(site, options, target)


def status(
    target: Target,
    site: Annotated[str, DOMAIN] = argument(
        "", "JetStream domain of the site; that of the server when empty."
    ),
) -> Ran:
    """Show what a site stores: requests that wait, answers, how many were dropped."""
    from nodes.sites.commands.site import run_status

    return run_status(site, target)


def remove(
    site: SiteName,
    target: Target,
    yes: bool = seldom(False, "Delete what waits there, too."),
) -> Ran:
    """Delete the store of a site."""
    from nodes.sites.commands.site import run_remove

    return run_remove(site, yes, target)


def submit(
    model: Model,
    input: Input,
    agent: Agent,
    target: Target,
    site: Site = "",
    repeat: int = option(1, "How often to submit it.", min=1),
) -> Ran:
    """Store a request that can wait at this site, also while the link to the hub is cut."""
    from nodes.sites.commands.site import run_submit

    return run_submit(model, input, agent, site, repeat, target)


def results(
    agent: Agent,
    target: Target,
    site: Site = "",
    follow: bool = option(False, "Go on with what comes, until Ctrl-C.", "-f", "--follow"),
    count: int = seldom(0, "Answers to wait for; 0: no number.", min=0),
) -> Ran:
    """Print the answers to what an agent has submitted, in order; each is printed once."""
    from nodes.sites.commands.site import run_results

    return run_results(agent, site, follow, count, target)


app = typer.Typer(
    no_args_is_help=True, help="What a linked site stores while it is cut off; see `swarm submit`."
)
add_commands(app, {"Commands": {"add": add, "status": status, "remove": remove}})
