"""`swarm fleet …`, `swarm release …`: the commands and their options; see `nodes.cli.main`."""

from __future__ import annotations

from typing import Annotated

import typer

from nodes.cli.command import Ran, add_commands, seldom
from nodes.cli.options import Json, SignedTarget, Target
from nodes.upgrade.commands.fleet_options import UpdaterOptions, WaveOptions


def upgrade(options: WaveOptions, target: SignedTarget) -> Ran:
    """Bring devices to a release, a few at a time, or show how that stands.

    Those go whose updater runs; there is no master. A device that refuses the release stops it."""
    from nodes.upgrade.commands.fleet import run_upgrade

    return run_upgrade(options, target)


def updater(options: UpdaterOptions, target: Target) -> Ran:
    """Run the nodes of this device, and take releases as waves say, until SIGTERM.

    SIGTERM and Ctrl-C end the nodes too; they outlive an updater that is killed."""
    from nodes.upgrade.commands.fleet import run_updater

    return run_updater(options, target)


Folder = Annotated[str, typer.Argument(metavar="FOLDER", help="It holds the files of a release.")]
Version = Annotated[
    str, typer.Option(hidden=True, help="Of the release; that of the folder's swarm_mesh-*.whl.")
]
Extras = Annotated[str, typer.Option(hidden=True, help="Of the package, that devices need.")]


def push(
    folder: Folder, target: SignedTarget, version: Version = "", extras: Extras = "node"
) -> Ran:
    """Sign the wheels in a folder as one release, and store them in the mesh."""
    from nodes.upgrade.commands.release import run_push

    return run_push(folder, version, extras, target)


def sign(
    folder: Folder,
    version: Version = "",
    key: str = seldom("", "File of the key pair; the user's own by default."),
    json: Json = False,
) -> Ran:
    """Write the hashes of a folder's files to release.json, and its signature to release.sig."""
    from nodes.upgrade.commands.release import run_sign

    return run_sign(folder, version, key, json)


def verify(
    folder: Folder,
    trust: str = seldom("", "File with trusted keys; else yours are."),
    json: Json = False,
) -> Ran:
    """Check a folder's files against release.json and its signature."""
    from nodes.upgrade.commands.release import run_verify

    return run_verify(folder, trust, json)


app = typer.Typer(no_args_is_help=True, help="The node software of many devices.")
add_commands(app, {"Commands": {"upgrade": upgrade, "updater": updater}})
release_app = typer.Typer(no_args_is_help=True, help="Releases of the node software.")
add_commands(release_app, {"Commands": {"push": push, "sign": sign, "verify": verify}})
