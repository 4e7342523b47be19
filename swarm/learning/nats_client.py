"""A nats-py client, for the seldom work that the data link does not do: large deltas' store."""

from __future__ import annotations

import asyncio
import logging
from base64 import b64encode
from typing import Any

import nats.errors
from nats.aio.client import Client

from swarm.errors import Unavailable
from swarm.link import LinkOptions
from swarm.link.access import signer_of, tls_context
from swarm.link.session import without_credentials
from swarm.periodic import BEAT

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
        async with asyncio.timeout(CLOSE_TIMEOUT):
            await client.close()
    except NETWORK_ERRORS as error:
        log.info("a client was dropped: %r", error)
