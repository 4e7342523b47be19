"""`swarm audit …`: the commands and their options; see `nodes.cli.main`."""

from __future__ import annotations

from typing import Annotated

import typer

from nodes.cli.command import Ran, add_commands, argument, option, seldom
from nodes.cli.options import AGENT, Target


def init(
    target: Target,
    max_days: float | None = option(
        None, "Days that records are kept; 90 at first, and then as it is.", min=0.01
    ),
    max_mb: int | None = option(
        None, "Megabytes of records, the oldest go first; 268 at first, and then as it is.", min=1
    ),
) -> Ran:
    """Make the audit's stream, or change its limits. Nodes without rights need it made."""
    from nodes.records.commands.audit import run_init

    return run_init(max_days, max_mb, target)


def tail(
    target: Target,
    agent: Annotated[str, AGENT] = option(
        "", "Only of this agent; `operator` for what commands did."
    ),
    last: int = option(20, "Records to show.", "-n", "--last", min=1),
    follow: bool = option(False, "Go on with what comes, until Ctrl-C.", "-f", "--follow"),
) -> Ran:
    """Show the last records: who asked what, which nodes worked on it, with what outcome."""
    from nodes.records.commands.audit import run_tail

    return run_tail(agent, last, follow, target)


def export(
    output: Annotated[str, typer.Argument(help="The file to write: one record a line.")],
    target: Target,
) -> Ran:
    """Write all records to a file that `swarm audit verify` checks without a server."""
    from nodes.records.commands.audit import run_export

    return run_export(output, target)


def verify(
    target: Target,
    file: str = argument("", "An export; the mesh itself when left out."),
    begin: int = seldom(
        0,
        "Number of the first message that has to be there: why those before it are gone is known. "
        "0: those that the stream's limits leave.",
        min=0,
    ),
) -> Ran:
    """Find records that were removed, altered or moved. Exits with 1 if there is one."""
    from nodes.records.commands.audit import run_verify

    return run_verify(file, begin, target)


app = typer.Typer(
    no_args_is_help=True, help="Who asked what, with which outcome; was the record changed?"
)
add_commands(
    app, {"Commands": {"init": init, "tail": tail, "export": export, "verify": verify}}, "audit"
)
