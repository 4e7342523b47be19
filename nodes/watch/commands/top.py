"""`swarm top`: the fleet in a terminal, live; a plain table where textual is missing."""

from __future__ import annotations

import asyncio
import time
from importlib.util import find_spec

from rich.live import Live
from rich.table import Table

from nodes.cli.command import seldom
from nodes.cli.options import Target
from nodes.cli.status import document, status
from nodes.cli.status_table import node_view, status_table
from nodes.cli.with_mesh import client_of
from nodes.console import err, out
from nodes.event_loop import stop_on_signals
from swarm.fleet.service import FleetWatch
from swarm.fleet.view import FleetView


def live_table(fleet: FleetView) -> Table:
    """A line for each node, as large as the terminal is now."""
    now = time.monotonic()
    docs = [document(node, now) for node in fleet.nodes.values()]
    return status_table(
        [node_view(doc, rate=doc.get("rate")) for doc in docs],
        out.width,
        out.height - 1 if out.is_terminal else None,
    )


async def run_plain_top(target: Target) -> None:
    """`swarm top` as a table that is drawn again each half second, until Ctrl-C; returns its exit
    code."""
    async with client_of(target) as client:
        stop = stop_on_signals()
        async with FleetWatch(client.link, client.subjects, events=0) as watch:
            with Live(live_table(watch.view), console=out, refresh_per_second=4) as live:
                while not stop.is_set():
                    try:
                        async with asyncio.timeout(0.5):
                            await stop.wait()
                    except TimeoutError:
                        live.update(live_table(watch.view))


HINT = "for filters, an order of your own and a page a node: pip install 'swarm-mesh[top]'"


async def top(
    target: Target,
    once: bool = seldom(False, "Show it once, as `swarm status` does."),
    plain: bool = seldom(False, "A table without keys, as where textual is missing."),
) -> int:
    """Show the fleet live, until q: nodes, stages, rates, latencies, events. s sorts, / filters,
    Enter shows a node, e all events. With --json once, as --once does."""
    if once or target.json:  # a program reads one document
        return await status(target, any_node=False)
    if not (plain or not out.is_terminal or out.is_dumb_terminal):
        if find_spec("textual") is not None:
            from nodes.watch.top.app import show

            await show(target.link("swarm top"), target.mesh, stop_on_signals())
            return 0
        err.print(HINT, markup=False, highlight=False, soft_wrap=True)
    await run_plain_top(target)
    return 0
