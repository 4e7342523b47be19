"""What people watch."""

from __future__ import annotations

from swarm.feature import CONFIG, GET, MeshFeature, UserRole, rows

FEATURE = MeshFeature(
    "watch",
    roles=[
        UserRole(
            "dashboard",
            "reads statuses, events, results, and which versions serve",
            behind="gateway",
            groups={"watchers"},
            publishes={
                "$SRV.PING.swarm-{mesh}",
                f"{GET}.KV_{CONFIG}",
                f"$JS.API.STREAM.INFO.KV_{CONFIG}",
            },
            subscribes={
                "swarm.{mesh}.observed.>",
                "swarm.{mesh}.events.*",
                "swarm.{mesh}.guards.*.*.*",
            },
            starts="swarm dashboard",
        )
    ],
    rights={
        "swarm.{mesh}.events.*": rows(
            """
<get>.SWARM={mesh}=events | dashboard | | past events
"""
        ),
        f"{GET}.KV_{CONFIG}.$KV.{CONFIG}.serve.{{model}}": rows(
            """
<get>.KV_<config>.$KV.<config>.serve.* | dashboard | | desired state of every model
swarm.{mesh}.config.serve.* | | dashboard | changes of desired state
"""
        ),
        f"{GET}.KV_{CONFIG}.$KV.{CONFIG}.models.{{model}}.*": rows(
            """
<get>.KV_<config>.$KV.<config>.models.*.* | dashboard | |\
 manifests of every model: how many stages have to have a node
"""
        ),
    },
)
