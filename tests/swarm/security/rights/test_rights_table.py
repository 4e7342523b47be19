"""The table of rights: complete, least, and the same in code, documentation and denials."""

from __future__ import annotations

import contextlib
import inspect
from importlib import import_module

import pytest

from swarm.errors import InvalidArgument, SubjectError
from swarm.features import features
from swarm.security.rights import ROLES, TABLE, Role, permissions_of
from swarm.security.rights.permissions import who_may
from swarm.subjects import Subjects, covers

# Of `Subjects`: names of streams, consumers and buckets, and the subjects that a stream takes.
NO_SUBJECTS = {
    *("mesh", "by_user", "root", "of", "under", "named", "bucket", "consumer", "stream_of"),
    *("features_of", "features_of_model"),  # asked for in a call of JetStream, never published to
    *("record_all", "submit_all", "answers_all", "read_all"),
}


def every_subject() -> dict[str, str]:
    """An example of each subject that `Subjects` and those of features make, by its maker."""
    for each in features():
        with contextlib.suppress(ModuleNotFoundError):
            import_module(f"swarm.{each.name}.subjects")
    kinds, made = [Subjects, *Subjects.__subclasses__()], {}
    for kind, name in ((each, name) for each in kinds for name in dir(each)):
        if name.startswith("_") or name in NO_SUBJECTS or name.endswith(("stream", "bucket")):
            continue
        member = getattr(kind("m", by_user=True), name)
        if callable(member):
            needed = [
                parameter
                for parameter in inspect.signature(member).parameters.values()
                if parameter.default is parameter.empty
            ]
            member = member(*(2 if parameter.name == "stage" else "x" for parameter in needed))
        made[name] = member
    return made


@pytest.mark.parametrize(("name", "subject"), every_subject().items())
def test_each_subject_of_the_mesh_has_a_row_in_the_table_of_rights(name: str, subject: str) -> None:
    assert who_may(True, subject) + who_may(False, subject), (
        f"Subjects.{name} makes {subject}: say in swarm/security/rights/table.py who may publish "
        "and subscribe it"
    )


@pytest.mark.parametrize("role", [r for r in ROLES if r != Role.SHARD] + ["shard-2"])
def test_no_role_has_an_empty_list_which_would_allow_everything(role: str) -> None:
    rights = permissions_of(role, mesh="default", models=["digits"])
    assert rights.publish
    assert rights.subscribe


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.subject)
def test_each_row_is_somebodys(row: object) -> None:
    assert row.publish | row.subscribe  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "subject",
    [
        "$JS.API.STREAM.CREATE.x",
        "$JS.API.STREAM.UPDATE.x",
        "$JS.API.STREAM.DELETE.x",
        "$JS.API.CONSUMER.CREATE.x",
        "$JS.API.CONSUMER.CREATE.x.default=digits=stage2=any.swarm.default.features.digits.1.2.any",
        "$JS.API.CONSUMER.DELETE.x.default=digits=stage2=any",
        "$JS.API.STREAM.MSG.GET.x",
        "$KV.swarm-default-config.serve.digits",
        "$O.swarm-default-models.C.x",
    ],
)
def test_only_an_operator_makes_and_changes_what_the_server_keeps(subject: str) -> None:
    assert who_may(True, subject) == ["operator"]


def test_a_shard_reads_its_own_stage_and_writes_the_next_of_its_own_model() -> None:
    rights = permissions_of("shard-2", mesh="default", models=["digits"], user="a")

    def may(subject: str) -> bool:
        return any(covers(pattern, subject) for pattern in rights.publish)

    features = Subjects("default").features
    assert may(features("digits", "7", 3))
    assert not may(features("digits", "7", 1))
    assert not may(features("digits", "7", 2))
    assert not may(features("digits", "7", 4))
    assert not may(features("other", "7", 3))
    assert not may(features("digits", "7", 3, "node-1"))
    asks = Subjects("default").whereabouts
    assert may(asks("digits", "7", 2))
    assert not may(asks("digits", "7", 1))
    assert not may(asks("digits", "7", 3))
    consumer = Subjects("default").consumer
    stream = Subjects("default").stream("digits", "7", 2)
    assert may(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer('digits', 2)}")
    assert not may(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer('digits', 1)}")
    assert not may(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer('other', 2)}")
    assert not may(f"$JS.API.CONSUMER.MSG.NEXT.x.{Subjects('other').consumer('digits', 2)}")


def test_no_member_may_publish_where_the_server_answers() -> None:
    for role in [r for r in ROLES if r != Role.SHARD] + ["shard-2"]:
        rights = permissions_of(role, mesh="default", models=["digits"], user="a")
        assert not any(
            covers(pattern, "_INBOX.victim.random.server.1") for pattern in rights.publish
        ), role


@pytest.mark.parametrize(
    ("role", "models"),
    [("shard-0", ["m"]), ("shard-k", ["m"]), ("king", ["m"]), ("shard-2", []), ("fallback", ["*"])],
)
def test_a_role_that_cannot_be_is_refused(role: str, models: list[str]) -> None:
    with pytest.raises(InvalidArgument, match="role"):
        permissions_of(role, mesh="default", models=models)


def test_a_name_that_would_be_another_pattern_is_refused() -> None:
    for bad in ("a.b", "a>", "a *"):
        with pytest.raises(SubjectError):
            permissions_of("client", mesh="default", models=[bad])
        with pytest.raises(SubjectError):
            permissions_of("client", mesh="default", models=["m"], user=bad)


@pytest.mark.parametrize(
    ("pattern", "subject", "covered"),
    [
        ("a.b", "a.b", True),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        (">", "a", True),
        ("a.*", "a.>", False),
        ("a.*", "a.*", True),
        ("a.b", "a.*", False),
        ("a.>", "a.>", True),
        ("a.*.c", "a.b", False),
    ],
)
def test_a_pattern_covers_what_nats_says_it_does(pattern: str, subject: str, covered: bool) -> None:
    assert covers(pattern, subject) is covered
