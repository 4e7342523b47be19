"""Objects of large deltas: no more bytes are taken than the signed message names."""

from __future__ import annotations

import pytest

from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import NotFound, ResourceExhausted, Unavailable
from swarm.learning import delta_store
from swarm.link import LinkOptions

BUCKET = "swarm-default-deltas"


async def test_an_object_comes_back_and_the_next_one_takes_its_place(
    server: EmbeddedServer,
) -> None:
    options = LinkOptions(servers=(server.url,))
    for data in (b"first" * 100_000, b"second"):
        await delta_store.put(options, BUCKET, "digits/1/key/delta-0", data)
        got = await delta_store.get(options, BUCKET, "digits/1/key/delta-0", len(data))
        assert got == data


async def test_an_object_larger_than_its_claim_is_not_fetched(server: EmbeddedServer) -> None:
    options = LinkOptions(servers=(server.url,))
    await delta_store.put(options, BUCKET, "digits/1/key/delta-0", bytes(1 << 20))
    with pytest.raises(ResourceExhausted, match="more than the 1000 bytes"):
        await delta_store.get(options, BUCKET, "digits/1/key/delta-0", 1000)


async def test_a_missing_object_or_store_is_an_error_that_names_it(server: EmbeddedServer) -> None:
    options = LinkOptions(servers=(server.url,))
    with pytest.raises(NotFound, match="delta-0"):
        await delta_store.get(options, BUCKET, "digits/1/key/delta-0", 10)
    await delta_store.put(options, BUCKET, "digits/1/key/delta-1", b"x")
    with pytest.raises(NotFound, match="delta-0"):
        await delta_store.get(options, BUCKET, "digits/1/key/delta-0", 10)


async def test_without_a_server_a_delta_is_not_stored_and_the_error_says_so() -> None:
    options = LinkOptions(servers=("nats://127.0.0.1:1",), connect_timeout=0.2)
    with pytest.raises(Unavailable):
        await delta_store.put(options, BUCKET, "digits/1/key/delta-0", b"x", timeout=0.5)
    with pytest.raises(Unavailable):
        await delta_store.get(options, BUCKET, "digits/1/key/delta-0", 1, timeout=0.5)
