"""The object store of a mesh's artifacts: the registry pushes to it and fetches from it."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import nats.js.errors
from nats.aio.client import Client
from nats.js.object_store import ObjectStore

from swarm.errors import NotFound, Unavailable
from swarm.link import Link, LinkOptions, jetstream
from swarm.services import control
from swarm.subjects import api

T = TypeVar("T")

TRANSFER_TIMEOUT = 120.0  # seconds for one artifact
LOOK_UP_TIMEOUT = 5.0  # seconds for one question about an artifact


async def put(
    options: LinkOptions,
    bucket: str,
    prefix: str,
    files: Mapping[str, bytes],
    progress: Callable[[str, int], None],
) -> None:
    """Store `files` under `prefix`; calls `progress(name, bytes)` before each file.

    Raises `Unavailable`.
    """
    client = await control.connect(options, "swarm-registry")
    try:
        store = await _accepted(_store(client, bucket, create=True))
        for name, data in files.items():
            progress(name, len(data))
            await _accepted(store.put(prefix + name, data))
    finally:
        await control.close(client)


async def _accepted(call: Awaitable[T]) -> T:
    try:
        return await asyncio.wait_for(call, TRANSFER_TIMEOUT)
    except control.NETWORK_ERRORS as error:
        raise Unavailable(f"the object store did not take the model: {error!r}") from error


async def get(
    options: LinkOptions, bucket: str, prefix: str, names: Sequence[str]
) -> dict[str, bytes]:
    """The artifacts of these names under `prefix`, by name. Raises `NotFound`, `Unavailable`."""
    client = await control.connect(options, "swarm-registry")
    files: dict[str, bytes] = {}
    name = ""
    try:
        store = await _store(client, bucket, create=False)
        for name in names:
            # Without a sink, nats-py joins the chunks one by one, in quadratic time.
            sink = io.BytesIO()
            await asyncio.wait_for(store.get(prefix + name, writeinto=sink), TRANSFER_TIMEOUT)
            files[name] = sink.getvalue()
    except (nats.js.errors.ObjectNotFoundError, nats.js.errors.NotFoundError):
        model, version, _ = prefix.split("/")
        raise NotFound(f"{model}@{version} lacks the file {name!r} in this mesh") from None
    except control.NETWORK_ERRORS as error:
        raise Unavailable(f"the object store did not answer: {error!r}") from error
    finally:
        await control.close(client)
    return files


async def lacking(link: Link, bucket: str, prefix: str, names: Sequence[str]) -> list[str]:
    """Which of these artifacts the object store has not, or not with all their chunks.

    By counts alone: nothing is read. Raises `Unavailable`.
    """
    client = await control.connect(link.options, "swarm-registry")
    missing = []
    try:
        store = await _store(client, bucket, create=False)
        for name in names:
            try:
                info = await asyncio.wait_for(store.get_info(prefix + name), LOOK_UP_TIMEOUT)
                chunks = f"$O.{bucket}.C.{info.nuid}"
                doc = await jetstream.call(
                    link, api("STREAM.INFO", f"OBJ_{bucket}"), {"subjects_filter": chunks}
                )
                found = (doc["state"].get("subjects") or {}).get(chunks, 0)
            except nats.js.errors.NotFoundError:
                found = -1
            if found < 0 or found != info.chunks:
                missing.append(name)
    except NotFound:
        return list(names)
    except control.NETWORK_ERRORS as error:
        raise Unavailable(f"the object store did not answer: {error!r}") from error
    finally:
        await control.close(client)
    return missing


async def _store(client: Client, bucket: str, create: bool) -> ObjectStore:
    stream = client.jetstream(timeout=5)
    try:
        found: ObjectStore = await stream.object_store(bucket)
        return found
    except (nats.js.errors.BucketNotFoundError, nats.js.errors.NotFoundError):
        if not create:
            raise NotFound(f"this mesh has no models yet: no bucket {bucket!r}") from None
        made: ObjectStore = await stream.create_object_store(bucket)
        return made
