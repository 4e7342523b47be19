"""Sets of options of `swarm auth …`; see `nodes.cli.options`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from nodes.cli.command import Named, option, seldom
from nodes.cli.options import DOMAIN, NATS, THE_MESH, Json, MeshName, Servers, checked_servers

if TYPE_CHECKING:
    from swarm.link import LinkOptions

AuthFolder = Annotated[
    str,
    typer.Option(
        "--auth", help="The folder that `swarm auth init` made.", envvar="SWARM_AUTH_FOLDER"
    ),
]
HERE = "swarm-auth"
USER = Named("user")


@dataclass(frozen=True)
class AuthTarget(Servers):
    """A folder of keys, and the running servers that are told of its change, if any."""

    nats: str = option("", NATS, rich_help_panel=THE_MESH, callback=checked_servers)
    pid_file: str = option(
        "", "Servers of this host to tell, by their pid files, separated by commas."
    )
    auth: AuthFolder = HERE
    json: Json = False

    def servers(self, urls: str) -> LinkOptions:
        """How the authority's own user reaches servers: the credentials of --credentials are those
        of another one."""
        from swarm.link import LinkOptions

        return LinkOptions(
            servers=urls,
            tls_ca=self.tls_ca,
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
        )


@dataclass(frozen=True)
class ServerOptions:
    """Of `swarm auth server`."""

    plain: bool = seldom(False, "List users by their keys in the file, instead of signed JWTs.")
    tls: list[str] | None = option(
        None, "Make certificates for this name or address of the server."
    )
    mutual: bool = seldom(False, "With --tls: clients need a certificate too.")
    encrypt: bool = option(False, "JetStream's files are encrypted with the variable JS_KEY.")
    separate_store: bool = seldom(
        False,
        "Of keys older than the store: all streams get an account of their own. Push each model "
        "again then.",
    )
    jetstream_domain: Annotated[str, DOMAIN] = seldom(
        "", "The name of the server's JetStream, where it has one: processes at sites call it so."
    )


@dataclass(frozen=True)
class CertsOptions:
    """Of `swarm auth certs`."""

    client: Annotated[list[str] | None, Named("client")] = option(
        None, "Issue a certificate to this client; several times."
    )
    rotate: bool = option(False, "New certificates for all servers and clients.")
    new_authority: bool = seldom(False, "The next certificates come from a new authority.")
    finish: bool = option(False, "Trust the authorities before the present one no more.")
    reconnect: bool = seldom(
        False, "End all connections of --nats: all come back with their new files."
    )
    valid: str = option("825d", "Of new certificates: 90d, 12h.")


Limit = Annotated[int | None, typer.Option(hidden=True, help="-1: no limit.")]


@dataclass(frozen=True)
class LimitOptions:
    """Of `swarm auth limits`; None: as it is."""

    connections: Limit = None
    subscriptions: Limit = None
    payload: Limit = None
    client_payload: Limit = None
    streams: Limit = None
    consumers: Limit = None
    memory: Limit = None
    disk: Limit = None


@dataclass(frozen=True, kw_only=True)
class OfRole:
    """Whose rights."""

    role: str = option(
        ...,
        "client, requester, edge, shard-1 …, fallback, standby, auto, gateway, learner, dashboard "
        "or operator.",
    )
    model: Annotated[list[str] | None, Named("model", also=("*",))] = option(
        None, "For which model; several times for several. '*' for a gateway."
    )
    stages: int = seldom(
        16, "Of a fallback's, a standby's or an auto node's models.", min=1, max=64
    )
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class AddOptions(OfRole):
    """Of `swarm auth add`."""

    valid: str = option("", "90d, 12h, 30m; empty: for ever.")
    auth: AuthFolder = HERE


@dataclass(frozen=True, kw_only=True)
class RightsOptions(OfRole):
    """Of `swarm auth permissions`."""

    user: Annotated[str, USER] = seldom("", "Name of the user; the role when empty.")
    mesh: MeshName = "default"
    conf: bool = seldom(False, "As a block of nats-server's configuration.")
