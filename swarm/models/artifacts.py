"""The artifacts of a mesh, in an object store of NATS: written and read in chunks.

The format is the one of all NATS clients (ADR-20, nats-architecture-and-design): the chunks of an
object on one subject, and one message about it, so `nats object ls` shows them. A process has a
few chunks in memory at a time, however large an artifact is, and so has the server.

Beside an artifact NAME lies its recipe, `recipe/NAME` (`swarm.models.recipes`), by which a reader
fetches any part of it. What has none, as all that other clients put, is read as a whole.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import mmap
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

from swarm.errors import (
    ApiError,
    InvalidArgument,
    NoResponders,
    NotFound,
    PermissionDenied,
    SwarmError,
    Unavailable,
)
from swarm.ids import ulid
from swarm.link import Link, LinkMessage, jetstream
from swarm.models.recipes import MOST_BYTES, Recipe, pieces_of, runs
from swarm.subjects import api

log = logging.getLogger("swarm.registry")

CHUNK = 128 * 1024  # bytes of a message, as all NATS clients have them
BATCH = (
    4  # messages that are under way at a time: acks and gossip of the connection wait behind them
)
TIMEOUT = 10.0  # seconds without a message of a transfer
NO_MESSAGES, END_OF_BATCH = (b"404", b"408"), b"204"
_SEQUENCE = re.compile(rb"Nats-Sequence: *([0-9]+)")
_REPLACE_IF = (
    "NATS/1.0\r\nNats-Rollup: sub\r\nNats-Expected-Last-Subject-Sequence: {revision}\r\n\r\n"
)
NAMINGS = 8  # attempts at a name that others give other bytes at the same time

EVEN = 1 << 20  # bytes of a piece where nobody knows how to cut an artifact
RECIPE = "recipe/"  # before an artifact's name, in the name of its recipe

Source = bytes | Path
"""An artifact: its bytes, or the file that holds them."""

Cut = Callable[[memoryview], list[int]]
"""The lengths of an artifact's pieces, in order."""

MayStore = Callable[[], Awaitable[None]]
"""Raises where a name must not get other bytes any more."""


async def _always() -> None:
    """The default of `may_store`: the user's rights alone decide."""


def evenly(data: memoryview) -> list[int]:
    """Pieces of `EVEN` bytes, and a rest: a transfer that broke off goes on at one of them."""
    whole, rest = divmod(len(data), EVEN)
    return [EVEN] * whole + ([rest] if rest else [])


class _Unreadable(Unavailable):
    """A document about an object that cannot be read: the object is as good as lost."""


@dataclass(frozen=True, slots=True)
class _About:
    """The document about an object. size: bytes; chunks: how many there are, -1 where it says
    nothing of that."""

    nuid: str
    size: int
    chunks: int
    deleted: bool

    @classmethod
    def of(cls, name: str, data: bytes) -> _About:
        """Raises `_Unreadable` for bytes that are no such document."""
        try:
            doc = json.loads(data)
            about = cls(
                str(doc.get("nuid", "")),
                int(doc.get("size", 0)),
                int(doc.get("chunks", -1)),
                bool(doc.get("deleted", False)),
            )
            if about.size < 0 or not (about.deleted or about.nuid):
                raise ValueError("it names no chunks")
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise _Unreadable(
                f"the object store's document about {name!r} cannot be read ({error!r:.100}): "
                "push it again"
            ) from None
        return about


@dataclass(frozen=True)
class ObjectStore:
    """One bucket. kept_for: seconds after which it forgets what `put` stores; 0.0: it does not. All
    methods raise `Unavailable` when the server cannot be reached."""

    link: Link
    bucket: str
    kept_for: float = 0.0

    @property
    def _stream(self) -> str:
        return f"OBJ_{self.bucket}"

    async def put(
        self,
        prefix: str,
        files: Mapping[str, Source],
        progress: Callable[[str, int], None] = lambda name, size: None,
        *,
        sent: Callable[[int], None] = lambda size: None,
        cut: Cut = evenly,
        may_store: MayStore = _always,
    ) -> None:
        """Store `files` under `prefix`, each with its recipe; calls `progress(name, bytes)` before
        each file, and `sent(bytes)` after each part that is stored. cut: into which pieces.
        may_store is awaited before a name gets other bytes, and raises where it must not. Between
        the two nobody else can have given them to it.

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
                    "max_age": round(self.kept_for * 1e9),
                },
            )
            for name, source in files.items():
                progress(name, source.stat().st_size if isinstance(source, Path) else len(source))
                lengths = await asyncio.to_thread(_lengths, source, cut)
                recipe = (
                    await self._put(prefix + name, source, sent, lengths, may_store)
                ).to_json()
                if len(recipe) <= MOST_BYTES:
                    await self._put(
                        prefix + RECIPE + name,
                        recipe,
                        lambda size: None,
                        [len(recipe)],
                        may_store,
                    )
        except ApiError as error:
            raise Unavailable(f"the object store took not all of it: {error}") from error

    async def _put(
        self,
        name: str,
        source: Source,
        sent: Callable[[int], None],
        lengths: Sequence[int],
        may_store: MayStore,
    ) -> Recipe:
        unique = ulid()
        subject = f"$O.{self.bucket}.C.{unique}"
        digest, size, chunks = hashlib.sha256(), 0, 0
        pieces, sequences = _PieceHashes(lengths), list[int]()
        for window in _windows(source, lengths):
            for chunk in window:
                digest.update(chunk)
                pieces.update(chunk)
                size += len(chunk)
            chunks += len(window)
            sequences += await self._publish_all(subject, window)
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
        try:
            before = await self._name(name, json.dumps(info).encode(), may_store)
        except BaseException:
            await self.remove_chunks(unique)
            raise
        if before:
            await self.remove_chunks(before)
        return Recipe(unique, CHUNK, runs(sequences), tuple(pieces_of(pieces.found)))

    async def _name(self, name: str, document: bytes, may_store: MayStore) -> str:
        """Store the document about an object; returns the name of the chunks that it had. Raises
        what `may_store` does, and `Unavailable` where others store it again and again."""
        subject = f"$O.{self.bucket}.M.{_encoded(name)}"
        for _ in range(NAMINGS):
            before, revision = await self._replaced(name)
            await may_store()
            headers = _REPLACE_IF.format(revision=revision).encode()
            try:
                await self._publish_all(subject, [document], headers)
            except ApiError as error:
                if error.err_code not in jetstream.WRONG_REVISIONS:
                    raise
            else:
                return before
        raise Unavailable(f"others store {name!r} at the same time: push it again")

    async def _replaced(self, name: str) -> tuple[str, int]:
        """The name of the chunks that an object has now, "" where it has none to be found, and the
        sequence of the document that says so, 0 where there is none."""
        received = await self._batch({"last_by_subj": f"$O.{self.bucket}.M.{_encoded(name)}"})
        if not received:
            return "", 0
        sequence = _sequence_of(received[0])
        try:
            return _About.of(name, bytes(received[0].data)).nuid, sequence
        except _Unreadable as error:
            log.warning("%s", error)
            return "", sequence

    async def _purge(self, subject: str) -> int:
        """Remove all messages of a subject; returns how many there were."""
        purged = await jetstream.call(
            self.link, api("STREAM.PURGE", self._stream), {"filter": subject}
        )
        return int(purged.get("purged", 0))

    async def _publish_all(
        self, subject: str, messages: list[bytes], headers: bytes = b""
    ) -> list[int]:
        """Publish in order, then wait until each of them is stored; returns their sequences."""
        answers = _Answers(self.link, subject)
        try:
            for message in messages:
                self.link.publish(subject, message, answers.subject, headers)
            return [jetstream.stored_sequence((await answers.next()).data) for _ in messages]
        finally:
            answers.close()

    async def read(self, name: str) -> AsyncIterator[bytes | memoryview]:
        """The bytes of an object, in chunks. Raises `NotFound`.

        The caller checks their hash: a transfer that the server cuts short ends in `Unavailable`,
        but nothing here knows which bytes are right.
        """
        about = await self._about(name)
        if about is None or about.deleted:
            raise NotFound(f"this mesh has no artifact {name!r}")
        remaining, sequence = about.size, 1
        subject = f"$O.{self.bucket}.C.{about.nuid}"
        while remaining > 0:
            received = await self._batch({"seq": sequence, "batch": BATCH, "next_by_subj": subject})
            for message in received:
                sequence = _sequence_of(message) + 1
                remaining -= len(message.data)
                yield message.data
            if not received:
                raise Unavailable(f"the object store holds a part of {name!r} only: push it again")

    async def recipe(self, prefix: str, name: str) -> Recipe | None:
        """The recipe of an object as it lies here now; None where there is none that fits.

        Raises `Unavailable`.
        """
        about = await self._about(prefix + name)
        if about is None or about.deleted:
            return None
        stored = bytearray()
        try:
            async for chunk in self.read(prefix + RECIPE + name):
                stored += chunk
                if len(stored) > MOST_BYTES:
                    break
            recipe = Recipe.from_json(bytes(stored))
        except NotFound:
            return None
        except InvalidArgument as error:
            log.warning("%s is fetched as a whole: %s", prefix + name, error)
            return None
        fits = recipe.nuid == about.nuid and recipe.size == about.size
        return recipe if fits else None

    async def read_part(
        self, recipe: Recipe, begin: int, end: int
    ) -> AsyncIterator[bytes | memoryview]:
        """Chunks of the object with its bytes [begin, end), whole pieces, if all is as it was put:
        the caller checks their hash. Fewer bytes where the recipe names chunks that are not
        there. Raises `Unavailable`."""
        subject = f"$O.{self.bucket}.C.{recipe.nuid}"
        chunks = recipe.chunks(begin, end)
        while chunks:
            wanted = min(BATCH, len(chunks))
            ask = {"seq": recipe.sequence(chunks[0]), "batch": wanted, "next_by_subj": subject}
            received = await self._batch(ask)
            for message in received:
                yield message.data
            if not received:
                return
            chunks = chunks[len(received) :]

    async def lacking(self, prefix: str, names: Iterable[str]) -> list[str]:
        """Those of these objects that the bucket has not, or not with all their chunks.

        By counts alone: no chunk is read.
        """
        missing = []
        for name in names:
            try:
                about = await self._about(prefix + name)
            except _Unreadable as error:
                log.warning("%s", error)
                about = None
            if about is None or await self._chunks_of(about) != about.chunks:
                missing.append(name)
        return missing

    async def sizes(self) -> dict[str, int]:
        """The bytes of each object that the bucket has, by its name; 0 where its document cannot
        be read."""
        found: dict[str, int] = {}
        for subject in await self._subjects("M"):
            try:
                name = urlsafe_b64decode(subject.rsplit(".", 1)[1]).decode()
            except ValueError:  # another program's: its name cannot be read
                continue
            try:
                about = await self._about(name)
            except _Unreadable:
                found[name] = 0
                continue
            if about is not None:
                found[name] = about.size
        return found

    async def lost_chunks(self) -> dict[str, int]:
        """How many chunks there are of which no object knows, by the name that they share.

        Nothing is told where the document about some object cannot be read: they may be its own.
        """
        known: set[str] = set()
        for subject in await self._subjects("M"):
            received = await self._batch({"last_by_subj": subject})
            try:
                known |= {_About.of(subject, bytes(each.data)).nuid for each in received}
            except _Unreadable as error:
                log.warning("%s", error)
                return {}
        chunks = await self._subjects("C")
        names = {subject.rsplit(".", 1)[1]: count for subject, count in chunks.items()}
        return {name: count for name, count in names.items() if name not in known}

    async def age(self, *, name: str = "", chunks: str = "") -> float:
        """Seconds since an object, or the last of some chunks, was stored; 0.0 where it is not
        there."""
        kind = f"M.{_encoded(name)}" if name else f"C.{chunks}"
        received = await self._batch({"last_by_subj": f"$O.{self.bucket}.{kind}"})
        headers = bytes(received[0].headers or b"") if received else b""
        return await jetstream.stream_age(self.link, self._stream, headers)

    async def remove(self, prefix: str) -> None:
        """Remove an object, or with `/` at the end of the prefix all that are named so. Their
        documents go last: what a broken connection leaves is found again."""
        for subject in await self._subjects("M"):
            try:
                name = urlsafe_b64decode(subject.rsplit(".", 1)[1]).decode()
            except ValueError:
                continue
            if name == prefix or (prefix.endswith("/") and name.startswith(prefix)):
                if chunks := (await self._replaced(name))[0]:
                    await self.remove_chunks(chunks)
                await self._purge(subject)

    async def remove_chunks(self, chunks: str) -> None:
        """Remove all chunks of this name."""
        await self._purge(f"$O.{self.bucket}.C.{chunks}")

    async def _subjects(self, kind: str) -> dict[str, int]:
        """The subjects of documents (M) or chunks (C), and how many messages each has."""
        try:
            info = await jetstream.call(
                self.link,
                api("STREAM.INFO", self._stream),
                {"subjects_filter": f"$O.{self.bucket}.{kind}.>"},
            )
        except ApiError as error:
            if error.err_code != jetstream.STREAM_NOT_FOUND:
                raise
            return {}
        return {name: int(n) for name, n in (info["state"].get("subjects") or {}).items()}

    async def _chunks_of(self, about: _About) -> int:
        subject = f"$O.{self.bucket}.C.{about.nuid}"
        info = await jetstream.call(
            self.link, api("STREAM.INFO", self._stream), {"subjects_filter": subject}
        )
        return int((info["state"].get("subjects") or {}).get(subject, 0))

    async def _about(self, name: str) -> _About | None:
        """The document about an object, or None. Raises `Unavailable`."""
        subject = f"$O.{self.bucket}.M.{_encoded(name)}"
        received = await self._batch({"last_by_subj": subject})
        return _About.of(name, bytes(received[0].data)) if received else None

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


class _PieceHashes:
    """The SHA-256 of each piece of bytes that come in any chunks. found: (digest, length)."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.found: list[tuple[str, int]] = []
        self._lengths = iter(lengths)
        self._hash, self._length, self._remaining = hashlib.sha256(), 0, 0

    def update(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view:
            if not self._remaining:
                self._length = self._remaining = next(self._lengths, 0)
                self._hash = hashlib.sha256()
            if not self._remaining:
                raise ValueError("the pieces are fewer bytes than the artifact")
            self._hash.update(view[: self._remaining])
            size = min(self._remaining, len(view))
            view, self._remaining = view[size:], self._remaining - size
            if not self._remaining:
                self.found.append((self._hash.hexdigest(), self._length))


def _lengths(source: Source, cut: Cut) -> list[int]:
    """The lengths of an artifact's pieces. Raises `OSError`."""
    if isinstance(source, bytes):
        return cut(memoryview(source))
    if not source.stat().st_size:  # which cannot be mapped
        return []
    with source.open("rb") as file:
        return cut(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))


def _windows(source: Source, lengths: Sequence[int]) -> Iterator[list[bytes]]:
    """The chunks of an artifact, `BATCH` at a time; none has bytes of two pieces."""
    with source.open("rb") if isinstance(source, Path) else BytesIO(source) as file:
        chunks = filter(None, map(file.read, _sizes(lengths)))
        while window := list(islice(chunks, BATCH)):
            yield window


def _sizes(lengths: Sequence[int]) -> Iterator[int]:
    for length in lengths:
        whole, rest = divmod(length, CHUNK)
        yield from [CHUNK] * whole
        if rest:
            yield rest
