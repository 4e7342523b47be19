"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from nodes.cli.settings import settings_callback

URL = "nats://127.0.0.1:4222"
Nats = Annotated[
    str, typer.Option(help="NATS server URLs, separated by commas.", envvar="SWARM_NATS")
]
MeshName = Annotated[
    str,
    typer.Option(
        help="Name of the mesh; several share one server without meeting.", envvar="SWARM_MESH"
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print one JSON document on standard output, for programs.",
        show_envvar=False,
    ),
]
Config = Annotated[
    str,
    typer.Option(
        callback=settings_callback,
        is_eager=True,
        show_envvar=False,
        help="A TOML file with these options as keys; flags and the environment win over it.",
    ),
]
Stages = Annotated[
    int,
    typer.Option(min=1, max=64, help="Shards to cut the model into, balanced by measured time."),
]
Cuts = Annotated[
    str,
    typer.Option(
        help="Names of the tensors to cut after, separated by commas; instead of --stages."
    ),
]
EdgeLayers = Annotated[
    int,
    typer.Option(
        min=0,
        help="Layers that run on the edge node (stage 0): it sends features instead of raw input. "
        "Features of early layers still tell who is in a picture.",
    ),
]
ModelName = Annotated[
    str, typer.Option(help="Name of the model in the mesh; the file's name when empty.")
]
ModelVersion = Annotated[
    str, typer.Option(help="Version of the model; a version in the mesh never changes.")
]
SignWith = Annotated[
    str,
    typer.Option(
        help="File of the key pair that signs it, for nodes that trust this key. Empty: the user's "
        "own, made at its first use (`swarm keys show`). none: it is not signed."
    ),
]
Folder = Annotated[str, typer.Argument(help="A folder made by `swarm model split`.")]
