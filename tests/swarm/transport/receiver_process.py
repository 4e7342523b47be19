"""A receiver in a process of its own, for tests that end it: takes one parcel, up to a point.

Arguments: the server's URL, the mesh, the stage, and the point: `taken`, `answered` (before the
word), or `done`. Each line that it prints says how far it is.
"""

from __future__ import annotations

import asyncio
import sys

from contract import Receiver

from swarm.link import LinkOptions
from swarm.mesh import Mesh
from swarm.transport.api import Delivery
from swarm.transport.lane import LaneOptions
from swarm.transport.source import SourceOptions


async def main(url: str, name: str, stage: int, point: str, ack_wait: float) -> None:
    def work(delivery: Delivery) -> None:
        if point == "answered":
            delivery.answer(dict(delivery.features.tensors), True, lambda error: None)
        elif point == "done":
            delivery.ack(True)
        asyncio.get_running_loop().call_later(0.02, print, point)

    async with Mesh(LinkOptions(servers=(url,)), name, known_peers=lambda info, stage: []) as mesh:
        options = SourceOptions(lanes=LaneOptions(ack_wait=ack_wait))
        receiver = Receiver(mesh, stage, "victim", options)
        receiver.work = work
        await receiver.open()
        print(mesh.inbox)
        await asyncio.Event().wait()


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], float(sys.argv[5])))
