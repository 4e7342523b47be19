"""The artifacts of a mesh, in an object store of NATS: written and read in chunks.

The format is the one of all NATS clients (ADR-20, nats-architecture-and-design): the chunks of an
object on one subject, and one message about it, so `nats object ls` shows them. A process has a
few chunks in memory at a time, however large an artifact is, and so has the server.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from swarm.errors import ApiError, NoResponders, NotFound, PermissionDenied, SwarmError, Unavailable
from swarm.ids import ulid
from swarm.link import Link, LinkMessage, jetstream
from swarm.subjects import api

CHUNK = 128 * 1024  # bytes of a message, as all NATS clients have them
BATCH = (
    4  # messages that are under way at a time: acks and gossip of the connection wait behind them
)
TIMEOUT = 10.0  # seconds without a message of a transfer
NO_MESSAGES, END_OF_BATCH = (b"404", b"408"), b"204"
_SEQUENCE = re.compile(rb"Nats-Sequence: *([0-9]+)")
_REPLACE_SUBJECT = b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n"

Source = bytes | Path
"""An artifact: its bytes, or the file that holds them."""


@dataclass(frozen=True)
class ObjectStore:
    """One bucket. All methods raise `Unavailable` when the server cannot be reached."""

    link: Link
    bucket: str

    @property
    def _stream(self) -> str:
        return f"OBJ_{self.bucket}"

    async def put(
        self,
        prefix: str,
        files: Mapping[str, Source],
        progress: Callable[[str, int], None] = lambda name, size: None,
        sent: Callable[[int], None] = lambda size: None,
    ) -> None:
        """Store `files` under `prefix`; calls `progress(name, bytes)` before each file, and
        `sent(bytes)` after each part that is stored.

        Raises `OSError` where a file cannot be read.
        """
        try:
            await jetstream.ensure_stream(
                self.link,
                {
                    "name": self._stream,
                    "subjects": [f"$O.{self.bucket}.C.>", f"$O.{self.bucket}.M.>"],
                    "storage": "file",
                    "discard": "new",
                    "allow_rollup_hdrs": True,
                    "allow_direct": True,
                },
            )
            for name, source in files.items():
                progress(name, source.stat().st_size if isinstance(source, Path) else len(source))
                await self._put(prefix + name, source, sent)
        except ApiError as error:
            raise Unavailable(f"the object store did not take the model: {error}") from error

    async def _put(self, name: str, source: Source, sent: Callable[[int], None]) -> None:
        about = f"$O.{self.bucket}.M.{_encoded(name)}"
        before = await self._about(name)
        unique = ulid()
        subject = f"$O.{self.bucket}.C.{unique}"
        digest, size, chunks = hashlib.sha256(), 0, 0
        for window in _windows(source):
            for chunk in window:
                digest.update(chunk)
                size += len(chunk)
            chunks += len(window)
            await self._publish_all(subject, window)
            sent(sum(map(len, window)))
        info = {
            "name": name,
            "options": {"max_chunk_size": CHUNK},
            "bucket": self.bucket,
            "nuid": unique,
            "size": size,
            "mtime": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            "chunks": chunks,
            "digest": f"SHA-256={urlsafe_b64encode(digest.digest()).decode()}",
        }
        await self._publish_all(about, [json.dumps(info).encode()], _REPLACE_SUBJECT)
        if before is not None and before.get("nuid"):
            stale = {"filter": f"$O.{self.bucket}.C.{before['nuid']}"}
            await jetstream.call(self.link, api("STREAM.PURGE", self._stream), stale)

    async def _publish_all(self, subject: str, messages: list[bytes], headers: bytes = b"") -> None:
        """Publish in order, then wait until each of them is stored."""
        answers = _Answers(self.link, subject)
        try:
            for message in messages:
                self.link.publish(subject, message, answers.subject, headers)
            for _ in messages:
                jetstream.parse((await answers.next()).data)
        finally:
            answers.close()

    async def read(self, name: str) -> AsyncIterator[bytes | memoryview]:
        """The bytes of an object, in chunks. Raises `NotFound`.

        The caller checks their hash: a transfer that the server cuts short ends in `Unavailable`,
        but nothing here knows which bytes are right.
        """
        about = await self._about(name)
        if about is None or about.get("deleted"):
            raise NotFound(f"this mesh has no artifact {name!r}")
        left, sequence = int(about["size"]), 1
        subject = f"$O.{self.bucket}.C.{about['nuid']}"
        while left > 0:
            received = await self._batch({"seq": sequence, "batch": BATCH, "next_by_subj": subject})
            for message in received:
                sequence = _sequence_of(message) + 1
                left -= len(message.data)
                yield message.data
            if not received:
                raise Unavailable(f"the object store holds a part of {name!r} only: push it again")

    async def lacking(self, prefix: str, names: Iterable[str]) -> list[str]:
        """Those of these objects that the bucket has not, or not with all their chunks.

        By counts alone: no chunk is read.
        """
        missing = []
        for name in names:
            about = await self._about(prefix + name)
            if about is None or await self._chunks_of(about) != about["chunks"]:
                missing.append(name)
        return missing

    async def _chunks_of(self, about: dict[str, Any]) -> int:
        subject = f"$O.{self.bucket}.C.{about['nuid']}"
        info = await jetstream.call(
            self.link, api("STREAM.INFO", self._stream), {"subjects_filter": subject}
        )
        return int((info["state"].get("subjects") or {}).get(subject, 0))

    async def _about(self, name: str) -> dict[str, Any] | None:
        """The document about an object, or None."""
        subject = f"$O.{self.bucket}.M.{_encoded(name)}"
        received = await self._batch({"last_by_subj": subject})
        return dict(json.loads(bytes(received[0].data))) if received else None

    async def _batch(self, ask: dict[str, Any]) -> list[LinkMessage]:
        """Stored messages, as the server gives them directly: at most `ask["batch"]`, or one.

        A server before 2.11 knows no batches and sends one message.
        """
        asked = self.link.in_domain(api("DIRECT.GET", self._stream))
        answers = _Answers(self.link, asked)
        received: list[LinkMessage] = []
        try:
            self.link.publish(asked, json.dumps(ask).encode(), answers.subject)
            while True:
                message = await answers.next()
                if message.status in (END_OF_BATCH, *NO_MESSAGES):
                    return received
                if message.status:
                    raise Unavailable(
                        f"the object store refused: {bytes(message.headers or b'')!r}"
                    )
                received.append(message)
                if b"Nats-Num-Pending" not in (message.headers or b""):
                    return received
        except NoResponders:
            # The bucket does not exist, or its server is away: a call that is answered tells.
            if await jetstream.stream_exists(self.link, self._stream):
                raise Unavailable(f"the object store {self.bucket} does not answer") from None
            return []
        finally:
            answers.close()


class _Answers:
    """The server's replies to one or more messages to `asked`, in the order of their arrival. To
    be closed."""

    def __init__(self, link: Link, asked: str) -> None:
        self._link = link
        self._asked = asked
        self._queue: asyncio.Queue[LinkMessage | SwarmError] = asyncio.Queue()
        self.subject = link.expect_from_server(self._queue.put_nowait)
        link.on_down.append(self._lost)
        link.on_denied.append(self._denied)

    def _denied(self, subject: str, error: PermissionDenied) -> None:
        if subject == self._asked:
            self._queue.put_nowait(error)

    def _lost(self) -> None:
        self._queue.put_nowait(Unavailable("the connection was lost during a transfer"))

    async def next(self) -> LinkMessage:
        """Raises `Unavailable` after `TIMEOUT` seconds, `NoResponders`, and `PermissionDenied`."""
        try:
            async with asyncio.timeout(TIMEOUT):
                answer = await self._queue.get()
        except TimeoutError:
            raise Unavailable(f"the object store did not answer within {TIMEOUT:g} s") from None
        if isinstance(answer, SwarmError):
            raise answer
        if answer.status == b"503":
            raise NoResponders("no object store listens")
        return answer

    def close(self) -> None:
        self._link.on_down.remove(self._lost)
        self._link.on_denied.remove(self._denied)
        self._link.forget(self.subject)


def _encoded(name: str) -> str:
    return urlsafe_b64encode(name.encode()).decode()


def _sequence_of(message: LinkMessage) -> int:
    found = _SEQUENCE.search(message.headers or b"")
    if found is None:
        raise Unavailable("the object store sent a message without its sequence")
    return int(found[1])


def _windows(source: Source) -> Iterator[list[bytes]]:
    """The chunks of an artifact, `BATCH` at a time."""
    if isinstance(source, Path):
        with source.open("rb") as file:
            while block := file.read(CHUNK * BATCH):
                yield _chunks(block)
    else:
        for start in range(0, len(source), CHUNK * BATCH):
            yield _chunks(source[start : start + CHUNK * BATCH])


def _chunks(block: bytes) -> list[bytes]:
    return [block[start : start + CHUNK] for start in range(0, len(block), CHUNK)]
