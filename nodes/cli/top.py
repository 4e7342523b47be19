"""`swarm top`: the fleet in a terminal, live; a plain table where textual is missing."""

from __future__ import annotations

from importlib.util import find_spec

from nodes.access import present
from nodes.cli.status import run_plain_top, run_status
from nodes.console import err, guarded, out
from nodes.event_loop import stop_on_signals
from swarm.link import LinkOptions

HINT = "for filters, an order of your own and a page a node: pip install 'swarm-mesh[top]'"


def run_top(nats: str, mesh: str, once: bool, plain: bool) -> int:
    """`swarm top`; returns its exit code."""
    if once:
        return run_status(nats, mesh, False)
    if plain or not out.is_terminal or out.is_dumb_terminal:
        return run_plain_top(nats, mesh)
    if find_spec("textual") is None:
        err.print(HINT, markup=False, highlight=False, soft_wrap=True)
        return run_plain_top(nats, mesh)

    async def main() -> int:
        from nodes.watch.top.run import show

        link = LinkOptions(
            servers=tuple(nats.split(",")), name="swarm top", **present.get().options()
        )
        await show(link, mesh, stop_on_signals())
        return 0

    return guarded(main)
