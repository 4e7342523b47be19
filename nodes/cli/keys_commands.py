"""`swarm keys …`: the commands and their options; see `nodes.cli.main`."""

from __future__ import annotations

from typing import Annotated

import typer

from nodes.cli.command import Ran, Work, add_commands, argument, option
from nodes.cli.options import AGENT, Json

Key = Annotated[
    str, typer.Option("--key", hidden=True, help="File of the key pair; the user's own when empty.")
]
TrustFile = Annotated[
    str,
    typer.Option("--file", hidden=True, help="List of trusted keys; the user's own when empty."),
]
MeshKeyFile = Annotated[
    str,
    typer.Option(
        "--mesh-key", help="This file with the key of gossip, in place of a key that signs models."
    ),
]


def new(
    file: str = argument("", "A new file; the user's own key when empty."),
    mesh_key: MeshKeyFile = "",
    json: Json = False,
) -> Ran:
    """Make a key pair that signs models. The user's own is trusted by the user's nodes at once."""
    from nodes.cli.keys import run_new
    from nodes.cli.mesh_key import run_new_mesh_key

    return run_new_mesh_key(mesh_key, json) if mesh_key else run_new(file, json)


def show(
    key: Key = "", file: TrustFile = "", mesh_key: MeshKeyFile = "", json: Json = False
) -> Ran:
    """Show the public key that signs, and the keys that are trusted."""
    from nodes.cli.keys import run_show
    from nodes.cli.mesh_key import run_show_mesh_key

    return run_show_mesh_key(mesh_key, json) if mesh_key else run_show(key, file, json)


def trust(
    public: Annotated[str, typer.Argument(help="A public key, as `swarm keys show` prints it.")],
    name: str = argument("", "Whose it is, for people."),
    remove: bool = option(False, "Trust it no more."),
    file: TrustFile = "",
    json: Json = False,
) -> Ran:
    """Take models that this key has signed. Nodes that run read the list again by themselves."""
    from nodes.cli.keys import run_trust

    return run_trust(public, name, remove, file, json)


def rotate(
    key: Key = "", file: TrustFile = "", mesh_key: MeshKeyFile = "", json: Json = False
) -> Ran:
    """Sign with a new key from now on. The old one stays trusted until it is removed.

    With --mesh-key: take the next one of the three steps that change the key of gossip.
    """
    from nodes.cli.keys import run_rotate
    from nodes.cli.mesh_key import run_rotate_mesh_key

    return run_rotate_mesh_key(mesh_key, json) if mesh_key else run_rotate(key, file, json)


def gateway(
    agent: Annotated[str, AGENT, typer.Argument(help="The mesh's name for who gets the key.")],
    callers: Annotated[
        str, typer.Argument(help="File of `swarm-node --gateway-callers`; made where missing.")
    ] = "gateway.toml",
    quota: float = option(0.0, "Requests a second that it may ask; 0: any number.", min=0),
    json: Json = False,
) -> Ran:
    """Make a key with which a client of HTTP or gRPC asks a gateway; it is shown once."""
    from nodes.gateway.commands.gateway_key import run_gateway_key

    return run_gateway_key(agent, callers, quota, json)


app = typer.Typer(no_args_is_help=True, help="Whose models nodes take, and who may ask a gateway.")
COMMANDS: dict[str, Work | typer.Typer] = {
    "new": new,
    "show": show,
    "trust": trust,
    "rotate": rotate,
    "gateway": gateway,
}
add_commands(app, {"Commands": COMMANDS}, "keys")
