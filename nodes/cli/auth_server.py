"""`swarm auth server`, and what servers are told when the keys of a mesh change."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from nodes.announce import announce, reload_servers
from nodes.cli.command import option, seldom
from nodes.cli.options import DOMAIN, NATS, THE_MESH, Json, Servers, checked_servers
from nodes.console import conclude, long_duration
from swarm.errors import InvalidArgument
from swarm.link import LinkOptions
from swarm.security.authority.authority import Authority
from swarm.security.authority.keys import make_private_folder, write_text
from swarm.security.authority.server_conf import (
    BASE,
    CIPHER,
    ENCRYPTED,
    RESOLVER,
    STATE,
    WHERE,
    operator_conf,
    plain_conf,
    tls_conf,
)

CONF, USERS_CONF, TLS_CONF = "nats-server.conf", "users.conf", "tls.conf"
PLAIN_MARK = "# plain: users by their public keys\n"
NO_STORE = (
    "these keys are older than the store, so a member can delete lanes and spoil desired state: "
    "the same command with --separate-store, restart the server, push each model again"
)
AuthFolder = Annotated[
    str,
    typer.Option(
        "--auth", help="The folder that `swarm auth init` made.", envvar="SWARM_AUTH_FOLDER"
    ),
]
HERE = "swarm-auth"


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


async def server(
    folder: Annotated[str, typer.Argument(help="Where to write the configuration.")],
    options: ServerOptions,
    auth: AuthFolder = HERE,
    json: Json = False,
) -> None:
    """Write the configuration of a nats-server that knows the users of this mesh."""
    tls, encrypt = options.tls or [], options.encrypt
    target = Path.cwd() / folder
    if options.mutual and not tls:
        raise InvalidArgument("--mutual is about TLS: add --tls HOST, the server's name")
    authority = Authority(auth)
    with authority.changing():
        if options.separate_store:
            authority.separate_store()
        if options.jetstream_domain:
            authority.name_domain(options.jetstream_domain)
        write_server(
            authority,
            target,
            plain=options.plain,
            hosts=tls,
            mutual=options.mutual,
            encrypt=encrypt,
        )
        authority.remember_server(target)
    conclude(
        json,
        {"configuration": str(target / CONF), "plain": options.plain, "tls": bool(tls)},
        f"{target / CONF}: cd {shlex.quote(str(target))} && nats-server -c {CONF}"
        if _is_of_any_place(target)
        else f"{target / CONF}: nats-server -c {target / CONF}",
        *(
            [f"every command and node then needs --tls-ca {target / 'ca.pem'}"]
            + (["and a certificate: swarm auth certs --client NAME"] if options.mutual else [])
            if tls
            else ["no TLS: add --tls HOST, or certificates of yours to tls.conf"]
        ),
        *(["its environment needs JS_KEY=k$(openssl rand -hex 32)"] if encrypt else []),
        *([] if authority.has_store else [NO_STORE]),
    )


def write_server(
    authority: Authority,
    folder: Path,
    *,
    plain: bool,
    hosts: list[str],
    mutual: bool = False,
    encrypt: bool = False,
) -> None:
    """Write a server's configuration into a folder. hosts: make certificates for these. Raises
    `InvalidArgument`."""
    base = ENCRYPTED if encrypt else BASE
    if (
        encrypt
        and (folder / CONF).exists()
        and f"\n  {CIPHER}" not in (folder / CONF).read_text(encoding="utf-8")
    ):
        raise InvalidArgument(
            f"{folder / CONF} is yours by now: add `{CIPHER.strip()}` to its `jetstream` block"
        )
    if _is_of_any_place(folder) and _says_resolver(folder) is plain:
        act = "take `resolver:` out of it" if plain else f"add to it:\n{RESOLVER}"
        raise InvalidArgument(f"{folder / CONF} is yours by now: {act}")
    make_private_folder(folder)
    if not (folder / CONF).exists():
        resolver = "" if plain else RESOLVER
        includes = f"include ./{USERS_CONF}\ninclude ./{TLS_CONF}\n"
        write_text(folder / CONF, f"{WHERE}{base}{STATE}{resolver}{includes}")
    tls = ""
    if hosts:
        certificates = authority.certificates
        if not certificates.exists:
            certificates.make()
        ca, cert, key = certificates.issue_server(folder, hosts)
        if _is_of_any_place(folder):
            ca, cert, key = Path(ca.name), Path(cert.name), Path(key.name)
        tls = WHERE + tls_conf(cert, key, ca, mutual=mutual)
    write_text(folder / TLS_CONF, tls)
    write_text(folder / USERS_CONF, _users_conf(authority, folder, plain))


def _is_of_any_place(folder: Path) -> bool:
    """Whether the server is started in its folder. One whose configuration is older is started
    anywhere, and finds its files by absolute paths."""
    return (folder / CONF).exists() and WHERE in (folder / CONF).read_text(encoding="utf-8")


def _users_conf(authority: Authority, folder: Path, plain: bool) -> str:
    if plain:
        return PLAIN_MARK + plain_conf(authority, time.time())
    jwt_folder = "" if _says_resolver(folder) else str(folder / "jwt")
    return operator_conf(authority, jwt_folder)


def _says_resolver(folder: Path) -> bool:
    """Whether the server's own file says where accounts are kept."""
    lines = (folder / CONF).read_text(encoding="utf-8").splitlines()
    return any(line.lstrip().startswith("resolver") for line in lines)


async def tell_servers(authority: Authority, target: AuthTarget) -> list[str]:
    """Write the configurations anew that `run_server` wrote, and tell running servers. Returns the
    files and servers that were reached."""
    # Or a command that began later could tell them more, and this one less again.
    with authority.changing():
        return await _tell_servers_now(authority, target)


async def _tell_servers_now(authority: Authority, target: AuthTarget) -> list[str]:
    reached = []
    for folder in authority.servers:
        path = folder / USERS_CONF
        if path.exists():
            plain = path.read_text(encoding="utf-8").startswith(PLAIN_MARK)
            write_text(path, _users_conf(authority, folder, plain))
            reached.append(str(path))
    if target.pid_file:
        reload_servers(target.pid_file)
        reached.append(target.pid_file)
    if target.nats:
        await announce(authority, target.servers(target.nats))
        reached.append(target.nats)
    return reached


def reached_text(reached: list[str]) -> str:
    if not reached:
        return "no server was told: add --nats URL, or --pid-file FILE"
    return "told: " + ", ".join(reached)


def validity(text: str) -> float:
    """Seconds of --valid. Raises `InvalidArgument`."""
    seconds = long_duration(text)
    if seconds < 1:
        raise InvalidArgument(f"--valid {text!r}: at least a second")
    return seconds
