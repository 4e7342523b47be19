"""Models in the mesh: pushed whole, never changed, served as desired."""

from __future__ import annotations

import json
from functools import partial

import pytest
from manifests import manifest
from real_server import Inbox
from support.waiting import eventually

from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import (
    InvalidArgument,
    NotConnected,
    NotFound,
    SubjectError,
    Unavailable,
)
from swarm.link import Link, LinkOptions, jetstream
from swarm.models.registry import Registry
from swarm.subjects import Subjects

pytestmark = pytest.mark.integration
SUBJECTS = Subjects("test")


@pytest.fixture
def registry(link: Link) -> Registry:
    return Registry(link, SUBJECTS)


async def test_a_pushed_version_is_fetched_bit_for_bit(registry: Registry) -> None:
    files = {"shard-1.onnx": bytes(range(256)) * 3000, "empty": b""}
    seen: list[tuple[str, int]] = []
    info = await registry.push(manifest("1"), files, lambda *what: seen.append(what))
    assert (info.model, info.version) == ("m", "1")
    assert seen == [("shard-1.onnx", 768_000), ("empty", 0)]
    assert await registry.fetch("m", "1", ["shard-1.onnx", "empty"]) == files
    assert await registry.manifest("m", "1") == manifest("1")
    assert await registry.info("m", "1") == info


async def test_the_first_version_serves_and_later_ones_wait_for_promotion(
    registry: Registry,
) -> None:
    await registry.push(manifest("1"), {})
    await registry.push(manifest("2"), {})
    assert await registry.serving("m") == "1"
    assert (await registry.info("m")).version == "1"
    assert await registry.promote("m", "2") == "1"
    assert (await registry.info("m")).version == "2"
    assert await registry.models() == [("m", "1"), ("m", "2")]


async def test_a_rollback_goes_back_one_version_and_forth_again(registry: Registry) -> None:
    for version in "12":
        await registry.push(manifest(version), {})
    with pytest.raises(NotFound, match="no earlier version"):
        await registry.rollback("m")
    await registry.promote("m", "2")
    assert await registry.rollback("m") == "1"
    assert await registry.serving("m") == "1"
    assert await registry.rollback("m") == "2"
    with pytest.raises(NotFound):
        await registry.rollback("unknown")


async def test_a_version_is_never_changed(registry: Registry) -> None:
    await registry.push(manifest("1"), {"a": b"first"})
    with pytest.raises(InvalidArgument, match=r"m@1 exists and versions are immutable"):
        await registry.push(manifest("1", note="other"), {"a": b"second"})
    assert await registry.fetch("m", "1", ["a"]) == {"a": b"first"}
    assert await registry.manifest("m", "1") == manifest("1")
    await registry.push(manifest("1"), {"a": b"first"})  # the same again: a retry


async def test_a_version_that_was_made_again_is_the_same_and_keeps_its_first_manifest(
    registry: Registry,
) -> None:
    first = manifest("1", "again", created="2026-01-01T00:00:00Z")
    await registry.push(first, {"a": b"first"})
    await registry.push(manifest("1", "again", created="2026-02-02T00:00:00Z"), {"a": b"first"})
    assert await registry.manifest("again", "1") == first


async def test_serving_models_are_those_with_a_desired_state(registry: Registry) -> None:
    before = await registry.serving_models()
    for model in ("s2", "s1"):
        await registry.push(manifest("1", model), {})
    assert await registry.serving_models() == sorted([*before, "s1", "s2"])


async def test_a_push_that_is_no_manifest_stores_nothing(registry: Registry) -> None:
    with pytest.raises(InvalidArgument):
        await registry.push(b"{}", {"a": b"x"})
    assert await registry.models() == []


async def test_what_is_not_there_is_not_found_and_the_error_says_how_to_look(
    registry: Registry,
) -> None:
    for _ in range(2):  # before there is any bucket, and after
        for attempt in (
            lambda: registry.manifest("m", "9"),
            lambda: registry.info("unknown"),
            lambda: registry.serving("unknown"),
            lambda: registry.promote("unknown", "1"),
        ):
            with pytest.raises(NotFound, match="swarm model list"):
                await attempt()
        with pytest.raises(NotFound):
            await registry.fetch("m", "9", ["a"])
        assert await registry.desired("unknown") is None
        await registry.push(manifest("1"), {"a": b"x"})
    with pytest.raises(NotFound, match=r"m@1 lacks the file 'b'"):
        await registry.fetch("m", "1", ["a", "b"])
    assert await registry.serving("m") == "1"  # a failed promotion changed nothing


async def test_names_that_could_address_another_key_are_refused(registry: Registry) -> None:
    for bad in ("a.b", "*", ">", "", "a b\r\n"):
        with pytest.raises(SubjectError):
            await registry.manifest(bad, "1")
        with pytest.raises(SubjectError):
            await registry.desired(bad)
        with pytest.raises(InvalidArgument):
            await registry.push(manifest("1", model=bad), {})


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"{}",
        b'{"serve": []}',
        b'{"serve": ["version"]}',
        b'{"serve": [{}]}',
        b'{"serve": 7}',
        b'{"serve": [{"version": "1", "share": "all"}]}',
        b'{"serve": [{"version": "1", "share": null}]}',
        b'{"serve": [{"version": "a.b"}]}',
    ],
)
async def test_a_damaged_desired_state_is_reported_as_that(
    link: Link, registry: Registry, state: bytes
) -> None:
    await registry.prepare()
    await jetstream.kv_put(link, SUBJECTS.config_bucket, "serve.m", state)
    with pytest.raises(InvalidArgument, match="desired state refused"):
        await registry.serving("m")


async def test_the_version_with_the_largest_share_serves_who_names_none(
    link: Link, registry: Registry
) -> None:
    await registry.prepare()
    serve = [{"version": "1", "share": 10}, {"version": "2", "share": 90}]
    state = json.dumps({"serve": serve}).encode()
    await jetstream.kv_put(link, SUBJECTS.config_bucket, "serve.m", state)
    assert await registry.serving("m") == "2"
    assert await registry.desired("m") == {"serve": serve}


async def test_keys_are_stored_read_and_listed(link: Link) -> None:
    await jetstream.ensure_bucket(link, "b", "changed")
    await jetstream.ensure_bucket(link, "b", "changed")  # there already: as good
    assert await jetstream.kv_get(link, "b", "k.one") is None
    first = await jetstream.kv_put(link, "b", "k.one", b"1")
    second = await jetstream.kv_put(link, "b", "k.one", b"2")
    await jetstream.kv_put(link, "b", "k.two", b"")
    await jetstream.kv_put(link, "b", "other", b"x")
    assert second == first + 1
    assert await jetstream.kv_get(link, "b", "k.one") == b"2"
    assert await jetstream.kv_get(link, "b", "k.two") == b""
    assert await jetstream.kv_keys(link, "b", "k") == ["k.one", "k.two"]
    assert await jetstream.kv_keys(link, "no-such-bucket", "k") == []
    assert await jetstream.kv_get(link, "no-such-bucket", "k") is None
    with pytest.raises(Unavailable):
        await jetstream.kv_put(link, "no-such-bucket", "k", b"")


async def test_every_change_is_announced(link: Link, registry: Registry) -> None:
    changes = Inbox()
    link.subscribe(f"{SUBJECTS.root}.config.>", changes)
    await registry.push(manifest("1"), {})
    await registry.push(manifest("2"), {})
    await registry.promote("m", "2")
    await eventually(lambda: len(changes) == 6)
    prefix = f"{SUBJECTS.root}.config."
    keys = [message.subject.removeprefix(prefix).rpartition("KV.")[2] for message in changes]
    assert [key.rpartition(f"{SUBJECTS.config_bucket}.")[2] for key in keys] == [
        "models.m.1",  # somebody begins to push it
        "models.m.1",
        "serve.m",
        "models.m.2",
        "models.m.2",
        "serve.m",
    ]


async def answers(registry: Registry) -> bool:
    """Whether JetStream has come back behind the server's connection."""
    try:
        await registry.info("m")
    except Unavailable:
        return False
    return True


async def test_what_was_pushed_survives_a_restart_of_the_server(
    own_server: EmbeddedServer, link: Link, registry: Registry
) -> None:
    await registry.push(manifest("1"), {"a": b"x" * 200_000})
    await own_server.kill()
    await eventually(lambda: not link.connected)
    with pytest.raises(NotConnected):
        await registry.serving("m")
    await own_server.start()
    await link.ready(5.0)
    await eventually(partial(answers, registry), "JetStream is back")
    assert await registry.fetch("m", "1", ["a"]) == {"a": b"x" * 200_000}


async def test_without_a_connection_the_registry_says_so() -> None:
    registry = Registry(Link(LinkOptions()), SUBJECTS)
    for attempt in (registry.prepare, registry.models, lambda: registry.serving("m")):
        with pytest.raises(Unavailable):
            await attempt()
