"""`swarm keys …`: the commands and their options; see `nodes.cli.main`."""

from __future__ import annotations

from typing import Annotated

import typer

from nodes.cli.command import Ran, add_commands, argument, option
from nodes.cli.options import Json
from nodes.feature import Commands

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


app = typer.Typer(no_args_is_help=True, help="Whose models nodes take, and who may ask a gateway.")
CORE: Commands = {"Commands": {"new": new, "show": show, "trust": trust, "rotate": rotate}}
add_commands(app, CORE, "keys")
