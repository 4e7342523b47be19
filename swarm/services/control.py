"""The control connection: nats-py, for what is called seldom (services, object store).

Supervised: almost any -ERR closes a nats-py client for good, a reconnect can hang on
unsent bytes, and a callback that raises ends its read loop silently. A watchdog rebuilds
the client in each of these cases and calls `on_client` again with the new one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client

from swarm.errors import Unavailable
from swarm.link import LinkOptions
from swarm.link.session import without_credentials
from swarm.periodic import BEAT, beat

log = logging.getLogger("swarm.control")

WATCH_EVERY = 5 * BEAT  # seconds
RECONNECT_LIMIT = 5.0  # seconds of reconnecting after which a fresh client is tried
CLOSE_TIMEOUT = 1.0  # seconds
# What nats-py raises where the network is at fault. RuntimeError: uvloop's, when it writes to a
# connection that has ended; unmet, it ended the node (50 nodes in one process, all cores busy).
TROUBLE = (nats.errors.Error, OSError, TimeoutError, RuntimeError)


async def connect(options: LinkOptions, name: str) -> Client:
    """A nats-py client with settings that survive a flaky network.

    Raises `Unavailable` when no server answers.
    """
    kwargs: dict[str, Any] = {}
    if options.credentials:
        kwargs["user_credentials"] = options.credentials
    elif options.token:
        kwargs["token"] = options.token
    elif options.user:
        kwargs |= {"user": options.user, "password": options.password}
    if options.tls is not None:
        kwargs |= {"tls": options.tls, "tls_handshake_first": options.tls_first}

    async def on_error(error: Exception) -> None:
        log.debug("nats-py: %r", error)

    try:
        return await nats.connect(
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
    except TROUBLE as error:
        servers = ", ".join(map(without_credentials, options.servers))
        raise Unavailable(f"no NATS server at {servers}: {error}") from error


async def close(client: Client) -> None:
    """Close it in good time, or drop it. Raises nothing of `TROUBLE`."""
    try:
        # It flushes, and a dead peer makes that hang.
        await asyncio.wait_for(client.close(), CLOSE_TIMEOUT)
    except TROUBLE as error:
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
        self.client: Client | None = None
        self.rebuilt = 0

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                try:
                    self.client = await connect(self._options, self._name)
                    await self._on_client(self.client)
                except (Unavailable, *TROUBLE) as error:
                    log.info("control connection: %r", error)
                    await self._discard()
                    await asyncio.sleep(0.5)
                    continue
                await self._watch(self.client)
                self.rebuilt += 1
                await self._discard()
        finally:
            await self._discard()

    async def _watch(self, client: Client) -> None:
        """Returns when the client is beyond repair."""
        reconnecting = 0.0
        while not client.is_closed:
            await beat(WATCH_EVERY)
            reading = client._reading_task
            if client.is_connected and reading is not None and reading.done():
                log.warning("the client's read loop has ended; building a new client")
                return
            reconnecting = 0.0 if client.is_connected else reconnecting + WATCH_EVERY
            if reconnecting >= RECONNECT_LIMIT:
                return

    async def _discard(self) -> None:
        client, self.client = self.client, None
        if client is not None and not client.is_closed:
            await close(client)
