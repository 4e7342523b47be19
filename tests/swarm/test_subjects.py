"""Subjects, and the tokens that they are made of."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.errors import SubjectError
from swarm.subjects import Subjects, api, in_domain, speaker, token, without_domain

TOKEN = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")


@settings(deadline=None)
@given(st.text(max_size=140) | st.from_regex(TOKEN))
def test_a_token_holds_letters_digits_dash_and_underscore_or_is_refused(value: str) -> None:
    if TOKEN.match(value):
        assert token(value) == value
    else:
        with pytest.raises(SubjectError):
            token(value)


HOSTILE = ["", ".", "a.b", "*", ">", "a b", "a\r\nPUB x 0", "a\n", "é", "a" * 129, "a=b", "$SRV"]


@pytest.mark.parametrize("bad", HOSTILE)
def test_nothing_supplied_from_outside_reaches_a_subject_unchecked(bad: str) -> None:
    subjects = Subjects("default")
    for attempt in (
        lambda: Subjects(bad),
        lambda: subjects.infer(bad),
        lambda: subjects.features(bad, "1", 1),
        lambda: subjects.features("m", bad, 1),
        lambda: subjects.features("m", "1", 1, bad),
        lambda: subjects.features_of("m", bad),
        lambda: subjects.fresh(bad, "1", 1),
        lambda: subjects.gossip(bad),
        lambda: subjects.status(bad),
        lambda: subjects.event(bad),
        lambda: subjects.dead(bad),
        lambda: subjects.under("deltas", model_name="m", node_id=bad),
        lambda: subjects.results(bad),
        lambda: subjects.stream("m", bad, 1),
        lambda: subjects.consumer("m", 1, bad),
    ):
        with pytest.raises(SubjectError):
            attempt()


@pytest.mark.parametrize("bad", [None, 7, b"bytes", ["a"]])
def test_a_token_that_is_no_text_is_refused(bad: object) -> None:
    with pytest.raises(SubjectError):
        token(bad)  # type: ignore[arg-type]


def test_the_subjects_are_the_documented_ones() -> None:
    subjects = Subjects("default")
    assert subjects.infer("digits") == "swarm.default.infer.digits"
    assert subjects.features("digits", "1", 2) == "swarm.default.features.digits.1.2.any"
    assert subjects.features("d", "1", 2, "n-1") == "swarm.default.features.d.1.2.n-1"
    assert subjects.features_of("d", "1") == "swarm.default.features.d.1.*.*"
    assert subjects.features_of("d", "1", 2) == "swarm.default.features.d.1.2.*"
    assert subjects.gossip("a-user-x1") == "swarm.default.gossip.a-user-x1"
    assert subjects.status("a-user-x1") == "swarm.default.status.a-user-x1"
    of_users = Subjects("default", by_user=True)
    assert of_users.gossip("n") == "swarm.default.gossip.n.-"
    assert of_users.status("a-user-x1") == "swarm.default.status.a-user.x1"
    assert subjects.event("died") == "swarm.default.events.died"
    assert subjects.dead("d") == "swarm.default.dead.d"
    assert subjects.under("weights", model_name="d", version="1") == "swarm.default.weights.d.1"
    assert subjects.models_bucket == "swarm-default-models"
    assert subjects.config_bucket == "swarm-default-config"
    assert api("STREAM.INFO", "S") == "$JS.API.STREAM.INFO.S"


tokens = st.from_regex(r"[A-Za-z0-9_-]{1,12}", fullmatch=True)


@given(tokens)
def test_a_nodes_subject_names_it_and_the_user_with_whose_name_it_begins(node: str) -> None:
    for subjects in (Subjects(), Subjects(by_user=True)):
        assert speaker(subjects.status(node)) == node
        stated = f"{subjects.under('guards', model='d')}.{subjects.named(node)}"
        assert speaker(stated, None, "guards", 4) == node
        assert speaker(stated) == speaker(subjects.status(node), None, "guards", 4) == ""
    subject = subjects.status(node)
    user, unique = subject.split(".")[3:]
    assert node in (user, f"{user}-{unique}")
    assert "-" not in unique.removesuffix("-")


@pytest.mark.parametrize(
    "subject",
    [
        "swarm.m.status",
        "swarm.m.status.a.b.c",
        "swarm.m.features.d.1.2.any",
        "swarm.m.events.x",
        "",
    ],
)
def test_other_subjects_name_no_speaker(subject: str) -> None:
    assert speaker(subject) == ""


@settings(deadline=None)
@given(
    st.tuples(tokens, tokens, tokens, st.integers(1, 30)),
    st.tuples(tokens, tokens, tokens, st.integers(1, 30)),
)
def test_two_stages_or_model_versions_never_share_a_stream(
    one: tuple[str, str, str, int], other: tuple[str, str, str, int]
) -> None:
    names = [Subjects(mesh).stream(*stage) for mesh, *stage in (one, other)]
    assert (names[0] == names[1]) == (one == other)
    assert not set(".*> ") & set("".join(names))


@pytest.mark.parametrize("domain", ["hub", "edge-1"])
@pytest.mark.parametrize(
    "subject", ["$JS.API.STREAM.INFO.S", "$KV.bucket.key", "swarm.m.x", "$O.b"]
)
def test_a_call_in_a_domain_is_the_call_of_its_own_server(subject: str, domain: str) -> None:
    there = in_domain(subject, domain)
    assert without_domain(there) == subject
    assert in_domain(subject, "") == subject
    if subject.startswith(("$JS", "$KV")):
        assert there.startswith(f"$JS.{domain}.API.")
    else:
        assert there == subject
