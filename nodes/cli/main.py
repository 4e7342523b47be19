"""`swarm`: the command line.

Each command imports its work when it runs, so that `swarm --help` answers at once. That is why the
commands lie in files of their own beside their work.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from nodes.cli.auth_commands import app as auth_app
from nodes.cli.bench import register as register_bench
from nodes.cli.command import (
    Ran,
    add_commands,
    argument,
    option,
    seldom,
)
from nodes.cli.model_commands import app as model_app
from nodes.cli.options import (
    MODEL,
    SOLE_MODEL,
    DemoOptions,
    InferOptions,
    OwnServers,
    Target,
    UpOptions,
)
from nodes.feature import CommandGroup, Commands, Given
from nodes.features import features
from nodes.terminal import any_encoding, plain_where_asked

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Run one neural network across a fleet of edge devices, over NATS.",
    epilog="`swarm-node` runs one node of a mesh on a device. Each option of a command is also a "
    "variable, SWARM_COMMAND_OPTION, and a key of the TOML file of --config; those that are seldom "
    "set are shown by --help-all.",
    context_settings={"auto_envvar_prefix": "SWARM"},
)
bench_app = typer.Typer(
    no_args_is_help=True,
    help="Measure the mesh beside other systems in one run: ratios hold across machines.",
)
register_bench(bench_app)


def _tell_version(asked: bool) -> None:
    if asked:
        from swarm import __version__

        typer.echo(f"swarm {__version__}")
        raise typer.Exit


def _limit_runs(limit: str) -> str:
    """Bound the runs of models in this process and in those that it starts."""
    if limit:
        from nodes.console import duration
        from shards.runtimes import run_limit
        from swarm.errors import InvalidArgument

        try:
            run_limit.use(duration(limit))
        except (InvalidArgument, ValueError) as error:
            raise typer.BadParameter(str(error)) from None
        os.environ["SWARM_RUN_LIMIT"] = limit
    return limit


@app.callback()
def swarm_(
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_tell_version,
            is_eager=True,
            show_envvar=False,
            help="Print the version, and end.",
        ),
    ] = False,
    _run_limit: Annotated[
        str,
        typer.Option(
            "--run-limit",
            callback=_limit_runs,
            envvar="SWARM_RUN_LIMIT",
            hidden=True,  # seldom set: errors name it
            help="A run that proves, times or tries a model is ended after so long: 10m. 1m when "
            "empty. A Loop of the model may never end on the values of such a run.",
        ),
    ] = "",
) -> None:
    """Run one neural network across a fleet of edge devices, over NATS."""


def demo(options: DemoOptions, given: Given) -> int:
    """Show a takeover on this machine: three shards, a fallback, a live edge, one kill.

    Exits with 1 if an answer was lost or wrong, or a protection of --secure did not hold; in a
    story of its own, if one of its promises is broken."""
    stories = [story for each in features() for story in each.stories(given)]
    if len(stories) + options.secure > 1:
        raise typer.BadParameter("--secure and the other stories are told one at a time: give one")
    companions = [companion for each in features() for companion in each.companions(given)]
    from nodes.demo.frame import StoryOptions

    asked = StoryOptions(options.seconds, options.rate, options.json, companions)
    if stories:
        return stories[0](asked)
    from nodes.demo.demo import tell

    return tell(asked, options.secure)


def doctor(
    target: OwnServers,
    host: bool = option(
        False, "Instead: settings of this machine that cost time, and how to change them."
    ),
) -> int | Ran:
    """What this machine can run models on, what it lacks, and what to install.

    With --nats: also whether these servers, and those of their cluster, can keep lanes, and what is
    wrong with what the mesh keeps there. Exits with 1 where something is."""
    if host:
        from nodes.cli.host import run_host

        return run_host(target.json)
    from nodes.cli.doctor import run_doctor

    return run_doctor(target)


def up(options: UpOptions, target: OwnServers, given: Given) -> Ran:
    """Split an ONNX file and run it as a mesh on this machine, until Ctrl-C.

    Without --nats it starts a server of its own."""
    from nodes.cli.up import run_up

    return run_up(options, target, given)


def infer(
    options: InferOptions,
    target: Target,
    model: Annotated[str, MODEL] = argument("", SOLE_MODEL, metavar="[MODEL]"),
) -> Ran:
    """Ask the mesh for one inference, and show where its time went."""
    from nodes.cli.infer import run_infer

    return run_infer(model, options, target)


def status(
    target: Target,
    any_node: bool = seldom(False, "Exit with 0 as soon as any node answers, whatever lacks."),
) -> Ran:
    """Show every node once: state, requests, latencies, memory.

    Exits with 1 if none answers, with 3 if requests find no answer: a stage of a model that serves
    has no ready node, a lane is missing, or the server has lost the models that nodes serve."""
    from nodes.cli.status import run_status

    return run_status(target, any_node=any_node)


KEYS = CommandGroup(
    "Whose models nodes take, and who may ask a gateway.",
    {
        "Commands": {
            "new": "nodes.cli.keys:new",
            "show": "nodes.cli.keys:show",
            "trust": "nodes.cli.keys:trust",
            "rotate": "nodes.cli.keys:rotate",
        }
    },
)
CORE: Commands = {
    "Try": {
        "demo": demo,
        "doctor": doctor,
        "up": up,
        "infer": infer,
        "version": "nodes.cli.version:version",
    },
    "Models": {"model": model_app},
    "See": {
        "status": status,
    },
    "Trust": {"auth": auth_app, "keys": KEYS},
    "Fleet": {
        "drain": "nodes.cli.drain:drain",
    },
    "Measure": {"bench": bench_app},
}
add_commands(app, CORE, "")


def main() -> None:
    """Entry point of `swarm`."""
    any_encoding()
    plain_where_asked()
    app(prog_name="swarm")


if __name__ == "__main__":
    main()
