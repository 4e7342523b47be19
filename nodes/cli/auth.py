"""`swarm auth init|add|list|revoke|rotate|permissions|limits`: keys and rights of a mesh."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from nodes.cli.acts import auth_on_record
from nodes.cli.auth_server import HERE, AuthFolder, AuthTarget, reached_text, tell_servers, validity
from nodes.cli.command import Named, argument, option, seldom
from nodes.cli.options import Json, MeshName
from nodes.console import conclude, out, print_json
from swarm.features import features
from swarm.scratch import Scratch
from swarm.security.authority.authority import Authority, User
from swarm.security.rights.permissions import permissions_of

USER = Named("user")
UserName = Annotated[
    str, USER, typer.Argument(help="Of the user: a token; its inbox has this name.")
]


async def init(
    folder: str = argument(HERE, "A new folder, for the keys."),
    mesh: MeshName = "default",
    json: Json = False,
) -> None:
    """Make the keys of a mesh: operator, accounts, a signing key for each role."""
    authority = Authority.create(folder, mesh)
    conclude(
        json,
        {"directory": folder, "mesh": authority.mesh},
        f"{folder} holds the keys of mesh {mesh!r}: keep it off the nodes, and keep a copy",
        f"next: swarm auth server {folder}/server --auth {folder}, then swarm auth add NAME "
        f"--role shard-1 --model MODEL --auth {folder}",
    )


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
    asks: Annotated[list[str] | None, Named("model")] = seldom(
        None,
        "A model that its own asks: a part of a composition, or its lighter model; several times "
        "for several.",
    )
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class AddOptions(OfRole):
    """Of `swarm auth add`."""

    valid: str = option("", "90d, 12h, 30m; empty: for ever.")
    auth: AuthFolder = HERE


async def add(name: UserName, options: AddOptions) -> None:
    """Issue one user's credentials. No server needs to be told, but one of --plain."""
    authority, role = Authority(options.auth), options.role
    valid = validity(options.valid) if options.valid else 0.0
    user = authority.add(name, role, options.model or [], valid, options.stages, options.asks or [])
    path = authority.credentials(name)
    conclude(
        options.json,
        _document(user, time.time()) | {"credentials": str(path)},
        f"{path}: {role}"
        + (f" of {', '.join(user.models)}" if user.models else "")
        + (f", asks {', '.join(user.asks)}" if user.asks else ""),
        f"next: give it to {name} alone, and there: {_use_of(role, user.models)} "
        f"--credentials {name}.creds",
    )


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


async def list_(auth: AuthFolder = HERE, json: Json = False) -> None:
    """Show who was issued credentials, and whether they are valid."""
    now = time.time()
    rows = [_document(user, now) for user in Authority(auth).users]
    if json:
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


async def revoke(name: UserName, target: AuthTarget) -> None:
    """Make a user's credentials worthless; its connections end as soon as servers are told, by
    --nats or --pid-file."""
    authority = Authority(target.auth)
    user = authority.revoke(name)
    await auth_on_record(target, authority.mesh, "revoke", name)
    reached = await tell_servers(authority, target)
    conclude(
        target.json,
        _document(user, time.time()) | {"told": reached},
        f"{name} is revoked; {reached_text(reached)}",
    )


async def rotate(
    target: AuthTarget,
    finish: bool = option(False, "End a rotation: old signing keys are worth nothing any more."),
) -> None:
    """Make new signing keys and new credentials for all; the old ones do until --finish."""
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
    reached = await tell_servers(authority, target)
    text = (
        "the old signing keys are worth nothing any more"
        if finish
        else f"new signing keys; {len(renewed)} new files in {target.auth}/users: give them to "
        "their users, then: swarm auth rotate --finish"
    )
    document: dict[str, Any] = {"renewed": [user.name for user in renewed], "finished": finish}
    document |= {"told": reached}
    conclude(target.json, document, f"{text}; {reached_text(reached)}")


def _copied(target: AuthTarget, folder: Path) -> AuthTarget:
    """The same, with the credentials as they are now. Raises `OSError`."""
    if not target.credentials:
        return target
    copy = folder / Path(target.credentials).name
    copy.touch(0o600)
    copy.write_bytes(Path(target.credentials).read_bytes())
    return replace(target, credentials=str(copy))


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


async def limits(options: LimitOptions, target: AuthTarget) -> None:
    """Show, or change, how much of the servers members and clients may take.

    Each limit is an option, as --client-payload 65536; -1: no limit."""
    authority = Authority(target.auth)
    reached: list[str] = []
    changes = {name: value for name, value in vars(options).items() if value is not None}
    if changes:
        with authority.changing():
            authority.limit(replace(authority.limits, **changes))
        await auth_on_record(target, authority.mesh, "limits", " ".join(changes))
        reached = await tell_servers(authority, target)
    document = asdict(authority.limits)
    lines = [f"{name} {value}" for name, value in document.items()]
    text = "\n".join([*lines, reached_text(reached)] if changes else lines)
    conclude(target.json, document | {"told": reached}, text)


@dataclass(frozen=True, kw_only=True)
class RightsOptions(OfRole):
    """Of `swarm auth permissions`."""

    user: Annotated[str, USER] = seldom("", "Name of the user; the role when empty.")
    mesh: MeshName = "default"
    conf: bool = seldom(False, "As a block of nats-server's configuration.")


async def permissions(options: RightsOptions) -> None:
    """Show the exact rights of a role, for teams that run an authority of their own."""
    rights = permissions_of(
        options.role,
        mesh=options.mesh,
        models=options.model or [],
        user=options.user,
        stages=options.stages,
        asks=options.asks or [],
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


def _document(user: User, now: float) -> dict[str, Any]:
    return {
        "name": user.name,
        "role": user.role,
        "models": user.models,
        "asks": user.asks,
        "state": user.state(now),
        "issued": _time(user.issued),
        "expires": _time(user.expires),
        "public": user.public,
    }


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds else ""
