"""`swarm drain NODE`: a node finishes what it has begun, gives back the rest, and ends."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from nodes.cli.acts import on_record
from nodes.cli.command import option
from nodes.cli.options import NODE, Target
from nodes.cli.with_mesh import client_of
from nodes.console import conclude, err
from swarm.errors import InvalidArgument, NotFound
from swarm.fleet.service import FleetWatch
from swarm.fleet.service import drain as tell_to_drain
from swarm.fleet.status_interval import SMALL_FLEET
from swarm.fleet.view import FleetView
from swarm.subjects import token

GONE_WITHIN = 13.0  # seconds; a node ends twelve seconds after it was told to, in any case


def the_node(view: FleetView, named: str, now: float) -> str:
    """The id of the living node that is meant: by its id, or by what no other has of the id's
    beginning, its whole words between dashes, and the role. Any other part of an id is refused: its
    end is random, so a slip of the hand would hit some node. Raises `NotFound`,
    `InvalidArgument`."""
    roles = {node.node: node.role for node in view.living(now)}
    living = list(roles)
    if named in living:
        return named
    meant = [
        id_
        for id_, role in roles.items()
        if named and (id_.startswith(named) or f"-{named}-" in f"-{id_}-" or role == named)
    ]
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise InvalidArgument(f"{named!r} may be {', '.join(sorted(meant)[:8])}: say which")
    known = ", ".join(sorted(living)[:8]) or "none"
    raise NotFound(f"no living node is called {named!r}; there are: {known}")


async def drain(
    node: Annotated[
        str,
        NODE,
        typer.Argument(
            help="Its id, or what no other living node has: its beginning, a word of it, a role."
        ),
    ],
    target: Target,
    wait: bool = option(True, "Until it has left."),
) -> int:
    """Have a node finish what it has begun, hand back the rest, and end: as SIGTERM does.

    Under rights only an operator may. A supervisor that starts ended nodes again, as that of
    `swarm up` does, starts this one too.
    Exits with 1 where the node has not left in time."""
    async with client_of(target) as client:
        async with FleetWatch(client.link, client.subjects, events=0) as watch:
            if not watch.answered or len(watch.view.nodes) <= SMALL_FLEET:
                watch.request_statuses(within=0.0)
                await watch.until(lambda p, now: node in p.nodes, 0.5)
            found = the_node(watch.view, node, time.monotonic())
            await tell_to_drain(client.link, client.subjects, token(found, "node id"))
            await on_record(client, "drain", node=found)
            left = False
            if wait:

                def is_gone(view: FleetView, now: float) -> bool:
                    known = view.nodes.get(found)
                    return known is None or known.state(now) in ("left", "dead")

                left = await watch.until(is_gone, GONE_WITHIN)
        doc = {"node": found, "state": "left" if left else "draining"}
        conclude(target.json, doc, f"{found} {'has left' if left else 'drains'}")
        if wait and not left:
            err.print("it has not left yet: look at its log on its host", markup=False)
            return 1
        return 0
