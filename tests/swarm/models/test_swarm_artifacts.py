"""Artifacts in the object store: in chunks, as all NATS clients have them."""

from __future__ import annotations

import asyncio
import json
import random
from base64 import urlsafe_b64encode
from pathlib import Path

import nats
import pytest
from support.waiting import GENEROUS

from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import NotFound, Unavailable
from swarm.link import Link, LinkMessage, jetstream
from swarm.models.artifacts import BATCH, CHUNK, EVEN, ObjectStore
from swarm.subjects import api

pytestmark = pytest.mark.integration
LARGE = random.Random(1).randbytes(2 * BATCH * CHUNK + 17)


@pytest.fixture
def store(link: Link) -> ObjectStore:
    return ObjectStore(link, "swarm-test-models")


async def read(store: ObjectStore, name: str) -> bytes:
    return b"".join([chunk async for chunk in store.read(name)])


async def test_a_file_larger_than_a_batch_is_read_bit_for_bit_in_chunks(
    store: ObjectStore, tmp_path: Path
) -> None:
    file = tmp_path / "large"
    file.write_bytes(LARGE)
    await store.put("m/1/", {"file": file, "bytes": LARGE, "empty": b""})
    sizes = [len(chunk) async for chunk in store.read("m/1/file")]
    assert max(sizes) == CHUNK
    assert await read(store, "m/1/file") == LARGE
    assert await read(store, "m/1/bytes") == LARGE
    assert await read(store, "m/1/empty") == b""


async def test_other_nats_clients_read_and_write_the_same_objects(
    store: ObjectStore, server: EmbeddedServer
) -> None:
    await store.put("m/1/", {"ours": LARGE})
    client = await nats.connect(server.url)
    try:
        theirs = await client.jetstream().object_store(store.bucket)
        assert (await theirs.get("m/1/ours")).data == LARGE
        await theirs.put("m/1/theirs", LARGE)
        assert await read(store, "m/1/theirs") == LARGE
        await theirs.delete("m/1/theirs")
    finally:
        await client.close()
    with pytest.raises(NotFound, match="m/1/theirs"):
        await read(store, "m/1/theirs")


async def test_an_object_that_is_put_again_leaves_no_chunks_of_its_predecessor(
    store: ObjectStore, link: Link
) -> None:
    await store.put("m/1/", {"a": LARGE})
    await store.put("m/1/", {"a": b"short"})
    assert await read(store, "m/1/a") == b"short"
    state = (await jetstream.call(link, api("STREAM.INFO", f"OBJ_{store.bucket}")))["state"]
    assert state["messages"] == 4  # a chunk and the message about it, of it and of its recipe


async def test_an_object_with_a_chunk_missing_is_unavailable(
    store: ObjectStore, link: Link
) -> None:
    await store.put("m/1/", {"a": LARGE})
    await jetstream.call(
        link, api("STREAM.PURGE", f"OBJ_{store.bucket}"), {"filter": f"$O.{store.bucket}.C.>"}
    )
    with pytest.raises(Unavailable, match="push it again"):
        await read(store, "m/1/a")


async def test_a_server_that_ends_under_a_transfer_is_unavailable_at_once(
    store: ObjectStore, own_server: EmbeddedServer
) -> None:
    await store.put("m/1/", {"a": LARGE})
    transfer = store.read("m/1/a")
    await anext(transfer)
    await own_server.kill()
    async with asyncio.timeout(GENEROUS):
        with pytest.raises(Unavailable):
            async for _ in transfer:
                pass
        with pytest.raises(Unavailable):
            await store.put("m/1/", {"b": LARGE})


async def test_a_server_that_knows_no_batches_is_asked_for_one_message_at_a_time(
    link: Link, store: ObjectStore
) -> None:
    chunks = {7: b"first, ", 9: b"second"}

    def answer(message: LinkMessage) -> None:
        ask = json.loads(bytes(message.data))
        if "last_by_subj" in ask:
            about = {"size": sum(map(len, chunks.values())), "nuid": "n"}
            sequence, data = 10, json.dumps(about).encode()
        else:
            sequence = min(s for s in chunks if s >= ask["seq"])
            data = chunks[sequence]
        headers = f"NATS/1.0\r\nNats-Sequence: {sequence}\r\n\r\n".encode()
        link.publish(message.reply, data, headers=headers)

    link.subscribe(f"$JS.API.DIRECT.GET.OBJ_{store.bucket}", answer)
    assert await read(store, "any") == b"first, second"


async def test_a_part_of_an_object_is_read_bit_for_bit_by_its_recipe(
    store: ObjectStore, link: Link
) -> None:
    await asyncio.gather(store.put("m/1/", {"a": LARGE}), store.put("m/2/", {"b": LARGE[::-1]}))
    recipe = await store.recipe("m/1/", "a")
    assert recipe is not None
    assert recipe.size == len(LARGE)
    for begin, end in ((0, EVEN), (EVEN, len(LARGE)), (0, len(LARGE))):
        part = b"".join([chunk async for chunk in store.read_part(recipe, begin, end)])
        assert part == LARGE[begin:end]


async def test_what_another_client_put_in_its_place_has_no_recipe(
    store: ObjectStore, server: EmbeddedServer
) -> None:
    await store.put("m/1/", {"a": LARGE})
    client = await nats.connect(server.url)
    try:
        theirs = await client.jetstream().object_store(store.bucket)
        await theirs.put("m/1/a", LARGE[::-1])
        await theirs.put("m/1/b", LARGE)
        await store.put("m/1/", {"c": LARGE})
        await theirs.put("m/1/recipe/c", b"no recipe")
    finally:
        await client.close()
    for name in ("a", "b", "c"):
        assert await store.recipe("m/1/", name) is None
    assert await store.recipe("m/1/", "nothing") is None


@pytest.mark.parametrize(
    "document", [b"", b"[]", b"{}", b'{"nuid":1,"size":"x"}', b'{"nuid":"n","size":-1}', b"\xff"]
)
async def test_a_malformed_document_about_an_object_is_a_typed_error_and_is_replaced(
    store: ObjectStore, link: Link, document: bytes
) -> None:
    await store.put("m/1/", {"a": b"first"})
    about = f"$O.{store.bucket}.M.{urlsafe_b64encode(b'm/1/a').decode()}"
    await link.request(about, document, GENEROUS)
    with pytest.raises(Unavailable, match="push it again"):
        await read(store, "m/1/a")
    assert await store.lacking("m/1/", ["a"]) == ["a"]
    await store.put("m/1/", {"a": b"second"})
    assert await read(store, "m/1/a") == b"second"
