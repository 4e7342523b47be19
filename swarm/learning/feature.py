"""Heads that nodes learn, and agree about by deltas."""

from __future__ import annotations

from swarm.feature import CONFIG, MeshFeature, UserRole, rows

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
        "$JS.API.STREAM.INFO.OBJ_swarm-{mesh}-models": rows(
            """
swarm.{mesh}.weights.{model}.* | | nodes | changes of weight versions
<get>.KV_<weights>.$KV.<weights>.*.{model}.> | nodes | | weight versions, and their tensors
<get>.KV_<weights> | nodes | | older revisions of them; of any model
$JS.API.STREAM.INFO.KV_<weights> | nodes | | is their store there?
$KV.<weights>.*.{model}.> | learner | | mint a weight version
swarm.{mesh}.deltas.{model}.* | learner | learner | weight deltas
swarm.{mesh}.resync.{model}.* | learner | learner | ask a neighbour for all that it has learned
""",
            weights=_WEIGHTS,
        ),
        f"$KV.{CONFIG}.>": rows(
            """
$KV.<weights>.> | operator | | weight versions of all models
""",
            weights=_WEIGHTS,
        ),
    },
    news=["weights"],
    streams=lambda subjects: [f"KV_{subjects.bucket('weights')}"],
)
