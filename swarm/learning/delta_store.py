"""Deltas that are too large for a message, in an object store that forgets them.

The store is reached by a nats-py client of its own: a delta of hundreds of megabytes is seldom, and
does not stand before the features on the node's data link.
"""

from __future__ import annotations

import asyncio
import io
import logging
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import ObjectStoreConfig
from nats.js.object_store import ObjectStore

from swarm.addresses import without_credentials
from swarm.errors import NotFound, ResourceExhausted, Unavailable
from swarm.link import LinkOptions
from swarm.link.access import signer_of, tls_context

log = logging.getLogger("swarm.learning")

KEPT_FOR = 600.0  # seconds
TIMEOUT = 30.0  # seconds for one object
CLOSE_TIMEOUT = 1.0  # seconds
# The errors that nats-py raises where the network is at fault. uvloop raises RuntimeError for a
# write to a connection that has ended.
NETWORK_ERRORS = (nats.errors.Error, OSError, TimeoutError, RuntimeError)


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

    Raises `Unavailable`, `NotAdmitted` for a file of keys that cannot be used.
    """
    try:
        async with asyncio.timeout(timeout), _jetstream(options) as stream:
            try:
                store: ObjectStore = await stream.object_store(bucket)
            except nats.js.errors.NotFoundError:
                config = ObjectStoreConfig(ttl=KEPT_FOR)
                store = await stream.create_object_store(bucket, config)
            await store.put(name, data)
    except NETWORK_ERRORS as error:
        raise Unavailable(f"the object store did not take a delta: {error!r}") from error


async def get(
    options: LinkOptions, bucket: str, name: str, most: int, timeout: float = TIMEOUT
) -> bytes:
    """An object of at most `most` bytes; timeout: seconds for all of it.

    Raises `NotFound`, `ResourceExhausted` for a larger one, and as `put`.
    """
    sink = _Bounded(most)
    try:
        async with asyncio.timeout(timeout), _jetstream(options) as stream:
            store: ObjectStore = await stream.object_store(bucket)
            info = await store.get_info(name)
            if (info.size or 0) > most:
                raise ResourceExhausted(f"{name} has {info.size} bytes, {most} are expected")
            await store.get(name, writeinto=sink)
    except nats.js.errors.NotFoundError:
        raise NotFound(f"there is no object {name!r} in {bucket}") from None
    except NETWORK_ERRORS as error:
        raise Unavailable(f"the object store did not answer: {error!r}") from error
    return sink.getvalue()


@asynccontextmanager
async def _jetstream(options: LinkOptions) -> AsyncIterator[JetStreamContext]:
    """A client's JetStream. Connecting tries for ever, so its caller bounds it."""
    client = await _connected(options)
    try:
        yield client.jetstream(timeout=5, domain=options.domain or None)
    finally:
        try:
            # Closing flushes, which hangs where the peer is dead.
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await client.close()
        except NETWORK_ERRORS as error:
            log.info("a client was dropped: %r", error)


class _Client(Client):
    """A nats-py client. public: its user's bare nkey, "" where it has a JWT, or no key."""

    def __init__(self, public: str) -> None:
        super().__init__()
        self._public_nkey = public or None  # which nats-py sets from its own reading of a seed


async def _connected(options: LinkOptions) -> Client:
    """A nats-py client with the link's credentials."""
    access: dict[str, Any] = {}
    signer = signer_of(options)
    if signer is not None:
        # nats-py would read the files itself, by a second library for the same signatures.
        access["signature_cb"] = lambda nonce: b64encode(signer.sign(nonce.encode()))
        if signer.jwt:
            access["user_jwt_cb"] = lambda: bytearray(signer.jwt.encode())
    elif options.token:
        access["token"] = options.token
    elif options.user:
        access |= {"user": options.user, "password": options.password}
    tls = tls_context(options)
    if tls is not None:
        access |= {"tls": tls, "tls_handshake_first": options.tls_first}
    client = _Client("" if signer is None or signer.jwt else signer.public)

    async def on_error(error: Exception) -> None:
        log.debug("nats-py: %r", error)

    connecting: Any = client.connect  # whose annotations have whole seconds only
    try:
        await connecting(
            servers=list(options.servers),
            name="swarm-deltas",
            error_cb=on_error,
            inbox_prefix=f"{options.inbox}c".encode(),
            connect_timeout=options.connect_timeout,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.1,
            ping_interval=options.ping_interval,
            **access,
        )
    except NETWORK_ERRORS as error:
        servers = ", ".join(map(without_credentials, options.servers))
        raise Unavailable(f"no NATS server at {servers}: {error}") from error
    return client
