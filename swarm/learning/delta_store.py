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

    Raises `Unavailable`, `NotAdmitted` for a file of keys that cannot be used.
    """
    async with _store(options, bucket, timeout) as store:
        await store.put("", {name: data})


async def get(
    options: LinkOptions, bucket: str, name: str, most: int, timeout: float = TIMEOUT
) -> bytes:
    """An object of at most `most` bytes; timeout: seconds for all of it.

    Raises `NotFound`, `ResourceExhausted` for a larger one, and as `put`.
    """
    data = bytearray()
    async with _store(options, bucket, timeout) as store:
        async for chunk in store.read(name):
            data += chunk
            if len(data) > most:
                raise ResourceExhausted(f"{name} has more than the {most} bytes that are expected")
    return bytes(data)


@asynccontextmanager
async def _store(options: LinkOptions, bucket: str, timeout: float) -> AsyncIterator[ObjectStore]:
    link = Link(replace(options, name=f"{options.name}-deltas", inbox=f"{options.inbox}c"))
    running = asyncio.create_task(link.run(), name="large deltas")
    try:
        async with asyncio.timeout(timeout):
            await link.ready()
            yield ObjectStore(link, bucket, KEPT_FOR)
    except TimeoutError:
        text = f"the object store of large deltas did not answer within {timeout:g} s"
        raise Unavailable(text) from None
    finally:
        await link.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
