"""Signed manifests and desired state on a real server, and the attacks that rights do not stop."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from manifests import manifest
from real_server import Links

from swarm.documents import Copies
from swarm.errors import ApiError, InvalidArgument, NotFound, Unavailable, Untrusted
from swarm.link import Link, jetstream
from swarm.models.registry import Registry
from swarm.routing import BadDesiredState
from swarm.security.identity import Identity
from swarm.security.signed_entries import HEADER, Highest, Verifier, sign_entry, signature_in
from swarm.security.trusted_keys import TrustedKeys, distrust, trust
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


async def test_a_clock_that_was_ahead_once_stops_no_later_promote_when_the_store_is_lost(
    link: Link,
    operator: Registry,
    signer: Identity,
    keys: TrustedKeys,
    node: Registry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, now_ns, year = time.time, time.time_ns, 365 * 86400
    with monkeypatch.context() as ahead:
        ahead.setattr(time, "time", lambda: now() + year)
        ahead.setattr(time, "time_ns", lambda: now_ns() + year * 10**9)
        for version in "12":
            await operator.push(manifest(version), {})
        await operator.promote("m", "2")
    assert await node.serving("m") == "2"
    await jetstream.call(link, f"$JS.API.STREAM.DELETE.KV_{BUCKET}")
    later = Registry(link, SUBJECTS, signer, Verifier(keys))
    for version in "12":
        await later.push(manifest(version), {})
    await later.promote("m", "1")
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


async def test_a_manifest_under_another_versions_key_is_refused(
    link: Link, operator: Registry, node: Registry
) -> None:
    await operator.push(manifest("1"), {})
    _, _, headers = await jetstream.kv_message(link, BUCKET, "models.m.1")
    await jetstream.kv_put(link, BUCKET, "models.m.2", manifest("1"), more=signature_of(headers))
    with pytest.raises(Untrusted, match="altered"):
        await node.manifest("m", "2")


async def test_a_value_of_another_mesh_with_the_same_operator_is_refused(
    link: Link, signer: Identity, keys: TrustedKeys, operator: Registry, node: Registry
) -> None:
    other = Subjects("other")
    await Registry(link, other, signer, Verifier(keys)).push(manifest("1"), {})
    await operator.push(manifest("1"), {})
    value, _, headers = await jetstream.kv_message(link, other.config_bucket, "serve.m")
    assert value is not None
    await jetstream.kv_put(link, BUCKET, "serve.n", value, more=signature_of(headers))
    with pytest.raises(Untrusted, match="altered"):
        await node.desired("n")


async def attacked(link: Link, asked: str, body: bytes) -> None:
    """Send a question whose answer the server stores as desired state: no right stops that."""
    changed = asyncio.Event()
    sid = link.subscribe(f"{SUBJECTS.root}.config.>", lambda _: changed.set())
    await link.flush(2.0)
    link.publish(asked, body, SERVE)
    await asyncio.wait_for(changed.wait(), 5.0)
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


async def test_an_older_revision_is_not_taken_below_the_highest_counter_that_was_seen(
    link: Link, operator: Registry, keys: TrustedKeys
) -> None:
    await operator.push(manifest("1"), {})
    value, _, headers = await jetstream.kv_message(link, BUCKET, "serve.m")
    assert value is not None
    signature = signature_in(headers)
    assert signature is not None
    await jetstream.kv_put(link, BUCKET, "serve.m", b"spoilt")
    seen = f"{BUCKET}/serve.m"
    for highest, serves in ((signature.counter, True), (signature.counter + 1, False)):
        reader = Registry(link, SUBJECTS, verifier=Verifier(keys, Highest({seen: highest})))
        if serves:
            assert await reader.serving("m") == "1"
        else:
            with pytest.raises(Untrusted, match="unsigned"):
                await reader.serving("m")


async def test_a_newer_value_that_is_signed_is_never_passed_by(
    link: Link, signer: Identity, operator: Registry, node: Registry
) -> None:
    await operator.push(manifest("1"), {})
    signed = sign_entry(signer, BUCKET, "serve.m", 2**62, b"no JSON")
    await jetstream.kv_put(link, BUCKET, "serve.m", b"no JSON", more={HEADER: signed.text()})
    with pytest.raises(BadDesiredState):
        await node.serving("m")


async def test_a_value_that_was_spoilt_again_and_again_is_found_as_far_as_the_bucket_goes_back(
    link: Link,
    operator: Registry,
    node: Registry,
    keys: TrustedKeys,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads: list[int] = []

    async def counted(
        link: Link, bucket: str, key: str, revision: int
    ) -> tuple[bytes | None, int, bytes]:
        reads.append(revision)
        return await before(link, bucket, key, revision)

    before = jetstream.kv_before
    monkeypatch.setattr(jetstream, "kv_before", counted)
    kept = Registry(link, SUBJECTS, None, Verifier(keys), Copies(tmp_path / "kept"))
    await operator.push(manifest("1"), {})
    assert await kept.serving("m") == "1"
    for number in range(jetstream.HISTORY - 1):
        await jetstream.kv_put(link, BUCKET, "serve.m", b"spoilt %d" % number)
    for _ in range(3):
        assert await node.serving("m") == "1"
    assert len(reads) == jetstream.HISTORY - 1, "and once alone"
    said = [record for record in caplog.records if "can be believed holds" in record.message]
    assert len(said) == 1
    await jetstream.kv_put(link, BUCKET, "serve.m", b"spoilt")
    with pytest.raises(Untrusted, match="unsigned"):
        await node.serving("m")
    assert await kept.serving("m") == "1", "from this host's disk"


async def test_what_is_believed_instead_is_believed_no_more_once_its_signer_is_not_trusted(
    link: Link, operator: Registry, node: Registry, signer: Identity, tmp_path: Path
) -> None:
    await operator.push(manifest("1"), {})
    await jetstream.kv_put(link, BUCKET, "serve.m", b"spoilt")
    assert await node.serving("m") == "1"
    distrust(signer.public, tmp_path / "trusted")
    with pytest.raises(Untrusted, match="unsigned"):
        await node.serving("m")


async def test_credentials_that_are_older_than_the_right_to_older_revisions_refuse_as_before(
    links: Links, signer: Identity, keys: TrustedKeys
) -> None:
    denied = f'{{publish: {{deny: "$JS.API.DIRECT.GET.KV_{BUCKET}"}}}}'
    users = (
        "authorization { users: [ {user: operator, password: p},"
        f" {{user: old, password: p, permissions: {denied}}} ] }}"
    )
    server = await links.server(users)
    at = server.url.removeprefix("nats://")
    writer = await links.connect(f"nats://operator:p@{at}")
    old = await links.connect(f"nats://old:p@{at}")
    await Registry(writer, SUBJECTS, signer, Verifier(keys)).push(manifest("1"), {})
    reader = Registry(old, SUBJECTS, verifier=Verifier(keys))
    assert await reader.serving("m") == "1"
    await jetstream.kv_put(writer, BUCKET, "serve.m", b"spoilt")
    with pytest.raises(Untrusted, match="unsigned"):
        await reader.serving("m")


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


async def test_a_stale_change_is_refused_by_the_server_itself(
    link: Link, operator: Registry
) -> None:
    await operator.push(manifest("1"), {})
    with pytest.raises(ApiError) as refused:
        await jetstream.kv_put(link, BUCKET, "serve.m", b"{}", after=1, more={"X": "y"})
    assert refused.value.err_code in jetstream.WRONG_REVISIONS


async def test_a_lost_value_is_signed_again_with_a_counter_that_nodes_take(
    link: Link, signer: Identity, keys: TrustedKeys, operator: Registry, node: Registry
) -> None:
    await operator.push(manifest("1"), {})
    assert await node.serving("m") == "1"
    await jetstream.call(link, f"$JS.API.STREAM.DELETE.KV_{BUCKET}")
    with pytest.raises(NotFound):
        await node.serving("m")
    again = Registry(link, SUBJECTS, signer, Verifier(keys))  # another process, which saw nothing
    await again.push(manifest("1"), {})
    assert await node.serving("m") == "1"


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
        async with asyncio.timeout(5.0):
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
