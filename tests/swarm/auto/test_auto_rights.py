"""What the users of nodes of role `auto` may."""

from __future__ import annotations

from swarm.security.rights import permissions_of
from swarm.security.rights.permissions import who_may
from swarm.subjects import Subjects, covers


def test_a_node_of_role_auto_serves_any_stage_and_writes_the_plans_of_its_model_alone() -> None:
    rights = permissions_of("auto", mesh="default", models=["digits"], user="a", stages=3)

    def may(subject: str) -> bool:
        return any(covers(pattern, subject) for pattern in rights.publish)

    features = Subjects("default").features
    assert all(may(features("digits", "7", stage)) for stage in (1, 2, 3))
    config = "$KV.swarm-default-config"
    assert may(f"{config}.plan.digits.7")
    assert may(f"$JS.API.DIRECT.GET.KV_swarm-default-config.{config}.plan.digits.7")
    for key in ("plan.other.7", "serve.digits", "models.digits.7"):
        assert not may(f"{config}.{key}")
    assert who_may(True, f"{config}.plan.digits.7") == ["auto", "operator"]
