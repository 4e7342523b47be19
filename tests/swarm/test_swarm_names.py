"""Subjects, ids, and the names that other programs rely on."""

from __future__ import annotations

import itertools
import os
import re
import socket
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import swarm
from swarm import errors, ids
from swarm.errors import Internal, ResourceExhausted, Status, SubjectError, SwarmError, error_for
from swarm.ids import node_id, ulid
from swarm.subjects import Subjects, api, token

TOKEN = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")


def test_the_public_surface_is_this_and_no_more() -> None:
    assert sorted(swarm.__all__) == [
        "DeadlineExceeded",
        "DecodeError",
        "Hop",
        "Internal",
        "InvalidArgument",
        "Mesh",
        "NotConnected",
        "NotFound",
        "ResourceExhausted",
        "Result",
        "Status",
        "SwarmError",
        "Unauthenticated",
        "Unavailable",
        "__version__",
        "connect",
    ]
    assert all(hasattr(swarm, name) for name in swarm.__all__)


def test_a_client_imports_nothing_that_it_may_never_need() -> None:
    """4 MB and a quarter of the time that `import swarm` takes."""
    code = "import sys, swarm; print(*({'nats', 'importlib.metadata', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


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
        lambda: subjects.results(bad),
        lambda: subjects.stream("m", bad),
        lambda: subjects.consumer(1, bad),
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
    assert subjects.gossip("n") == "swarm.default.gossip.n"
    assert subjects.status("n") == "swarm.default.status.n"
    assert subjects.event("died") == "swarm.default.events.died"
    assert subjects.dead("d") == "swarm.default.dead.d"
    assert subjects.models_bucket == "swarm-default-models"
    assert subjects.config_bucket == "swarm-default-config"
    assert api("STREAM.INFO", "S") == "$JS.API.STREAM.INFO.S"


tokens = st.from_regex(r"[A-Za-z0-9_-]{1,12}", fullmatch=True)


@settings(deadline=None)
@given(st.tuples(tokens, tokens, tokens), st.tuples(tokens, tokens, tokens))
def test_two_model_versions_never_share_a_stream(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    names = [Subjects(mesh).stream(model, version) for mesh, model, version in (one, other)]
    assert (names[0] == names[1]) == (one == other)
    assert not set(".*> ") & set("".join(names))


def test_ulids_are_well_formed_unique_and_sort_by_time() -> None:
    made = [ulid() for _ in range(2000)]
    assert len(set(made)) == 2000
    assert all(re.fullmatch("[0-7][0-9A-HJKMNP-TV-Z]{25}", value) for value in made)
    assert all(token(value) for value in made)
    assert [value[:10] for value in made] == sorted(value[:10] for value in made)


def test_a_ulid_tells_its_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    # The specification's own example: 2016-07-30T23:54:10.259Z.
    monkeypatch.setattr(time, "time_ns", lambda: 1469922850259 * 1_000_000)
    assert ulid()[:10] == "01ARZ3NDEK"
    earlier = ulid()
    monkeypatch.setattr(time, "time_ns", lambda: 1469922850260 * 1_000_000)
    assert earlier < ulid()


def test_ulids_are_well_formed_and_unique_where_their_counter_begins_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1469922850259 * 1_000_000)
    monkeypatch.setattr(ids, "_count", itertools.count((1 << 20) - 2))
    made = [ulid() for _ in range(4)]
    assert len(set(made)) == 4
    assert all(re.fullmatch("[0-7][0-9A-HJKMNP-TV-Z]{25}", value) for value in made)


FORKED = """
import os
from swarm.ids import ulid
read, write = os.pipe()
ulid()
child = os.fork()
os.write(write, ulid().encode()) if child == 0 else os.waitpid(child, 0)
if child == 0:
    os._exit(0)
print(os.read(read, 26).decode(), ulid())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_makes_other_ulids_than_its_parent() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=30, check=True
    )
    child, parent = ran.stdout.split()
    assert child[10:22] != parent[10:22]


@pytest.mark.parametrize(
    "host", ["raspi-4", "a.b.example.org", "büro.örtlich", "", "机器", "x" * 99]
)
def test_a_node_id_is_a_token_whatever_the_host_is_called(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    one, other = node_id("shard-1"), node_id("shard-1")
    assert token(one) == one
    assert one.startswith("shard-1-")
    assert one != other


def test_every_status_word_but_ok_has_an_error_that_carries_it() -> None:
    for status in Status:
        error = error_for(status, "why")
        assert str(error) == "why"
        if status not in (Status.OK, Status.PERMISSION_DENIED):
            assert error.status is status
    assert type(error_for("NONSENSE", "x")) is Internal
    full = error_for(Status.RESOURCE_EXHAUSTED, "full", 0.25)
    assert isinstance(full, ResourceExhausted)
    assert (str(full), full.retry_after) == ("full", 0.25)


def test_every_error_is_a_swarm_error_with_a_status() -> None:
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, Exception)]
    assert len(classes) >= 13
    assert all(issubclass(c, SwarmError) and c.status in Status for c in classes)
