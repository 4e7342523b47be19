"""Deltas that are too large for a message, in an object store that forgets them."""

from __future__ import annotations

import asyncio
import io

import nats.js.errors
from nats.js.api import ObjectStoreConfig
from nats.js.object_store import ObjectStore

from swarm.errors import NotFound, ResourceExhausted, Unavailable
from swarm.link import LinkOptions
from swarm.services import control

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


async def put(options: LinkOptions, bucket: str, name: str, data: bytes) -> None:
    """Store an object, in place of an older one of this name. Raises `Unavailable`."""
    client = await control.connect(options, "swarm-deltas")
    try:
        async with asyncio.timeout(TIMEOUT):
            stream = client.jetstream(timeout=5)
            try:
                store: ObjectStore = await stream.object_store(bucket)
            except nats.js.errors.NotFoundError:
                config = ObjectStoreConfig(ttl=KEPT_FOR)
                store = await stream.create_object_store(bucket, config)
            await store.put(name, data)
    except control.NETWORK_ERRORS as error:
        raise Unavailable(f"the object store did not take a delta: {error!r}") from error
    finally:
        await control.close(client)


async def get(options: LinkOptions, bucket: str, name: str, most: int) -> bytes:
    """An object of at most `most` bytes.

    Raises `NotFound`, `ResourceExhausted` for a larger one, `Unavailable`.
    """
    client = await control.connect(options, "swarm-deltas")
    sink = _Bounded(most)
    try:
        async with asyncio.timeout(TIMEOUT):
            stream = client.jetstream(timeout=5)
            store: ObjectStore = await stream.object_store(bucket)
            info = await store.get_info(name)
            if (info.size or 0) > most:
                raise ResourceExhausted(f"{name} has {info.size} bytes, {most} are expected")
            await store.get(name, writeinto=sink)
    except nats.js.errors.NotFoundError:
        raise NotFound(f"there is no object {name!r} in {bucket}") from None
    except control.NETWORK_ERRORS as error:
        raise Unavailable(f"the object store did not answer: {error!r}") from error
    finally:
        await control.close(client)
    return sink.getvalue()
