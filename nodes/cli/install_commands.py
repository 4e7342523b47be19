"""`swarm install …`: the commands and their options; see `nodes.cli.main`."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import typer

from nodes.cli.command import add_commands, option, seldom
from nodes.cli.options import Json, Target
from swarm.errors import InvalidArgument

HELP_ROOT = "Folder of the system to be changed, for images; this machine's by default."


@dataclass(frozen=True)
class ServiceOptions:
    """What the service runs."""

    role: str = option(..., "Of the node, as `swarm-node --role` takes it.")
    model: str = option("", "NAME, or NAME@VERSION.")
    trust: str = seldom("", "File with the keys whose models are taken; else yours are.")
    program: str = seldom("", "Path of `swarm-node`; that of this installation by default.")
    root: str = seldom("/", HELP_ROOT)


def node(options: ServiceOptions, target: Target) -> int:
    """Make a node a service of systemd: its user, its unit, its settings in /etc/swarm."""
    from nodes.config import NodeConfig
    from nodes.console import err, guarded, print_json
    from nodes.install.machine import Machine
    from nodes.install.plan import installation
    from swarm.security.trusted_keys import own_trust_file

    async def work() -> int:
        NodeConfig(role=options.role, model=options.model, mesh=target.mesh)  # raises
        program = options.program or shutil.which("swarm-node", path=str(_programs()))
        if not program:
            raise InvalidArgument("no swarm-node beside this command: give its path by --program")
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
        plan = installation(
            options.role,
            program,
            settings,
            _read(access.credentials) if access.credentials else "",
            _read(trust) if trust else "",
        )
        written = Machine(Path(options.root)).install(plan)
        if target.json:
            print_json({"written": written, "enabled": list(plan.enabled)})
        else:
            for path in written:
                err.print(path, markup=False)
            err.print(f"next: systemctl status {plan.enabled[0]}", markup=False)
        return 0

    return guarded(work, target.json)


def remove(
    settings: bool = seldom(False, "Settings and credentials in /etc/swarm too."),
    root: str = seldom("/", HELP_ROOT),
    json: Json = False,
) -> int:
    """Stop the nodes of this machine, and delete their unit, data and user."""
    from nodes.console import err, guarded, print_json
    from nodes.install.machine import Machine

    async def work() -> int:
        deleted = Machine(Path(root)).remove(settings)
        if json:
            print_json({"deleted": deleted})
        else:
            for path in deleted:
                err.print(f"deleted {path}", markup=False)
        return 0

    return guarded(work, json)


def _programs() -> Path:
    return Path(sys.executable).parent


def _read(path: str) -> str:
    """A file's text. Raises `InvalidArgument`."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path}: {error}") from None


app = typer.Typer(no_args_is_help=True, help="A node as a service of this machine.")
add_commands(app, {"Service": {"node": node, "remove": remove}})
