"""The control connection: a nats-py client for services and the object store, used seldom.

A nats-py client can be beyond repair in three ways: almost any -ERR closes it for good, a reconnect
can hang on unsent bytes, and a callback that raises ends its read loop silently. `Control` watches
for each of them, builds a new client and calls `on_client` with it.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b64encode
from collections.abc import Awaitable, Callable
from typing import Any

import nats.errors
from nats.aio.client import Client

from swarm.errors import Unavailable
from swarm.link import LinkOptions
from swarm.link.access import signer_of, tls_context
from swarm.link.session import without_credentials
from swarm.periodic import BEAT, beat

log = logging.getLogger("swarm.control")

WATCH_EVERY = 5 * BEAT  # seconds
RECONNECT_LIMIT = 5.0  # seconds of reconnecting after which a fresh client is tried
CLOSE_TIMEOUT = 1.0  # seconds
RETRY_AFTER = 0.5  # seconds after a client that could not be set up
# The errors that nats-py raises where the network is at fault. uvloop raises RuntimeError for a
# write to a connection that has ended.
NETWORK_ERRORS = (nats.errors.Error, OSError, TimeoutError, RuntimeError)


class _Client(Client):
    """A nats-py client. public: its user's bare nkey, "" where it has a JWT, or no key."""

    def __init__(self, public: str) -> None:
        super().__init__()
        self._public_nkey = public or None  # which nats-py sets from its own reading of a seed


async def connect(options: LinkOptions, name: str) -> Client:
    """A nats-py client with settings that survive a flaky network.

    Raises `Unavailable` when no server answers, `NotAdmitted` for a file of keys that cannot be
    used.
    """
    kwargs: dict[str, Any] = {}
    signer = signer_of(options)
    if signer is not None:
        # nats-py would read the files itself, by a second library for the same signatures.
        kwargs["signature_cb"] = lambda nonce: b64encode(signer.sign(nonce.encode()))
        if signer.jwt:
            kwargs["user_jwt_cb"] = lambda: bytearray(signer.jwt.encode())
    elif options.token:
        kwargs["token"] = options.token
    elif options.user:
        kwargs |= {"user": options.user, "password": options.password}
    tls = tls_context(options)
    if tls is not None:
        kwargs |= {"tls": tls, "tls_handshake_first": options.tls_first}
    client = _Client("" if signer is None or signer.jwt else signer.public)

    async def on_error(error: Exception) -> None:
        log.debug("nats-py: %r", error)

    try:
        connecting: Any = client.connect  # whose annotations have whole seconds only
        await connecting(
            servers=list(options.servers),
            name=name,
            error_cb=on_error,
            inbox_prefix=f"{options.inbox}c".encode(),
            connect_timeout=options.connect_timeout,
            allow_reconnect=True,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.1,
            ping_interval=options.ping_interval,
            max_outstanding_pings=2,
            drain_timeout=2,
            **kwargs,
        )
        return client
    except NETWORK_ERRORS as error:
        servers = ", ".join(map(without_credentials, options.servers))
        raise Unavailable(f"no NATS server at {servers}: {error}") from error


async def close(client: Client) -> None:
    """Close a client, within `CLOSE_TIMEOUT`; raises no network errors."""
    try:
        # Closing flushes, which hangs where the peer is dead.
        await asyncio.wait_for(client.close(), CLOSE_TIMEOUT)
    except NETWORK_ERRORS as error:
        log.info("a client was dropped: %r", error)


class Control:
    """`run()` keeps one client alive; `on_client(client)` sets up what belongs to it."""

    def __init__(
        self,
        options: LinkOptions,
        name: str,
        on_client: Callable[[Client], Awaitable[None]],
    ) -> None:
        self._options = options
        self._name = name
        self._on_client = on_client
        self._client: Client | None = None
        self.rebuilt = 0
        """How often a client was beyond repair."""

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                try:
                    self._client = await connect(self._options, self._name)
                    await self._on_client(self._client)
                except (Unavailable, *NETWORK_ERRORS) as error:
                    log.info("control connection: %r", error)
                    await self._discard()
                    await asyncio.sleep(RETRY_AFTER)
                    continue
                await self._watch(self._client)
                self.rebuilt += 1
                await self._discard()
        finally:
            await self._discard()

    async def _watch(self, client: Client) -> None:
        """Returns when the client is beyond repair."""
        reconnecting = 0.0
        while not client.is_closed:
            await beat(WATCH_EVERY)
            # nats-py tells nobody that its read loop has ended.
            reading = client._reading_task  # noqa: SLF001  # nothing public says so
            if client.is_connected and reading is not None and reading.done():
                log.warning("the client's read loop has ended; building a new client")
                return
            reconnecting = 0.0 if client.is_connected else reconnecting + WATCH_EVERY
            if reconnecting >= RECONNECT_LIMIT:
                return

    async def _discard(self) -> None:
        client, self._client = self._client, None
        if client is not None and not client.is_closed:
            await close(client)
