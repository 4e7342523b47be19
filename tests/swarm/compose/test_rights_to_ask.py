"""Who serves a composition may ask its models, and nothing more of them."""

from __future__ import annotations

import pytest

from swarm.errors import InvalidArgument, SubjectError
from swarm.security.rights import permissions_of
from swarm.subjects import Subjects, covers

SUBJECTS = Subjects("default")
KV = "$KV.swarm-default-config"
GET = f"$JS.API.DIRECT.GET.KV_swarm-default-config.{KV}"


def may(subject: str, *asks: str, role: str = "shard-1") -> bool:
    rights = permissions_of(role, mesh="default", models=["cascade"], user="a", asks=asks)
    return any(covers(pattern, subject) for pattern in rights.publish)


@pytest.mark.parametrize("role", ["shard-1", "fallback", "standby"])
@pytest.mark.parametrize(
    "subject",
    [
        SUBJECTS.features("small", "7", 1),
        SUBJECTS.whereabouts("small", "7", 1),
        SUBJECTS.cancel("small", "7"),
        f"{GET}.models.small.7",
        f"{GET}.serve.small",
    ],
)
def test_a_model_is_asked_by_whom_it_was_allowed_to_alone(role: str, subject: str) -> None:
    assert may(subject, "small", "large", role=role)
    assert not may(subject, "large", role=role)
    assert not may(subject, role=role)


@pytest.mark.parametrize(
    "subject",
    [
        SUBJECTS.features("small", "7", 2),
        "swarm.default.infer.small",
        "swarm.default.dead.small",
        f"$JS.API.CONSUMER.MSG.NEXT.x.{SUBJECTS.consumer('small', 1)}",
        f"$JS.ACK.x.{SUBJECTS.consumer('small', 1)}.1.2.3.4.5",
        f"{KV}.serve.small",
    ],
)
def test_a_model_that_is_asked_is_not_served_or_changed(subject: str) -> None:
    assert not may(subject, "small")


@pytest.mark.parametrize("role", ["client", "requester", "operator", "gateway", "edge"])
def test_who_serves_no_composition_is_given_no_such_right(role: str) -> None:
    with pytest.raises(InvalidArgument, match="--asks"):
        permissions_of(role, mesh="default", models=["cascade"], asks=["small"])


@pytest.mark.parametrize("name", ["*", "a.b", ">", ""])
def test_what_is_asked_is_named_one_by_one(name: str) -> None:
    with pytest.raises(SubjectError):
        permissions_of("shard-1", mesh="default", models=["cascade"], asks=[name])
