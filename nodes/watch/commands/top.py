"""`swarm top`: the fleet in a terminal, live; a plain table where textual is missing."""

from __future__ import annotations

from importlib.util import find_spec

from nodes.cli.command import seldom
from nodes.cli.options import Target
from nodes.cli.status import run_status
from nodes.console import err, out
from nodes.event_loop import stop_on_signals
from nodes.watch.commands.plain_top import run_plain_top

HINT = "for filters, an order of your own and a page a node: pip install 'swarm-mesh[top]'"


async def top(
    target: Target,
    once: bool = seldom(False, "Show it once, as `swarm status` does."),
    plain: bool = seldom(False, "A table without keys, as where textual is missing."),
) -> int:
    """Show the fleet live, until q: nodes, stages, rates, latencies, events. s sorts, / filters,
    Enter shows a node, e all events. With --json once, as --once does."""
    if once or target.json:  # a program reads one document
        return await run_status(target)
    if not (plain or not out.is_terminal or out.is_dumb_terminal):
        if find_spec("textual") is not None:
            from nodes.watch.top.run import show

            await show(target.link("swarm top"), target.mesh, stop_on_signals())
            return 0
        err.print(HINT, markup=False, highlight=False, soft_wrap=True)
    await run_plain_top(target)
    return 0
