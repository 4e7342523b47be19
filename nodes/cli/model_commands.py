"""`swarm model …`: the commands of versions; see `nodes.cli.main`."""

from __future__ import annotations

from typing import Annotated

import typer

from nodes.cli.command import (
    Named,
    Ran,
    add_commands,
    argument,
    option,
)
from nodes.cli.model_options import (
    P99,
    Errors,
    ModelSource,
    PushOptions,
    SplitOptions,
)
from nodes.cli.options import AGENT, MODEL, VERSION, Json, SignedTarget, Target
from nodes.feature import Commands, Given

Folder = Annotated[str, typer.Argument(help="A folder made by `swarm model split`.")]
Name = Annotated[str, Named("model"), typer.Argument(metavar="MODEL", help="NAME.")]


def split(file: ModelSource, options: SplitOptions, given: Given, json: Json = False) -> Ran:
    """Cut an ONNX file into shards of equal measured time, and check them against the whole.

    A language model is cut at the ends of its layers, and proved over a prompt and 64 tokens."""
    from nodes.cli.model import run_split

    return run_split(file, options, given, json)


def inspect(folder: Folder, json: Json = False) -> Ran:
    """Show the shards of a split model: layers, times, bytes of each cut. Checks the files."""
    from nodes.cli.model import run_inspect

    return run_inspect(folder, json)


def push(folder: Folder, options: PushOptions, given: Given, target: SignedTarget) -> Ran:
    """Put a split model into the mesh, signed. A model's first version serves at once."""
    from nodes.cli.model import run_push

    return run_push(folder, options, given, target)


def list_(target: Target) -> Ran:
    """Show the models and versions in the mesh, and each version's share of traffic."""
    from nodes.cli.model import run_list

    return run_list(target)


def gc(
    target: SignedTarget,
    keep: int = option(2, "So many of the last versions of each model stay in any case."),
    dry_run: bool = option(False, "Say what would go, and remove nothing."),
) -> Ran:
    """Remove versions from the server that nothing serves, rolls out, pins or goes back to."""
    from nodes.cli.collecting import run_gc

    return run_gc(keep, dry_run, target)


def promote(
    model: Annotated[str, MODEL, typer.Argument(help="NAME@VERSION.")],
    target: SignedTarget,
) -> Ran:
    """Let a version serve all traffic; nodes drain the old one afterwards."""
    from nodes.cli.model import run_promote

    return run_promote(model, target)


def status(model: Name, target: Target) -> Ran:
    """Show what serves, and which agents keep to a version."""
    from nodes.cli.model import run_model_status

    return run_model_status(model, target)


def pin(
    model: Name,
    agent: Annotated[str, AGENT, typer.Argument(help="The agent, as its requests name it.")],
    target: SignedTarget,
    version: Annotated[str, VERSION] = argument(
        "", "The version that it keeps to; left out, it is pinned no more."
    ),
) -> Ran:
    """Let an agent keep to one version, whatever the shares are."""
    from nodes.cli.model import run_pin

    return run_pin(model, agent, version, target)


def serve(
    model: Name,
    state: Annotated[
        str,
        typer.Argument(
            help="The whole desired state, or a file of it: JSON with `serve` (versions and their "
            "shares), and with `sticky`, `policy`, `policy_options` if wanted."
        ),
    ],
    target: SignedTarget,
) -> Ran:
    """Put a desired state in force: shares of traffic for several versions, a routing policy."""
    from nodes.cli.model import run_serve

    return run_serve(model, state, target)


def slo(
    model: Name,
    target: SignedTarget,
    p99: P99 = "",
    errors: Errors = "",
    none: bool = option(False, "Take the objective away."),
) -> Ran:
    """Show or set a model's objective. Nodes that answer requests measure it, and tell."""
    from nodes.cli.objective import run_slo

    return run_slo(model, p99, errors, none, target)


def samples(
    model: Name,
    allowed: Annotated[str, typer.Argument(help="on or off.")],
    target: SignedTarget,
) -> Ran:
    """Allow, or forbid, to take inputs from a model's traffic to calibrate with; off at first."""
    from nodes.cli.model import run_samples

    return run_samples(model, allowed, target)


def rollback(
    model: Annotated[str, MODEL, typer.Argument(help="NAME.")], target: SignedTarget
) -> Ran:
    """Let the version before the present one serve all traffic again."""
    from nodes.cli.model import run_rollback

    return run_rollback(model, target)


app = typer.Typer(
    no_args_is_help=True, help="Split models, put them into the mesh, choose the version that runs."
)
CORE: Commands = {
    "Make": {"split": split, "inspect": inspect},
    "Put into the mesh": {"push": push, "list": list_, "gc": gc},
    "Choose the version that runs": {
        "promote": promote,
        "status": status,
        "rollback": rollback,
        "pin": pin,
        "serve": serve,
    },
    "Watch and learn": {"slo": slo, "samples": samples},
}
add_commands(app, CORE, "model")
