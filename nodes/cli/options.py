"""Options that several commands share, and those of the commands right below `swarm`.

A dataclass is a set of options, see `nodes.cli.command`; the work gets it as one value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nodes.access import HELP, AccessOptions
from nodes.cli.command import Named, option
from swarm.addresses import checked
from swarm.errors import BadAddress, InvalidArgument

if TYPE_CHECKING:
    from swarm.link import LinkOptions

URL = "nats://127.0.0.1:4222"
THE_MESH = "The mesh"  # heading of the options that say which mesh, and how to reach it

NATS = "NATS server URLs, separated by commas."


def checked_servers(parameter: typer.CallbackParam, servers: str) -> str:
    """Raises `typer.BadParameter` for what can be no address, before the command does anything.
    "" stands for no server where that is the default."""
    try:
        if servers or parameter.default:
            checked(servers)
    except BadAddress as error:
        raise typer.BadParameter(str(error)) from None
    return servers


Nats = Annotated[
    str,
    typer.Option(
        help=NATS,
        envvar="SWARM_NATS",
        callback=checked_servers,
        rich_help_panel=THE_MESH,
    ),
]
MODEL = Named("model", version=True)
NODE = Named("node")
AGENT = Named("agent")
VERSION = Named("version")
DOMAIN = Named("JetStream domain")
MeshName = Annotated[
    str,
    Named("mesh"),
    typer.Option(
        help="Name of the mesh; several share one server without meeting.",
        envvar="SWARM_MESH",
        rich_help_panel=THE_MESH,
    ),
]
Json = Annotated[bool, typer.Option(help="Print JSON on standard output, for programs.")]
Input = Annotated[str, typer.Option(help="An .npz file with one array for each model input.")]
MODEL_KEY = (
    "Key of a model's encrypted files, 64 hexadecimal digits: file:PATH, env:NAME or command:CMD."
)
ModelName = Annotated[str, Named("model"), typer.Argument(metavar="MODEL", help="NAME.")]
Model = Annotated[str, MODEL, typer.Argument(help="NAME, or NAME@VERSION.")]
ServedModel = Annotated[
    str, MODEL, typer.Argument(help="NAME for the version that the mesh serves, or NAME@VERSION.")
]

SOLE_MODEL = (
    "NAME for the version that the mesh serves, or NAME@VERSION; not needed where it serves one "
    "model."
)


def _access(name: str, hidden: bool = False) -> Any:
    return option(
        "",
        HELP[name],
        envvar=f"SWARM_{name.upper()}",
        show_default=False,
        rich_help_panel=THE_MESH,
        hidden=hidden,
    )


@dataclass(frozen=True)
class Servers:
    """Which servers, and how to reach them."""

    nats: Nats = URL
    credentials: str = _access("credentials")
    nkey: str = _access("nkey", hidden=True)
    tls_ca: str = _access("tls_ca")
    tls_cert: str = _access("tls_cert")
    tls_key: str = _access("tls_key")
    domain: Annotated[str, DOMAIN] = _access("domain")

    @property
    def access(self) -> AccessOptions:
        return AccessOptions.of(vars(self))

    def link(self, name: str) -> LinkOptions:
        """Of a connection with this name."""
        from swarm.link import LinkOptions

        return LinkOptions(servers=self.nats, name=name, **self.access.options())


@dataclass(frozen=True)
class Target(Servers):
    """The mesh that a command speaks with, and whether it prints JSON."""

    mesh: MeshName = "default"
    json: Json = False


@dataclass(frozen=True)
class SignedTarget(Target):
    """A mesh in which a command writes what nodes obey."""

    sign_with: str = option(
        "",
        "File of the key pair that signs it, for nodes that trust this key. Empty: the user's own, "
        "made at its first use (`swarm keys show`). none: it is not signed.",
    )


@dataclass(frozen=True)
class OwnServers(Target):
    """Of a command that has no servers where it is given none, or starts its own."""

    nats: Nats = ""


@dataclass(frozen=True, kw_only=True)
class Exemplified:
    """The sizes that a model is timed, proved and planned with, where it leaves them open. Without
    them they are chosen, and a line says which."""

    example: str = option(
        "",
        "An .npz file with an array for each input: the model is timed and proved with its first "
        "row.",
    )
    shape: str = option(
        "", "Shapes of inputs that it is timed with, as image=1x3x320x320, separated by commas."
    )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of --shape, by input. Raises `InvalidArgument`."""
        found = {}
        for part in (each for each in self.shape.split(",") if each):
            name, _, sizes = part.rpartition("=")
            dims = sizes.split("x")
            if not name or not all(dim.isdecimal() and 0 < int(dim) < 1 << 31 for dim in dims):
                raise InvalidArgument(f"--shape {part!r}: write INPUT=1x3x320x320")
            found[name] = tuple(map(int, dims))
        if found and self.example:
            raise InvalidArgument("give either --example or --shape, not both")
        return found


# --- of single commands -----------------------------------------------------------------------
