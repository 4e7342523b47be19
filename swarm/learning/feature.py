"""Heads that nodes learn, and agree about by deltas."""

from __future__ import annotations

from swarm.feature import CONFIG, GET, MeshFeature, Row, UserRole

_WEIGHTS = "swarm-{mesh}-weights"


def _of_mesh() -> type:
    from swarm.learning.of_mesh import Teaches

    return Teaches


FEATURE = MeshFeature(
    "learning",
    of_mesh=_of_mesh,
    roles=[
        UserRole(
            "learner",
            "learns: exchanges weight deltas, writes weight versions",
            behind="gateway",
            groups={"nodes"},
        )
    ],
    rights={
        "$JS.API.STREAM.INFO.OBJ_swarm-{mesh}-models": [
            Row(
                "swarm.{mesh}.weights.{model}.*", "changes of weight versions", subscribe={"nodes"}
            ),
            Row(
                f"{GET}.KV_{_WEIGHTS}.$KV.{_WEIGHTS}.*.{{model}}.>",
                "weight versions, and their tensors",
                publish={"nodes"},
            ),
            Row(f"{GET}.KV_{_WEIGHTS}", "older revisions of them; of any model", publish={"nodes"}),
            Row(f"$JS.API.STREAM.INFO.KV_{_WEIGHTS}", "is their store there?", publish={"nodes"}),
            Row(f"$KV.{_WEIGHTS}.*.{{model}}.>", "mint a weight version", publish={"learner"}),
            Row(
                "swarm.{mesh}.deltas.{model}.*",
                "weight deltas",
                publish={"learner"},
                subscribe={"learner"},
            ),
            Row(
                "swarm.{mesh}.resync.{model}.*",
                "ask a neighbour for all that it has learned",
                publish={"learner"},
                subscribe={"learner"},
            ),
        ],
        f"$KV.{CONFIG}.>": [
            Row(f"$KV.{_WEIGHTS}.>", "weight versions of all models", publish={"operator"}),
        ],
    },
    news=["weights"],
    streams=lambda subjects: [f"KV_{subjects.bucket('weights')}"],
)
