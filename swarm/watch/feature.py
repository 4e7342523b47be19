"""What people watch."""

from __future__ import annotations

from swarm.feature import CONFIG, GET, MeshFeature, Row, UserRole

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
        "swarm.{mesh}.events.*": [
            Row(f"{GET}.SWARM={{mesh}}=events", "past events", publish={"dashboard"}),
        ],
        f"{GET}.KV_{CONFIG}.$KV.{CONFIG}.serve.{{model}}": [
            Row(
                f"{GET}.KV_{CONFIG}.$KV.{CONFIG}.serve.*",
                "desired state of every model",
                publish={"dashboard"},
            ),
            Row("swarm.{mesh}.config.serve.*", "changes of desired state", subscribe={"dashboard"}),
        ],
        f"{GET}.KV_{CONFIG}.$KV.{CONFIG}.models.{{model}}.*": [
            Row(
                f"{GET}.KV_{CONFIG}.$KV.{CONFIG}.models.*.*",
                "manifests of every model: how many stages have to have a node",
                publish={"dashboard"},
            ),
        ],
    },
)
