"""Signed manifests and desired state on a real server, and the attacks that rights do not stop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from manifests import manifest
from support.waiting import GENEROUS

from swarm.errors import InvalidArgument, NotFound, Unavailable, Untrusted
from swarm.link import Link, jetstream
from swarm.models.registry import Registry
from swarm.routing import BadDesiredState
from swarm.security.identity import Identity
from swarm.security.signed_entries import HEADER, Verifier, signature_in
from swarm.security.trusted_keys import TrustedKeys, trust
from swarm.subjects import Subjects

pytestmark = pytest.mark.integration
SUBJECTS = Subjects("test")
BUCKET = SUBJECTS.config_bucket
SERVE = f"$KV.{BUCKET}.serve.m"


def signature_of(headers: bytes) -> dict[str, str]:
    """The signature of a stored value, to store it with another one."""
    signature = signature_in(headers)
    assert signature is not None
    return {HEADER: signature.text()}


@pytest.fixture
def signer() -> Identity:
    return Identity.make()


@pytest.fixture
def keys(tmp_path: Path, signer: Identity) -> TrustedKeys:
    trust(signer.public, "operator", tmp_path / "trusted")
    return TrustedKeys([tmp_path / "trusted"])


@pytest.fixture
def operator(link: Link, signer: Identity, keys: TrustedKeys) -> Registry:
    return Registry(link, SUBJECTS, signer, Verifier(keys))


@pytest.fixture
def node(link: Link, keys: TrustedKeys) -> Registry:
    """As a node reads it."""
    return Registry(link, SUBJECTS, verifier=Verifier(keys))


async def test_a_node_takes_what_the_operator_has_signed(
    operator: Registry, node: Registry
) -> None:
    for version in "12":
        await operator.push(manifest(version), {"a": b"x"})
    assert await node.manifest("m", "1") == manifest("1")
    assert await node.serving("m") == "1"
    await operator.promote("m", "2")
    assert await node.serving("m") == "2"
    assert await operator.rollback("m") == "1"
    assert await node.serving("m") == "1"


async def test_what_nobody_has_signed_is_refused_before_it_is_parsed(
    link: Link, operator: Registry, node: Registry
) -> None:
    await operator.prepare()
    for key in ("serve.m", "models.m.1"):
        await jetstream.kv_put(link, BUCKET, key, b"\xff no JSON {")
    with pytest.raises(Untrusted, match="unsigned"):
        await node.desired("m")
    with pytest.raises(Untrusted, match="unsigned"):
        await node.info("m", "1")
    with pytest.raises(BadDesiredState):  # who trusts everybody parses it
        await Registry(link, SUBJECTS).desired("m")


async def attacked(link: Link, asked: str, body: bytes) -> None:
    """Send a question whose answer the server stores as desired state: no right stops that."""
    changed = asyncio.Event()
    sid = link.subscribe(f"{SUBJECTS.root}.config.>", lambda _: changed.set())
    await link.flush(2.0)
    link.publish(asked, body, SERVE)
    await asyncio.wait_for(changed.wait(), GENEROUS)
    link.unsubscribe(sid)


async def refused(reader: Registry) -> str:
    """Why what is stored is not believed, by who serves version 2 all the same."""
    present = await reader.in_force("m")
    assert present is not None
    assert present.version == "2"
    return present.refused


async def test_desired_state_that_is_spoilt_gives_way_to_the_last_that_is_believed(
    link: Link, operator: Registry, node: Registry, keys: TrustedKeys
) -> None:
    await operator.push(manifest("1"), {})
    await operator.push(manifest("2"), {})
    first, _, headers = await jetstream.kv_message(link, BUCKET, "serve.m")
    await operator.promote("m", "2")
    assert await refused(node) == ""

    def new() -> Registry:
        return Registry(link, SUBJECTS, verifier=Verifier(keys))

    # The stream's own description, as a value.
    await attacked(link, f"$JS.API.STREAM.INFO.KV_{BUCKET}", b"")
    for reader in (node, new()):
        assert "unsigned" in await refused(reader)
    assert "refused" in await refused(Registry(link, SUBJECTS)), "who trusts everybody parses it"
    # Another key's value, with its signature. The server stores no answer of ours there: it has the
    # header of the revision that was expected when it was written.
    value, _, of_manifest = await jetstream.kv_message(link, BUCKET, "models.m.1")
    assert value is not None
    assert b"Nats-Expected-Last-Subject-Sequence: " in of_manifest
    await jetstream.kv_put(link, BUCKET, "serve.m", value, more=signature_of(of_manifest))
    for reader in (node, new()):
        assert "altered" in await refused(reader)
    await jetstream.kv_put(link, BUCKET, "serve.m", b"", more={"KV-Operation": "DEL"})
    for reader in (node, new()):
        assert "removed" in await refused(reader)
    # The key's own earlier value, with its signature: a rollback without the right to one.
    assert first is not None
    await jetstream.kv_put(link, BUCKET, "serve.m", first, more=signature_of(headers))
    assert "older" in await refused(node)
    await operator.promote("m", "2")
    for reader in (node, new()):
        assert await refused(reader) == ""


async def test_a_spoilt_manifest_gives_way_to_the_one_before_and_stays_immutable(
    link: Link, operator: Registry, node: Registry
) -> None:
    await operator.push(manifest("1"), {})
    for spoilt in (b"{}", manifest("2")):
        await jetstream.kv_put(link, BUCKET, "models.m.1", spoilt)
        for reader in (node, Registry(link, SUBJECTS)):
            assert await reader.manifest("m", "1") == manifest("1")
    with pytest.raises(InvalidArgument, match="versions are immutable"):
        await operator.push(another("1"), {})
    await operator.push(manifest("1"), {})
    stored = await jetstream.kv_get(link, BUCKET, "models.m.1")
    assert stored == manifest("1"), "a push mends it"


async def test_a_return_that_the_operator_signs_is_taken_by_a_node_that_saw_the_newer_version(
    operator: Registry, node: Registry
) -> None:
    for version in "12":
        await operator.push(manifest(version), {})
    await operator.promote("m", "2")
    assert await node.serving("m") == "2"
    await operator.promote("m", "1")
    assert await node.serving("m") == "1"


async def test_promotion_and_rollback_keep_policy_and_stickiness(operator: Registry) -> None:
    for version in "123":
        await operator.push(manifest(version), {})
    more = {"policy": "consistent-hash", "sticky": "session", "memory_bytes": 5}
    serve = [{"version": "1", "share": 90}, {"version": "2", "share": 10}]
    await operator.desire("m", {"serve": serve} | more)
    await operator.promote("m", "3")
    await operator.promote("m", "3")  # again: the way back stays
    desired = await operator.desired("m")
    assert desired == {"serve": [{"version": "3", "share": 100}], "previous": "1"} | more
    assert await operator.rollback("m") == "1"
    desired = await operator.desired("m")
    assert desired is not None
    assert {key: desired[key] for key in more} == more


async def test_nothing_of_a_desired_state_that_is_not_trusted_is_signed_by_the_next_promotion(
    link: Link, operator: Registry
) -> None:
    await operator.push(manifest("1"), {})
    forged = {"serve": [{"version": "1", "share": 100}], "policy": "random", "previous": "1"}
    await jetstream.kv_put(link, BUCKET, "serve.m", json.dumps(forged).encode())
    with pytest.raises(NotFound, match="no earlier version"):
        await operator.rollback("m")
    await operator.promote("m", "1")
    desired = await operator.desired("m")
    assert desired == {"serve": [{"version": "1", "share": 100}], "previous": ""}


async def test_two_promotions_at_the_same_time_both_happen_one_after_the_other(
    link: Link, signer: Identity, keys: TrustedKeys, operator: Registry, node: Registry
) -> None:
    for version in "123":
        await operator.push(manifest(version), {})
    second = Registry(link, SUBJECTS, signer, Verifier(keys))
    before = await asyncio.gather(operator.promote("m", "2"), second.promote("m", "3"))
    assert sorted(before) in (["1", "2"], ["1", "3"])
    assert await node.serving("m") in ("2", "3")


async def test_one_of_two_rollbacks_at_the_same_time_is_told_to_look_again(
    link: Link, signer: Identity, keys: TrustedKeys, operator: Registry
) -> None:
    for version in "12":
        await operator.push(manifest(version), {})
    await operator.promote("m", "2")
    second = Registry(link, SUBJECTS, signer, Verifier(keys))
    results = await asyncio.gather(
        operator.rollback("m"), second.rollback("m"), return_exceptions=True
    )
    refused = [result for result in results if isinstance(result, Unavailable)]
    assert len(refused) == 1, results
    assert "swarm model list" in str(refused[0])
    assert await operator.serving("m") == "1", "two rollbacks are not one forth and back"


async def test_an_unsigned_push_is_signed_by_pushing_the_same_again(
    link: Link, operator: Registry, node: Registry
) -> None:
    await Registry(link, SUBJECTS).push(manifest("1"), {})
    with pytest.raises(Untrusted):
        await node.manifest("m", "1")
    await operator.push(manifest("1"), {})
    assert await node.manifest("m", "1") == manifest("1")
    with pytest.raises(Untrusted):  # which version serves is another decision
        await node.desired("m")
    await operator.promote("m", "1")
    assert await node.serving("m") == "1"


def met(meeting: asyncio.Barrier) -> Callable[[object], Awaitable[None]]:
    """Both have looked, and neither has written."""

    async def wait(_: object) -> None:
        async with asyncio.timeout(GENEROUS):
            await meeting.wait()

    return wait


def another(version: str) -> bytes:
    """A manifest of the same version with other content."""
    return json.dumps(json.loads(manifest(version)) | {"extra": {"other": True}}).encode()


@pytest.mark.parametrize("spoilt", ["a PubAck", "another version's", "a learner's", "unsigned"])
async def test_a_spoiled_manifest_is_replaced_by_a_push_and_costs_no_version_number(
    link: Link, operator: Registry, node: Registry, spoilt: str
) -> None:
    await operator.push(manifest("1"), {})
    key = "models.m.2"
    if spoilt == "a PubAck":
        await jetstream.kv_put(link, BUCKET, key, b'{"stream": "x", "seq": 7}')
    elif spoilt == "another version's":
        _, _, headers = await jetstream.kv_message(link, BUCKET, "models.m.1")
        await jetstream.kv_put(link, BUCKET, key, manifest("1"), more=signature_of(headers))
    elif spoilt == "a learner's":
        stranger = Identity.make()
        await Registry(link, SUBJECTS, stranger).push(another("2"), {})
    else:
        await jetstream.kv_put(link, BUCKET, key, another("2"))
    await operator.push(manifest("2"), {})
    assert await node.manifest("m", "2") == manifest("2")


async def test_a_version_of_a_trusted_key_is_not_replaced(operator: Registry) -> None:
    await operator.push(manifest("1"), {})
    with pytest.raises(InvalidArgument, match="versions are immutable"):
        await operator.push(another("1"), {})
    assert await operator.manifest("m", "1") == manifest("1")


async def test_of_two_first_pushes_at_the_same_time_one_is_told_of_the_other(
    link: Link, operator: Registry, signer: Identity, keys: TrustedKeys
) -> None:
    second = Registry(link, SUBJECTS, signer, Verifier(keys))

    async def pushed_meanwhile(_: object) -> None:
        await second.push(another("1"), {})

    with pytest.raises(Unavailable, match="others push m@1 at the same time"):
        await operator.push(manifest("1"), {}, prepare=pushed_meanwhile)
    assert await operator.manifest("m", "1") == another("1")
