"""The view of a fleet as metrics: each node's, how many nodes are in which state, and what
nobody but an onlooker can tell: which stages have no node, how the servers are, what clients see.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nodes.cli.fields import part
from nodes.watch.metrics.families import STATES, STATUSES, Families, NodeStatus
from swarm.fleet.coverage import StageCover, Version, covered
from swarm.fleet.observed import ObservedTotals
from swarm.fleet.view import FleetView

OFFENCES = (
    "malformed",
    "absurd",
    "flood",
    "event_flood",
    "malformed_event",
    "too_many_nodes",
    "too_many_bytes",
)
COVERED = ("model", "version", "stage")
STORES = ("fine", "full", "gone")
NO_VERSIONS: Mapping[Version, int] = {}
NO_RIGHTS: Mapping[str, bool] = {}


def of_fleet(
    view: FleetView,
    connected: bool,
    now: float,
    serving: Mapping[Version, int] = NO_VERSIONS,
    servers: Iterable[Mapping[str, Any]] = (),
    observed: ObservedTotals | None = None,
    sees: Mapping[str, bool] = NO_RIGHTS,
) -> Families:
    """connected: whether the exporter hears the mesh. now: seconds, of the view's clock.
    serving: the number of stages of each version that requests may go to. servers: the last words
    of embedded servers. observed: what clients told. sees: whether the exporter's user may read
    each of these. A node that left is told of no more: its
    series end. While nothing is heard nobody knows which stages have a node, and none is told of.
    """
    families = Families()
    families.gauge("swarm_exporter_connected", (), (), connected)
    for what, may in sees.items():
        families.gauge("swarm_exporter_sees", ("what",), (what,), may)
    states = view.by_state(now)
    for state in STATES:
        families.gauge("swarm_fleet_nodes", ("state",), (state,), states.get(state, 0))
    for kind in OFFENCES:
        families.counter("swarm_fleet_refused", ("reason",), (kind,), view.refused.get(kind, 0))
    if connected:
        for cover in covered(serving, view.nodes.values(), now):
            _stage(families, cover)
        for server in servers:
            _server(families, server)
    if observed is not None:
        _clients(families, observed)
    for node in view.nodes.values():
        state = node.state(now)
        if state == "left":
            continue
        status = node.status or {"role": node.role}
        silence = now - (node.known if node.heard is None else node.heard)
        families.add(NodeStatus(node.node, status, state, silence, list(node.marks(now))))
    return families


def _stage(families: Families, cover: StageCover) -> None:
    at = (cover.model, cover.version, str(cover.stage))
    families.gauge("swarm_stage_ready_nodes", COVERED, at, cover.ready)
    for kind, count in (
        ("primary", cover.primaries),
        ("standby", cover.standbys),
        ("fallback", cover.fallbacks),
    ):
        families.gauge("swarm_stage_nodes", (*COVERED, "kind"), (*at, kind), count)


def _server(families: Families, server: Mapping[str, Any]) -> None:
    """Of a document that anybody may have written."""
    url, store = server.get("url"), part(server, "store")
    at = (str(url)[:200],)
    up = server.get("state") == "up"
    families.gauge("swarm_server_up", ("server",), at, up)
    for state in STORES:
        is_so = store.get("state") == state
        families.gauge("swarm_server_store", ("server", "state"), (*at, state), is_so)
    free = store.get("free_bytes")
    if isinstance(free, int) and free >= 0:
        families.gauge("swarm_server_store_free_bytes", ("server",), at, free)


def _clients(families: Families, observed: ObservedTotals) -> None:
    for model, counts in sorted(observed.by_model.items()):
        # From zero on: a counter that begins with failures would have no rate.
        for status in sorted(STATUSES):
            at = (model, status)
            count = counts.get(status, 0)
            families.counter("swarm_client_requests", ("model", "status"), at, count)
        degraded = observed.degraded.get(model, 0)
        families.counter("swarm_client_requests_degraded", ("model",), (model,), degraded)
