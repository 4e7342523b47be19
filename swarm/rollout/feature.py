"""A new version by steps of traffic, under guards."""

from __future__ import annotations

from swarm.feature import CONFIG, GET, Feature, Row

FEATURE = Feature(
    "rollout",
    rights={
        f"{GET}.KV_{CONFIG}": [
            # A node can end a rollout, and nothing else: traffic goes back to the version before.
            Row(
                f"$KV.{CONFIG}.abort.{{model}}.*",
                "end a rollout whose guards are broken",
                publish={"nodes"},
            ),
            Row(
                f"{GET}.KV_{CONFIG}.$KV.{CONFIG}.abort.{{model}}.*",
                "was a rollout ended?",
                publish={"nodes", "requester"},
            ),
            Row(
                "swarm.{mesh}.reports.{model}.*",
                "what requesters observe of a version under rollout",
                publish={"nodes", "requester"},
                subscribe={"nodes"},
            ),
            Row(
                "swarm.{mesh}.guards.{model}.{user}.*",
                "how a rollout's guards stand, by the own nodes",
                publish={"nodes"},
            ),
            Row(
                "swarm.{mesh}.guards.{model}.*.*",
                "how a rollout's guards stand",
                subscribe={"nodes", "requester"},
            ),
            Row(
                "swarm.{mesh}.guards.*.*.*",
                "the same, of any model",
                subscribe={"operator"},
            ),
        ],
    },
)
