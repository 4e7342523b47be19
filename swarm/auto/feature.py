"""Nodes agree by themselves which of them serves which stages."""

from __future__ import annotations

from collections.abc import Mapping

from swarm.feature import CONFIG, GET, GossipEntry, MeshFeature, UserRole, rows


def _gossip() -> Mapping[str, GossipEntry]:
    from swarm.auto import advertised

    return {
        "room": GossipEntry(advertised.valid_room, of_load=True),
        "pools": GossipEntry(advertised.valid_pools, of_load=True),
        "uses": GossipEntry(advertised.valid_uses),
        "link": GossipEntry(advertised.valid_link, of_load=True),
        "fills": GossipEntry(advertised.valid_fills),
        "pace": GossipEntry(advertised.valid_pace, of_load=True),
    }


FEATURE = MeshFeature(
    "auto",
    status="swarm.auto.status",
    gossip=_gossip,
    roles=[
        UserRole(
            "auto",
            "as a fallback; serves the stages of its slot, proposes plans",
            behind="standby",
            groups={"covers"},
        )
    ],
    rights={
        f"{GET}.KV_{CONFIG}.$KV.{CONFIG}.abort.{{model}}.*": rows(
            """
# Whatever stands in a plan moves work and changes no result.
$KV.<config>.plan.{model}.* | auto | | propose a plan: which stages lie together
<get>.KV_<config>.$KV.<config>.plan.{model}.* | auto | | the plan in force
"""
        ),
    },
)
