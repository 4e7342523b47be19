"""Deltas that are too large for a message, in an object store that forgets them.

The store is reached by a connection of its own: a delta of hundreds of megabytes is seldom, and
does not stand before the features on the node's data link.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from swarm.errors import ResourceExhausted, Unavailable
from swarm.link import Link, LinkOptions
from swarm.models.artifacts import ObjectStore

KEPT_FOR = 600.0  # seconds
TIMEOUT = 30.0  # seconds for one object


async def put(
    options: LinkOptions, bucket: str, name: str, data: bytes, timeout: float = TIMEOUT
) -> None:
    """Store an object, in place of an older one of this name; timeout: seconds for all of it.

    Raises `Unavailable`, `NotAdmitted` where the server refuses who connects.
    """
    async with _store(options, bucket, timeout) as store:
        await store.put("", {name: data})


async def get(
    options: LinkOptions, bucket: str, name: str, most: int, timeout: float = TIMEOUT
) -> bytes:
    """An object of at most `most` bytes; timeout: seconds for all of it.

    Raises `NotFound`, `ResourceExhausted` for a larger one, and as `put`.
    """
    received = bytearray()
    async with _store(options, bucket, timeout) as store:
        async for chunk in store.read(name):
            if len(received) + len(chunk) > most:
                raise ResourceExhausted(f"{name} has more than the {most} bytes that are expected")
            received += chunk
    return bytes(received)


@asynccontextmanager
async def _store(options: LinkOptions, bucket: str, timeout: float) -> AsyncIterator[ObjectStore]:
    link = Link(replace(options, inbox="", name="swarm-deltas"))
    running = asyncio.create_task(link.run(), name="deltas")
    try:
        async with asyncio.timeout(timeout):
            await link.ready()
            yield ObjectStore(link, bucket, KEPT_FOR)
    except TimeoutError:
        what = f"the object store of deltas did not do it within {timeout:g} s"
        raise Unavailable(f"{what}: {link.last_error}" if link.last_error else what) from None
    finally:
        await link.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
