"""`swarm auth …`: the commands; see `nodes.cli.main`."""

from __future__ import annotations

from typing import Annotated

import typer

from nodes.cli.auth_options import (
    HERE,
    USER,
    AddOptions,
    AuthFolder,
    AuthTarget,
    CertsOptions,
    LimitOptions,
    RightsOptions,
    ServerOptions,
)
from nodes.cli.command import Ran, add_commands, argument, option
from nodes.cli.options import Json, MeshName

UserName = Annotated[
    str, USER, typer.Argument(help="Of the user: a token; its inbox has this name.")
]


def init(
    folder: str = argument(HERE, "A new folder, for the keys."),
    mesh: MeshName = "default",
    json: Json = False,
) -> Ran:
    """Make the keys of a mesh: operator, accounts, a signing key for each role."""
    from nodes.cli.auth import run_init

    return run_init(folder, mesh, json)


def add(name: UserName, options: AddOptions) -> Ran:
    """Issue one user's credentials. No server needs to be told, but one of --plain."""
    from nodes.cli.auth import run_add

    return run_add(name, options)


def list_(auth: AuthFolder = HERE, json: Json = False) -> Ran:
    """Show who was issued credentials, and whether they are valid."""
    from nodes.cli.auth import run_list

    return run_list(auth, json)


def revoke(name: UserName, target: AuthTarget) -> Ran:
    """Make a user's credentials worthless; its connections end as soon as servers are told, by
    --nats or --pid-file."""
    from nodes.cli.auth import run_revoke

    return run_revoke(name, target)


def rotate(
    target: AuthTarget,
    finish: bool = option(False, "End a rotation: old signing keys are worth nothing any more."),
) -> Ran:
    """Make new signing keys and new credentials for all; the old ones do until --finish."""
    from nodes.cli.auth import run_rotate

    return run_rotate(finish, target)


def server(
    folder: Annotated[str, typer.Argument(help="Where to write the configuration.")],
    options: ServerOptions,
    auth: AuthFolder = HERE,
    json: Json = False,
) -> Ran:
    """Write the configuration of a nats-server that knows the users of this mesh."""
    from nodes.cli.auth import run_server

    return run_server(folder, options, auth, json)


def certs(options: CertsOptions, target: AuthTarget) -> Ran:
    """Show, issue and rotate certificates of servers and clients; no connection ends by it."""
    from nodes.cli.certs import run_certs

    return run_certs(options, target)


def limits(options: LimitOptions, target: AuthTarget) -> Ran:
    """Show, or change, how much of the servers members and clients may take.

    Each limit is an option, as --client-payload 65536; -1: no limit."""
    from nodes.cli.auth import run_limits

    return run_limits(options, target)


def permissions(options: RightsOptions) -> Ran:
    """Show the exact rights of a role, for teams that run an authority of their own."""
    from nodes.cli.auth import run_permissions

    return run_permissions(options)


app = typer.Typer(
    no_args_is_help=True, help="Who may do what: keys, credentials, a server's configuration."
)
add_commands(
    app,
    {
        "Users": {
            "init": init,
            "add": add,
            "list": list_,
            "revoke": revoke,
            "rotate": rotate,
            "permissions": permissions,
        },
        "Servers": {"server": server, "certs": certs, "limits": limits},
    },
    "auth",
)
