"""Signed documents of a key store: what is believed of a key, whoever writes to it.

`Promises` holds for documents with a verifier and for those without one; each kind of document that
a mesh has is a user of the same class.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from real_server import Links

from nodes.up.embedded_server import EmbeddedServer
from swarm.documents import Copies, SignedDocuments
from swarm.errors import InvalidArgument, SwarmError, Unavailable, Untrusted
from swarm.link import Link, jetstream
from swarm.security.identity import Identity
from swarm.security.signed_entries import HEADER, Highest, Verifier, sign_entry, signature_in
from swarm.security.trusted_keys import TrustedKeys, distrust, trust

pytestmark = pytest.mark.integration
BUCKET = "swarm-test-config"
KEY = "number.m"
Documents = SignedDocuments[int]


def number(key: str, data: bytes) -> int:
    """Of a document of these tests."""
    try:
        return int(data)
    except ValueError:
        raise InvalidArgument(f"{key} is no number") from None


@pytest.fixture
def signer() -> Identity:
    return Identity.make()


@pytest.fixture
def keys(tmp_path: Path, signer: Identity) -> TrustedKeys:
    trust(signer.public, "operator", tmp_path / "trusted")
    return TrustedKeys([tmp_path / "trusted"])


async def put(documents: Documents, value: int, key: str = KEY) -> None:
    assert await documents.write(key, b"%d" % value, await documents.read(key))


@pytest.fixture
async def bucket(link: Link) -> str:
    await jetstream.ensure_bucket(link, BUCKET, "swarm.test.config")
    return BUCKET


@pytest.mark.parametrize("checks", [True, False], ids=["signed", "unsigned"])
class TestPromises:
    @pytest.fixture
    def new(
        self, link: Link, bucket: str, signer: Identity, keys: TrustedKeys, checks: bool
    ) -> Callable[[], Documents]:
        """Another process, which has seen nothing yet."""
        by = (signer, Verifier(keys)) if checks else (None, None)
        return lambda: SignedDocuments(link, bucket, number, *by)

    async def test_a_document_is_what_was_written_last(self, new: Callable[[], Documents]) -> None:
        documents = new()
        assert (await documents.read(KEY)).believed() is None
        for value in (1, 2):
            await put(documents, value)
            for reader in (documents, new()):
                found = await reader.read(KEY)
                assert (found.believed(), found.data) == (value, b"%d" % value)
                assert found.refusal is None

    async def test_of_two_who_read_the_same_the_first_writes(
        self, new: Callable[[], Documents]
    ) -> None:
        one, other = new(), new()
        await put(one, 1)
        seen = await one.read(KEY), await other.read(KEY)
        assert await one.write(KEY, b"2", seen[0])
        assert not await other.write(KEY, b"3", seen[1])
        assert (await other.read(KEY)).document == 2

    async def test_a_document_that_is_spoilt_gives_way_to_the_one_before_and_is_mended(
        self, new: Callable[[], Documents], link: Link
    ) -> None:
        documents = new()
        await put(documents, 7)
        for spoilt in (b"no number", b'{"stream": "x", "seq": 7}'):
            newest = await jetstream.kv_put(link, BUCKET, KEY, spoilt)
        for reader in (documents, new()):
            found = await reader.read(KEY)
            assert (found.believed(), found.revision) == (7, newest)
            assert isinstance(found.refusal, SwarmError)
        await put(documents, 8)
        found = await new().read(KEY)
        assert (found.document, found.refusal) == (8, None)

    async def test_where_nothing_can_be_believed_it_says_why_and_the_next_one_is_taken(
        self, new: Callable[[], Documents], link: Link
    ) -> None:
        await jetstream.kv_put(link, BUCKET, KEY, b"no number")
        found = await new().read(KEY)
        with pytest.raises((InvalidArgument, Untrusted)):
            found.believed()
        await put(new(), 1)
        assert (await new().read(KEY)).believed() == 1

    async def test_what_was_spoilt_again_and_again_is_found_as_far_as_the_bucket_goes_back(
        self,
        new: Callable[[], Documents],
        link: Link,
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
        documents = new()
        await put(documents, 1)
        for count in range(jetstream.HISTORY - 1):
            await jetstream.kv_put(link, BUCKET, KEY, b"spoilt %d" % count)
        for _ in range(3):
            assert (await documents.read(KEY)).believed() == 1
        assert len(reads) == jetstream.HISTORY - 1, "and once alone"
        said = [record for record in caplog.records if "can be believed holds" in record.message]
        assert len(said) == 1
        await jetstream.kv_put(link, BUCKET, KEY, b"spoilt")
        assert (await documents.read(KEY)).document is None

    async def test_credentials_that_are_older_than_the_right_to_older_revisions_refuse_as_before(
        self, links: Links, signer: Identity, keys: TrustedKeys, checks: bool
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
        await jetstream.ensure_bucket(writer, BUCKET, "swarm.test.config")
        by = (signer, Verifier(keys)) if checks else (None, None)
        await put(SignedDocuments(writer, BUCKET, number, *by), 1)
        reader = SignedDocuments(old, BUCKET, number, None, by[1])
        assert (await reader.read(KEY)).believed() == 1
        await jetstream.kv_put(writer, BUCKET, KEY, b"spoilt")
        assert (await reader.read(KEY)).document is None


@pytest.fixture
def operator(link: Link, bucket: str, signer: Identity, keys: TrustedKeys) -> Documents:
    return SignedDocuments(link, bucket, number, signer, Verifier(keys))


@pytest.fixture
def node(link: Link, bucket: str, keys: TrustedKeys) -> Documents:
    """As a node reads them."""
    return SignedDocuments(link, bucket, number, None, Verifier(keys))


async def stored(link: Link, key: str = KEY, bucket: str = BUCKET) -> tuple[bytes, dict[str, str]]:
    """A value, and the header with its signature, to store it elsewhere."""
    value, _, headers = await jetstream.kv_message(link, bucket, key)
    signature = signature_in(headers)
    assert value is not None
    assert signature is not None
    return value, {HEADER: signature.text()}


async def test_a_document_of_another_key_or_bucket_is_not_believed(
    link: Link, operator: Documents, node: Documents, signer: Identity, keys: TrustedKeys
) -> None:
    await put(operator, 1, "number.other")
    await jetstream.ensure_bucket(link, "swarm-other-config", "swarm.other.config")
    others = SignedDocuments(link, "swarm-other-config", number, signer, Verifier(keys))
    await put(others, 1)
    for value, header in (
        await stored(link, "number.other"),
        await stored(link, bucket="swarm-other-config"),
    ):
        await jetstream.kv_put(link, BUCKET, KEY, value, more=header)
        with pytest.raises(Untrusted, match="altered"):
            (await node.read(KEY)).believed()


async def test_a_document_that_was_replaced_or_removed_by_nobody_who_signs_holds(
    link: Link, operator: Documents, node: Documents
) -> None:
    await put(operator, 1)
    first, header = await stored(link)
    await put(operator, 2)
    assert (await node.read(KEY)).believed() == 2
    for value, more, why in (
        (b"3", {}, "unsigned"),
        (b"", {"KV-Operation": "DEL"}, "removed"),
        (first, header, "older"),
    ):
        await jetstream.kv_put(link, BUCKET, KEY, value, more=more)
        found = await node.read(KEY)
        assert found.document == 2
        assert why in str(found.refusal)


async def test_an_older_revision_is_not_taken_below_the_highest_counter_that_was_seen(
    link: Link, operator: Documents, keys: TrustedKeys
) -> None:
    await put(operator, 1)
    counter = (await operator.read(KEY)).counter
    await jetstream.kv_put(link, BUCKET, KEY, b"spoilt")
    for highest, believed in ((counter, 1), (counter + 1, None)):
        verifier = Verifier(keys, Highest({f"{BUCKET}/{KEY}": highest}))
        found = await SignedDocuments(link, BUCKET, number, None, verifier).read(KEY)
        assert found.document == believed
        assert "unsigned" in str(found.refusal)


async def test_a_newer_document_that_is_signed_is_never_passed_by(
    link: Link, signer: Identity, operator: Documents, node: Documents
) -> None:
    await put(operator, 1)
    signed = sign_entry(signer, BUCKET, KEY, 2**62, b"no number")
    await jetstream.kv_put(link, BUCKET, KEY, b"no number", more={HEADER: signed.text()})
    found = await node.read(KEY)
    assert (found.data, found.counter) == (b"no number", 2**62)
    with pytest.raises(InvalidArgument):
        found.believed()


async def test_what_is_believed_instead_is_believed_no_more_once_its_signer_is_not_trusted(
    link: Link, operator: Documents, node: Documents, signer: Identity, tmp_path: Path
) -> None:
    await put(operator, 1)
    await jetstream.kv_put(link, BUCKET, KEY, b"spoilt")
    assert (await node.read(KEY)).believed() == 1
    distrust(signer.public, tmp_path / "trusted")
    with pytest.raises(Untrusted, match="unsigned"):
        (await node.read(KEY)).believed()


async def test_a_lost_document_is_signed_again_with_a_counter_that_readers_take(
    link: Link,
    operator: Documents,
    signer: Identity,
    keys: TrustedKeys,
    node: Documents,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though the clock of the signer was ahead once."""
    now, now_ns, year = time.time, time.time_ns, 365 * 86400
    with monkeypatch.context() as ahead:
        ahead.setattr(time, "time", lambda: now() + year)
        ahead.setattr(time, "time_ns", lambda: now_ns() + year * 10**9)
        for value in (1, 2):
            await put(operator, value)
    assert (await node.read(KEY)).believed() == 2
    await jetstream.call(link, f"$JS.API.STREAM.DELETE.KV_{BUCKET}")
    assert (await node.read(KEY)).believed() is None
    await jetstream.ensure_bucket(link, BUCKET, "swarm.test.config")
    again = SignedDocuments(link, BUCKET, number, signer, Verifier(keys))
    await put(again, 3)
    assert (await node.read(KEY)).believed() == 3


def test_a_copy_is_what_was_saved_last(tmp_path: Path) -> None:
    kept = Copies(tmp_path / "new")
    assert kept.load("b", "k") is None
    for value, headers in ((b"one", b"NATS/1.0\r\n\r\n"), (b"", b""), (b"two", b"h")):
        kept.save("b", "k", value, headers)
        assert Copies(tmp_path / "new").load("b", "k") == (value, headers)
    assert kept.load("b", "other") is None
    assert len(list((tmp_path / "new").iterdir())) == 1, "nothing half written stays"


async def test_documents_of_a_server_that_is_away_are_read_from_disk_if_the_signature_is_good(
    own_server: EmbeddedServer, links: Links, signer: Identity, keys: TrustedKeys, tmp_path: Path
) -> None:
    link = await links.connect(own_server.url)
    await jetstream.ensure_bucket(link, BUCKET, "swarm.test.config")
    await put(SignedDocuments(link, BUCKET, number, signer, Verifier(keys)), 17)

    def reader(folder: str = "kept") -> Documents:
        copies = Copies(tmp_path / folder)
        return SignedDocuments(link, BUCKET, number, None, Verifier(keys), copies)

    assert (await reader().read(KEY)).believed() == 17
    await own_server.kill()
    assert (await reader().read(KEY)).believed() == 17
    with pytest.raises(Unavailable):
        await reader().read("number.other")
    with pytest.raises(Unavailable):
        await reader("empty").read(KEY)
    for path in (tmp_path / "kept").iterdir():
        path.write_bytes(path.read_bytes().replace(b"17", b"18"))
    with pytest.raises(Untrusted):
        await reader().read(KEY)
