"""Ask a mesh through a connection that the caller has: one of nats-py.

    nc = await nats.connect("nats://…")
    async with swarm.over(nc, mesh="default") as mesh:
        result = await mesh.infer("digits", {"image": array}, budget=0.050)

It asks whichever node serves `infer.<model>`, as every client of plain NATS does, and needs no more
rights than that. `swarm.connect` makes a connection of its own, and asks the lanes directly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swarm.asking import OverNats
from swarm.features import features

if TYPE_CHECKING:
    from nats.aio.client import Client as Connection

    from swarm.language.of_mesh import Generates  # type: ignore[import-not-found, unused-ignore]

    class Over(Generates, OverNats):  # type: ignore[misc, unused-ignore]
        """See `OverNats`."""

        async def __aenter__(self) -> Over: ...
else:

    class Over(*(each.of_over() for each in features() if each.of_over), OverNats):
        __doc__ = OverNats.__doc__


def over(connection: Connection, mesh: str = "default", *, agent: str = "") -> Over:
    """A mesh that is asked through a connection of nats-py, to be entered with `async with`.

    connection: connected; it stays the caller's, who closes it. agent: who asks, as of
    `swarm.connect`. What the entered object can: `infer`, `status`, and what features add
    (`generate`, `chat`)."""
    return Over(connection, mesh, agent)
