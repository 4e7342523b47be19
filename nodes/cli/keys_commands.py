"""`swarm keys …`: the commands and their options."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.", show_envvar=False)]
Key = Annotated[str, typer.Option("--key", help="File of the key pair; the user's own when empty.")]
TrustFile = Annotated[
    str, typer.Option("--file", help="List of trusted keys; the user's own when empty.")
]
MeshKeyFile = Annotated[
    str,
    typer.Option(
        "--mesh-key", help="This file with the key of gossip, in place of a key that signs models."
    ),
]


def new(
    file: Annotated[str, typer.Argument(help="A new file; the user's own key when empty.")] = "",
    mesh_key: MeshKeyFile = "",
    json_: Json = False,
) -> None:
    """Make a key pair that signs models. The user's own is trusted by the user's nodes at once."""
    from nodes.cli.keys import run_new
    from nodes.cli.mesh_key import run_new_mesh_key

    made = run_new_mesh_key(mesh_key, json_) if mesh_key else run_new(file, json_)
    raise typer.Exit(made)


def show(
    key: Key = "", file: TrustFile = "", mesh_key: MeshKeyFile = "", json_: Json = False
) -> None:
    """Show the public key that signs, and the keys that are trusted."""
    from nodes.cli.keys import run_show
    from nodes.cli.mesh_key import run_show_mesh_key

    shown = run_show_mesh_key(mesh_key, json_) if mesh_key else run_show(key, file, json_)
    raise typer.Exit(shown)


def trust(
    public: Annotated[str, typer.Argument(help="A public key, as `swarm keys show` prints it.")],
    name: Annotated[str, typer.Argument(help="Whose it is, for people.")] = "",
    remove: Annotated[bool, typer.Option("--remove", help="Trust it no more.")] = False,
    file: TrustFile = "",
    json_: Json = False,
) -> None:
    """Take models that this key has signed. Nodes that run read the list again by themselves."""
    from nodes.cli.keys import run_trust

    raise typer.Exit(run_trust(public, name, remove, file, json_))


def rotate(
    key: Key = "", file: TrustFile = "", mesh_key: MeshKeyFile = "", json_: Json = False
) -> None:
    """Sign with a new key from now on. The old one stays trusted until it is removed.

    With --mesh-key: take the next one of the three steps that change the key of gossip.
    """
    from nodes.cli.keys import run_rotate
    from nodes.cli.mesh_key import run_rotate_mesh_key

    rotated = run_rotate_mesh_key(mesh_key, json_) if mesh_key else run_rotate(key, file, json_)
    raise typer.Exit(rotated)


def register(app: typer.Typer) -> None:
    """Add all commands to `swarm keys`."""
    for command in (new, show, trust, rotate):
        app.command()(command)
