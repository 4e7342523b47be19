"""`swarm auth …`: the commands and their options."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.", show_envvar=False)]
AuthFolder = Annotated[
    str,
    typer.Option(
        "--auth", help="The folder that `swarm auth init` made.", envvar="SWARM_AUTH_FOLDER"
    ),
]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", help="For which model; several times for several. '*' for a gateway."),
]
Stages = Annotated[
    int, typer.Option(min=1, max=64, help="Of a fallback's or a standby's models, at most.")
]
Nats = Annotated[str, typer.Option(help="Running servers to tell, separated by commas.")]
PidFile = Annotated[
    str, typer.Option(help="Servers of this host to tell, by their pid files, separated by commas.")
]
HERE = "swarm-auth"


def init(
    folder: Annotated[str, typer.Argument(help="A new folder, for the keys.")] = HERE,
    mesh: Annotated[str, typer.Option(help="Name of the mesh.", envvar="SWARM_MESH")] = "default",
    json_: Json = False,
) -> None:
    """Make the keys of a mesh: operator, accounts, a signing key for each role."""
    from nodes.cli.auth import run_init

    raise typer.Exit(run_init(folder, mesh, json_))


def add(
    name: Annotated[str, typer.Argument(help="Of the user: a token; its inbox has this name.")],
    role: Annotated[
        str,
        typer.Option(
            help="client, requester, edge, shard-1 …, fallback, standby, gateway, learner, "
            "dashboard or operator."
        ),
    ],
    model: Models = None,
    valid: Annotated[str, typer.Option(help="90d, 12h, 30m; empty: for ever.")] = "",
    stages: Stages = 16,
    auth: AuthFolder = HERE,
    json_: Json = False,
) -> None:
    """Issue one user's credentials. No server needs to be told, but one of --plain."""
    from nodes.cli.auth import run_add

    raise typer.Exit(run_add(name, role, model or [], valid, stages, auth, json_))


def list_(auth: AuthFolder = HERE, json_: Json = False) -> None:
    """Show who was issued credentials, and whether they are valid."""
    from nodes.cli.auth import run_list

    raise typer.Exit(run_list(auth, json_))


def revoke(
    name: Annotated[str, typer.Argument(help="Of the user.")],
    auth: AuthFolder = HERE,
    nats: Nats = "",
    pid_file: PidFile = "",
    json_: Json = False,
) -> None:
    """Make a user's credentials worthless; its connections end as soon as servers are told."""
    from nodes.cli.auth import run_revoke

    raise typer.Exit(run_revoke(name, auth, nats, pid_file, json_))


_Limit = Annotated[int | None, typer.Option(help="-1: no limit.")]


def limits(
    connections: _Limit = None,
    subscriptions: _Limit = None,
    payload: _Limit = None,
    client_payload: _Limit = None,
    streams: _Limit = None,
    consumers: _Limit = None,
    memory: _Limit = None,
    disk: _Limit = None,
    auth: AuthFolder = HERE,
    nats: Nats = "",
    pid_file: PidFile = "",
    json_: Json = False,
) -> None:
    """Show, or change, how much of the servers members and clients may take."""
    from nodes.cli.auth import run_limits

    asked = {
        "connections": connections,
        "subscriptions": subscriptions,
        "payload": payload,
        "client_payload": client_payload,
        "streams": streams,
        "consumers": consumers,
        "memory": memory,
        "disk": disk,
    }
    changes = {name: value for name, value in asked.items() if value is not None}
    raise typer.Exit(run_limits(changes, auth, nats, pid_file, json_))


def rotate(
    finish: Annotated[
        bool, typer.Option(help="End a rotation: old signing keys are worth nothing any more.")
    ] = False,
    auth: AuthFolder = HERE,
    nats: Nats = "",
    pid_file: PidFile = "",
    json_: Json = False,
) -> None:
    """Make new signing keys and new credentials for all; the old ones do until --finish."""
    from nodes.cli.auth import run_rotate

    raise typer.Exit(run_rotate(finish, auth, nats, pid_file, json_))


def server(
    folder: Annotated[str, typer.Argument(help="Where to write the configuration.")],
    plain: Annotated[
        bool,
        typer.Option(help="List users by their keys in the file, instead of signed JWTs."),
    ] = False,
    tls: Annotated[
        list[str] | None,
        typer.Option(help="Make certificates for this name or address of the server."),
    ] = None,
    mutual: Annotated[
        bool, typer.Option("--mutual", help="With --tls: clients need a certificate too.")
    ] = False,
    encrypt: Annotated[
        bool,
        typer.Option("--encrypt", help="JetStream's files are encrypted with the variable JS_KEY."),
    ] = False,
    separate_store: Annotated[
        bool,
        typer.Option(
            "--separate-store",
            help="Of keys older than the store: models and desired state get an account of their "
            "own. Push each model again then.",
        ),
    ] = False,
    auth: AuthFolder = HERE,
    json_: Json = False,
) -> None:
    """Write the configuration of a nats-server that knows the users of this mesh."""
    from nodes.cli.auth import run_server

    raise typer.Exit(
        run_server(folder, plain, tls or [], mutual, encrypt, separate_store, auth, json_)
    )


def certs(
    client: Annotated[
        list[str] | None, typer.Option(help="Issue a certificate to this client; several times.")
    ] = None,
    rotate: Annotated[
        bool, typer.Option("--rotate", help="New certificates for all servers and clients.")
    ] = False,
    new_authority: Annotated[
        bool,
        typer.Option("--new-authority", help="The next certificates come from a new authority."),
    ] = False,
    finish: Annotated[
        bool, typer.Option("--finish", help="Trust the authorities before the present one no more.")
    ] = False,
    reconnect: Annotated[
        bool,
        typer.Option(
            "--reconnect", help="End all connections of --nats: all come back with their new files."
        ),
    ] = False,
    valid: Annotated[str, typer.Option(help="Of new certificates: 90d, 12h.")] = "825d",
    auth: AuthFolder = HERE,
    nats: Nats = "",
    pid_file: PidFile = "",
    json_: Json = False,
) -> None:
    """Show, issue and rotate certificates of servers and clients; no connection ends by it."""
    from nodes.cli.certs import CertsAct, run_certs

    act = CertsAct(client or [], rotate, new_authority, finish, reconnect, valid)
    raise typer.Exit(run_certs(act, auth, nats, pid_file, json_))


def permissions(
    role: Annotated[str, typer.Option(help="As for `swarm auth add`.")],
    model: Models = None,
    user: Annotated[str, typer.Option(help="Name of the user; the role when empty.")] = "",
    stages: Stages = 16,
    mesh: Annotated[str, typer.Option(help="Name of the mesh.", envvar="SWARM_MESH")] = "default",
    conf: Annotated[
        bool, typer.Option("--conf", help="As a block of nats-server's configuration.")
    ] = False,
    json_: Json = False,
) -> None:
    """Show the exact rights of a role, for teams that run an authority of their own."""
    from nodes.cli.auth import run_permissions

    raise typer.Exit(run_permissions(role, mesh, model or [], user, stages, conf, json_))


def register(app: typer.Typer) -> None:
    """Add all commands to `swarm auth`."""
    for command in (init, add, revoke, rotate, server, certs, limits, permissions):
        app.command()(command)
    app.command("list")(list_)
