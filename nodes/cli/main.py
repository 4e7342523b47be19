"""`swarm`: the command line.

Each command imports its work when it runs, so that `swarm --help` answers at once. That is why the
commands lie in files of their own beside their work.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from nodes.cli.bench import register as register_bench
from nodes.cli.command import group
from nodes.feature import CommandGroup, Commands
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


MODEL = CommandGroup(
    "Split models, put them into the mesh, choose the version that runs.",
    {
        "Make": {
            "split": "nodes.cli.model_split:split",
            "inspect": "nodes.cli.model_split:inspect",
        },
        "Put into the mesh": {
            "push": "nodes.cli.model_push:push",
            "list": "nodes.cli.model:list_",
            "gc": "nodes.cli.collecting:gc",
        },
        "Choose the version that runs": {
            "promote": "nodes.cli.model:promote",
            "status": "nodes.cli.model:status",
            "rollback": "nodes.cli.model:rollback",
            "pin": "nodes.cli.model:pin",
            "serve": "nodes.cli.model:serve",
        },
        "Watch and learn": {
            "slo": "nodes.cli.objective:slo",
            "samples": "nodes.cli.model:samples",
        },
    },
)
AUTH = CommandGroup(
    "Who may do what: keys, credentials, a server's configuration.",
    {
        "Users": {
            "init": "nodes.cli.auth:init",
            "add": "nodes.cli.auth:add",
            "list": "nodes.cli.auth:list_",
            "revoke": "nodes.cli.auth:revoke",
            "rotate": "nodes.cli.auth:rotate",
            "permissions": "nodes.cli.auth:permissions",
        },
        "Servers": {
            "server": "nodes.cli.auth_server:server",
            "certs": "nodes.cli.certs:certs",
            "limits": "nodes.cli.auth:limits",
        },
    },
)
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
        "demo": "nodes.cli.demo:demo",
        "doctor": "nodes.cli.doctor:doctor",
        "up": "nodes.cli.up:up",
        "infer": "nodes.cli.infer:infer",
        "version": "nodes.cli.version:version",
    },
    "Models": {"model": MODEL},
    "See": {"status": "nodes.cli.status:status"},
    "Trust": {"auth": AUTH, "keys": KEYS},
    "Fleet": {"drain": "nodes.cli.drain:drain"},
    "Measure": {"bench": bench_app},
}
app.info.cls = group(CORE)


def main() -> None:
    """Entry point of `swarm`."""
    any_encoding()
    plain_where_asked()
    app(prog_name="swarm")


if __name__ == "__main__":
    main()
