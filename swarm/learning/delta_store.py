"""Deltas that are too large for a message, in an object store that forgets them."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import ObjectStoreConfig
from nats.js.object_store import ObjectStore

from swarm.errors import NotFound, ResourceExhausted, Unavailable
from swarm.learning import nats_client as control
from swarm.link import LinkOptions

KEPT_FOR = 600.0  # seconds
TIMEOUT = 30.0  # seconds for one object


class _Bounded(io.BytesIO):
    """Takes no more bytes than its owner expects."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def write(self, data: object) -> int:
        assert isinstance(data, bytes | bytearray | memoryview)
        if self.tell() + len(data) > self._most:
            raise ResourceExhausted(f"an object of more than {self._most} bytes")
        return super().write(data)


async def put(
    options: LinkOptions, bucket: str, name: str, data: bytes, timeout: float = TIMEOUT
) -> None:
    """Store an object, in place of an older one of this name; timeout: seconds for all of it.

    Raises `Unavailable`.
    """
    try:
        async with asyncio.timeout(timeout), _stream(options) as stream:
            try:
                store: ObjectStore = await stream.object_store(bucket)
            except nats.js.errors.NotFoundError:
                config = ObjectStoreConfig(ttl=KEPT_FOR)
                store = await stream.create_object_store(bucket, config)
            await store.put(name, data)
    except control.NETWORK_ERRORS as error:
        raise Unavailable(f"the object store did not take a delta: {error!r}") from error


async def get(
    options: LinkOptions, bucket: str, name: str, most: int, timeout: float = TIMEOUT
) -> bytes:
    """An object of at most `most` bytes; timeout: seconds for all of it.

    Raises `NotFound`, `ResourceExhausted` for a larger one, `Unavailable`.
    """
    sink = _Bounded(most)
    try:
        async with asyncio.timeout(timeout), _stream(options) as stream:
            store: ObjectStore = await stream.object_store(bucket)
            info = await store.get_info(name)
            if (info.size or 0) > most:
                raise ResourceExhausted(f"{name} has {info.size} bytes, {most} are expected")
            await store.get(name, writeinto=sink)
    except nats.js.errors.NotFoundError:
        raise NotFound(f"there is no object {name!r} in {bucket}") from None
    except control.NETWORK_ERRORS as error:
        raise Unavailable(f"the object store did not answer: {error!r}") from error
    return sink.getvalue()


@asynccontextmanager
async def _stream(options: LinkOptions) -> AsyncIterator[JetStreamContext]:
    """A client's JetStream. Connecting tries for ever, so its caller bounds it."""
    client = await control.connect(options, "swarm-deltas")
    try:
        yield client.jetstream(timeout=5, domain=options.domain or None)
    finally:
        await control.close(client)
