"""The picture of a fleet as metrics: each node's, and how many nodes are in which state."""

from __future__ import annotations

from nodes.watch.metrics.families import STATES, Families, NodeStatus
from swarm.fleet.picture import FleetPicture

OFFENCES = (
    "malformed",
    "absurd",
    "flood",
    "event_flood",
    "malformed_event",
    "too_many_nodes",
    "too_many_bytes",
)


def of_fleet(picture: FleetPicture, connected: bool, now: float) -> Families:
    """connected: whether the exporter hears the mesh. now: seconds, of the picture's clock. A node
    that left is told of no more: its series end."""
    families = Families()
    families.gauge(
        "swarm_exporter_connected",
        "1 while the exporter is connected to the mesh's server.",
        (),
        (),
        connected,
    )
    states = picture.by_state(now)
    for state in STATES:
        families.gauge(
            "swarm_fleet_nodes", "Nodes by state.", ("state",), (state,), states.get(state, 0)
        )
    for kind in OFFENCES:
        families.counter(
            "swarm_fleet_refused",
            "Statuses and events that were not taken, by reason.",
            ("reason",),
            (kind,),
            picture.refused.get(kind, 0),
        )
    for node in picture.nodes.values():
        state = node.state(now)
        if state == "left":
            continue
        status = node.status or {"role": node.role}
        silence = now - (node.known if node.heard is None else node.heard)
        families.add(NodeStatus(node.node, status, state, silence, list(node.marks(now))))
    return families
