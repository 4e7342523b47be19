"""`swarm auth …`: keys and rights of a mesh, and what its server is told of them."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.table import Table

from nodes.announce import announce, reload_servers
from nodes.cli.acts import auth_on_record
from nodes.cli.auth_options import (
    AddOptions,
    AuthTarget,
    LimitOptions,
    RightsOptions,
    ServerOptions,
)
from nodes.console import conclude, long_duration, out, print_json
from swarm.errors import InvalidArgument
from swarm.features import features
from swarm.scratch import Scratch
from swarm.security.authority.authority import Authority, User
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
from swarm.security.rights.permissions import permissions_of

CONF, USERS_CONF, TLS_CONF = "nats-server.conf", "users.conf", "tls.conf"
PLAIN_MARK = "# plain: users by their public keys\n"


async def run_init(folder: str, mesh: str, as_json: bool) -> None:
    """`swarm auth init`."""
    authority = Authority.create(folder, mesh)
    conclude(
        as_json,
        {"directory": folder, "mesh": authority.mesh},
        f"{folder} holds the keys of mesh {mesh!r}: keep it off the nodes, and keep a copy",
        f"next: swarm auth server {folder}/server --auth {folder}, then swarm auth add NAME "
        f"--role shard-1 --model MODEL --auth {folder}",
    )


async def run_add(name: str, options: AddOptions) -> None:
    """`swarm auth add`."""
    authority, role = Authority(options.auth), options.role
    valid = validity(options.valid) if options.valid else 0.0
    user = authority.add(name, role, options.model or [], valid, options.stages)
    path = authority.credentials(name)
    conclude(
        options.json,
        _document(user, time.time()) | {"credentials": str(path)},
        f"{path}: {role}" + (f" of {', '.join(user.models)}" if user.models else ""),
        f"next: give it to {name} alone, and there: {_use_of(role, user.models)} "
        f"--credentials {name}.creds",
    )


def _copied(target: AuthTarget, folder: Path) -> AuthTarget:
    """The same, with the credentials as they are now. Raises `OSError`."""
    if not target.credentials:
        return target
    copy = folder / Path(target.credentials).name
    copy.touch(0o600)
    copy.write_bytes(Path(target.credentials).read_bytes())
    return replace(target, credentials=str(copy))


def _use_of(role: str, models: Sequence[str]) -> str:
    """The command that takes credentials of a role."""
    model = models[0] if models else "MODEL"
    commands = {
        "client": "swarm infer {model} --input x.npz",
        "requester": "swarm infer {model} --input x.npz",
        "operator": "swarm model list",
        "gateway": "swarm-node --role gateway --http 8000",
    } | {each.name: each.starts for feature in features() for each in feature.roles if each.starts}
    line = commands.get(role, "swarm-node --role {role} --model {model}")
    return line.format(role=role, model=model)


async def run_list(folder: str, as_json: bool) -> None:
    """`swarm auth list`."""
    now = time.time()
    rows = [_document(user, now) for user in Authority(folder).users]
    if as_json:
        print_json({"users": rows})
        return
    table = Table("name", "role", "models", "state", "expires", "public key")
    for row in rows:
        table.add_row(
            row["name"],
            row["role"],
            " ".join(row["models"]),
            row["state"],
            row["expires"] or "never",
            row["public"],
        )
    out.print(table if rows else "nobody has credentials: swarm auth add NAME --role ROLE")


async def run_revoke(name: str, target: AuthTarget) -> None:
    """`swarm auth revoke`."""
    authority = Authority(target.auth)
    user = authority.revoke(name)
    await auth_on_record(target, authority.mesh, "revoke", name)
    reached = await _tell_servers(authority, target)
    conclude(
        target.json,
        _document(user, time.time()) | {"told": reached},
        f"{name} is revoked; {_reached(reached)}",
    )


async def run_limits(options: LimitOptions, target: AuthTarget) -> None:
    """`swarm auth limits`. It shows the limits where none is to change."""
    authority = Authority(target.auth)
    reached: list[str] = []
    changes = {name: value for name, value in vars(options).items() if value is not None}
    if changes:
        with authority.changing():
            authority.limit(replace(authority.limits, **changes))
        await auth_on_record(target, authority.mesh, "limits", " ".join(changes))
        reached = await _tell_servers(authority, target)
    document = asdict(authority.limits)
    lines = [f"{name} {value}" for name, value in document.items()]
    text = "\n".join([*lines, _reached(reached)] if changes else lines)
    conclude(target.json, document | {"told": reached}, text)


async def run_rotate(finish: bool, target: AuthTarget) -> None:
    """`swarm auth rotate`."""
    authority = Authority(target.auth)
    renewed: list[User] = []
    with Scratch("rotate") as folder:
        # The servers still know the credentials from before, where the operator's file is one of
        # those that are written anew.
        before = _copied(target, folder)
        if finish:
            authority.finish_rotation()
        else:
            renewed = authority.rotate()
        await auth_on_record(before, authority.mesh, "rotate-finish" if finish else "rotate", "")
    reached = await _tell_servers(authority, target)
    text = (
        "the old signing keys are worth nothing any more"
        if finish
        else f"new signing keys; {len(renewed)} new files in {target.auth}/users: give them to "
        "their users, then: swarm auth rotate --finish"
    )
    document: dict[str, Any] = {"renewed": [user.name for user in renewed], "finished": finish}
    document |= {"told": reached}
    conclude(target.json, document, f"{text}; {_reached(reached)}")


async def _tell_servers(authority: Authority, target: AuthTarget) -> list[str]:
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
            plain = path.read_text().startswith(PLAIN_MARK)
            write_text(path, _users_conf(authority, folder, plain))
            reached.append(str(path))
    if target.pid_file:
        reload_servers(target.pid_file)
        reached.append(target.pid_file)
    if target.nats:
        await announce(authority, target.servers(target.nats))
        reached.append(target.nats)
    return reached


def _reached(reached: list[str]) -> str:
    if not reached:
        return "no server was told: add --nats URL, or --pid-file FILE"
    return "told: " + ", ".join(reached)


async def run_server(folder: str, options: ServerOptions, auth: str, as_json: bool) -> None:
    """`swarm auth server`."""

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
        as_json,
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


NO_STORE = (
    "these keys are older than the store, so a member can delete lanes and spoil desired state: "
    "the same command with --separate-store, restart the server, push each model again"
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
    if encrypt and (folder / CONF).exists() and f"\n  {CIPHER}" not in (folder / CONF).read_text():
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
    return (folder / CONF).exists() and WHERE in (folder / CONF).read_text()


def _users_conf(authority: Authority, folder: Path, plain: bool) -> str:
    if plain:
        return PLAIN_MARK + plain_conf(authority, time.time())
    jwt_folder = "" if _says_resolver(folder) else str(folder / "jwt")
    return operator_conf(authority, jwt_folder)


def _says_resolver(folder: Path) -> bool:
    """Whether the server's own file says where accounts are kept."""
    lines = (folder / CONF).read_text().splitlines()
    return any(line.lstrip().startswith("resolver") for line in lines)


async def run_permissions(options: RightsOptions) -> None:
    """`swarm auth permissions`."""
    rights = permissions_of(
        options.role,
        mesh=options.mesh,
        models=options.model or [],
        user=options.user,
        stages=options.stages,
    )
    if options.json:
        print_json(rights.as_doc())
    elif options.conf:
        print(rights.as_conf())
    else:
        table = Table("publish", "subscribe")
        for row in range(max(len(rights.publish), len(rights.subscribe))):
            table.add_row(*(_at(side, row) for side in (rights.publish, rights.subscribe)))
        out.print(table)


def _at(subjects: tuple[str, ...], row: int) -> str:
    return subjects[row] if row < len(subjects) else ""


def validity(text: str) -> float:
    """Seconds of --valid. Raises `InvalidArgument`."""
    seconds = long_duration(text)
    if seconds < 1:
        raise InvalidArgument(f"--valid {text!r}: at least a second")
    return seconds


def _document(user: User, now: float) -> dict[str, Any]:
    return {
        "name": user.name,
        "role": user.role,
        "models": user.models,
        "state": user.state(now),
        "issued": _time(user.issued),
        "expires": _time(user.expires),
        "public": user.public,
    }


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds else ""
