"""`swarm metrics-exporter`: the whole fleet for Prometheus, from status subjects.

For devices that nobody can reach by HTTP: they only connect out, to the NATS server.
"""

from __future__ import annotations

import time

from nodes.cli.command import option, seldom
from nodes.cli.options import Target
from nodes.cli.with_mesh import client_of
from nodes.console import err, print_json
from nodes.event_loop import stop_on_signals
from nodes.health.endpoint import endpoint
from nodes.place import ListenPlace
from swarm.errors import InvalidArgument
from swarm.fleet.observed import ObservedTotals
from swarm.fleet.service import FleetWatch
from swarm.fleet.view import FleetView
from swarm.link import Link
from swarm.models.serving_versions import ServingVersions
from swarm.subjects import Subjects, api, kv_get_subject
from swarm.tasks import owned


def sees(link: Link, subjects: Subjects) -> dict[str, bool]:
    """What this user may read of the mesh: credentials that are older than a right lack it."""
    bucket = subjects.config_bucket
    return {
        "models": link.may_call(api("STREAM.INFO", f"KV_{bucket}")),
        "manifests": link.may_call(kv_get_subject(bucket, "models.any.1")),
        "clients": link.grants.may_subscribe(subjects.observed_all),
    }


async def metrics_exporter(
    target: Target,
    port: str = option("9464", "PORT, for this machine alone, or ADDRESS:PORT, for Prometheus."),
    most_nodes: int = seldom(1000, "Nodes that are told of at a time.", min=1, max=100000),
) -> None:
    """Serve the figures of the whole fleet to Prometheus, from status subjects, until Ctrl-C."""
    async with client_of(target) as client:
        try:
            from nodes.watch.metrics.families import Families, figures
            from nodes.watch.metrics.fleet import of_fleet
        except ModuleNotFoundError as error:
            raise InvalidArgument(f"{error}: pip install 'swarm-mesh[metrics]'") from None
        where = ListenPlace.of(port)
        stop = stop_on_signals()
        view, observed = FleetView(most_nodes=most_nodes), ObservedTotals()
        link, subjects = client.link, client.subjects
        serving = ServingVersions(link, subjects, client.registry, view)
        async with FleetWatch(link, subjects, view, events=0) as watch, owned(serving.run()):
            if sees(link, subjects)["clients"]:
                link.subscribe(
                    subjects.observed_all, lambda told: observed.take(told.data, time.monotonic())
                )

            def collect() -> Families:
                stages, servers = serving.stages, watch.servers.values()
                for model, _ in stages:
                    observed.expect(model)
                now = time.monotonic()
                may = sees(link, subjects)
                return of_fleet(view, link.connected, now, stages, servers, observed, may)

            with endpoint(where, figures(collect)) as bound:
                url = f"http://{where.at(bound)}/metrics"
                if target.json:
                    print_json({"event": "ready", "url": url})
                else:
                    err.print(
                        f"metrics of mesh {target.mesh!r} at {url}; Ctrl-C ends", markup=False
                    )
                await stop.wait()
