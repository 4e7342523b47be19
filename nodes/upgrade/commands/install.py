"""`swarm install …`: a node as a service of this machine."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from nodes.cli.command import option, seldom
from nodes.cli.options import MODEL, Json, Target
from nodes.config import NodeConfig
from nodes.console import err, print_json
from nodes.upgrade.install.machine import Machine
from nodes.upgrade.install.plan import Installation, installation, updater_installation
from swarm.errors import InvalidArgument
from swarm.security.trusted_keys import own_trust_file

HELP_ROOT = "Folder of the system to be changed, for images; this machine's by default."


@dataclass(frozen=True)
class ServiceOptions:
    """What the service runs."""

    role: str = option(..., "Of the node, as `swarm-node --role` takes it.")
    model: Annotated[str, MODEL] = option("", "NAME, or NAME@VERSION.")
    trust: str = seldom("", "File with the keys whose models are taken; else yours are.")
    program: str = seldom("", "Path of the program; that of this installation by default.")
    root: str = seldom("/", HELP_ROOT)


async def node(options: ServiceOptions, target: Target) -> int:
    """Make a node a service of systemd: its user, its unit, its settings in /etc/swarm."""
    program, settings, trusted, credentials = _asked(options, target, "swarm-node")
    plan = installation(options.role, program, settings, credentials, trusted)
    return _install(plan, options.root, target.json)


async def updater(
    options: ServiceOptions,
    target: Target,
    releases: str = seldom("", "File with the keys whose releases are taken; else --trust."),
    own_credentials: str = seldom("", "A .creds file of the updater; --credentials: the node's."),
) -> int:
    """The same with an updater: the node takes releases as `swarm fleet upgrade` says."""
    program, settings, trusted, credentials = _asked(options, target, "swarm")
    if not (trusted or releases):
        raise InvalidArgument("say whose releases are taken: --releases FILE, or --trust FILE")
    own, keys = (_read(path) if path else "" for path in (own_credentials, releases))
    plan = updater_installation(options.role, program, settings, trusted, credentials, own, keys)
    return _install(plan, options.root, target.json)


def _asked(
    options: ServiceOptions, target: Target, name: str
) -> tuple[str, dict[str, str], str, str]:
    """The path of a program, the node's settings, its trusted keys and its credentials. Raises
    `InvalidArgument`."""
    NodeConfig(role=options.role, model=options.model, mesh=target.mesh)  # raises
    program = options.program or shutil.which(name, path=str(_programs()))
    if not program:
        raise InvalidArgument(f"no {name} beside this command: give its path by --program")
    if Path(program).parts[1:2] in (("home",), ("root",)):
        raise InvalidArgument(
            f"{program}: a service sees no home folder: python3 -m venv /opt/swarm && "
            "/opt/swarm/bin/pip install 'swarm-mesh[node]', and install from there"
        )
    access = target.access
    asked = {
        "nats": target.nats,
        "mesh": target.mesh,
        "model": options.model,
        "tls_ca": access.tls_ca,
        "domain": access.domain,
    }
    settings = {key: value for key, value in asked.items() if value}
    own = own_trust_file()
    trust = options.trust or (str(own) if own.exists() else "")
    credentials = _read(access.credentials) if access.credentials else ""
    return program, settings, _read(trust) if trust else "", credentials


def _install(plan: Installation, root: str, as_json: bool) -> int:
    written = Machine(Path(root)).install(plan)
    if as_json:
        print_json({"written": written, "enabled": list(plan.enabled)})
    else:
        for path in written:
            err.print(path, markup=False)
        err.print(f"next: systemctl status {plan.enabled[0]}", markup=False)
    return 0


async def remove(
    settings: bool = seldom(False, "Settings and credentials in /etc/swarm too."),
    root: str = seldom("/", HELP_ROOT),
    json: Json = False,
) -> None:
    """Stop the nodes of this machine, and delete their unit, data and user."""
    deleted = Machine(Path(root)).remove(settings)
    if json:
        print_json({"deleted": deleted})
    else:
        for path in deleted:
            err.print(f"deleted {path}", markup=False)


def _programs() -> Path:
    return Path(sys.executable).parent


def _read(path: str) -> str:
    """A file's text. Raises `InvalidArgument`."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path}: {error}") from None
