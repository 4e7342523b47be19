"""`swarm metrics-exporter`: the whole fleet for Prometheus, from status subjects.

For devices that nobody can reach by HTTP: they only connect out, to the NATS server.
"""

from __future__ import annotations

import time

from nodes.cli.options import Target
from nodes.cli.with_mesh import client_of
from nodes.console import err, print_json
from nodes.event_loop import stop_on_signals
from nodes.health.endpoint import endpoint
from nodes.place import Place
from swarm.errors import InvalidArgument
from swarm.fleet.picture import FleetPicture
from swarm.fleet.service import FleetWatch


async def run_exporter(port: str, most_nodes: int, target: Target) -> None:
    """`swarm metrics-exporter`, until Ctrl-C."""
    async with client_of(target) as client:
        try:
            from nodes.watch.metrics.endpoint import figures
            from nodes.watch.metrics.fleet import of_fleet
        except ModuleNotFoundError as error:
            raise InvalidArgument(f"{error}: pip install 'swarm-mesh[metrics]'") from None
        where = Place.of(port)
        stop = stop_on_signals()
        picture = FleetPicture(most_nodes=most_nodes)
        async with FleetWatch(client.link, client.subjects, picture, events=0):
            pages = figures(lambda: of_fleet(picture, client.link.connected, time.monotonic()))
            with endpoint(where, pages) as bound:
                url = f"http://{where.at(bound)}/metrics"
                if target.json:
                    print_json({"event": "ready", "url": url})
                else:
                    err.print(
                        f"metrics of mesh {target.mesh!r} at {url}; Ctrl-C ends", markup=False
                    )
                await stop.wait()
