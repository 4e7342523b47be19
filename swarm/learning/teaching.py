"""Labelled samples on their way to a learner of the same host: by a Unix socket, and no other way.

Samples are private: they never go to the server. Each learner listens on a stream socket (0600) in
a directory of its user alone; its name follows from mesh and model, and from the node's id.

    request, reply:  length u32, little-endian | MessagePack map
    request:         {v: 1, kind: "who"}, or {v: 1, kind: "teach", version, labels, tensors},
                     or "test" with the same fields
    reply:           {v: 1, status, message, node, version, trained_on, held_out, classes, accuracy}

`test` measures the learner's accuracy and keeps nothing. One connection carries any number of
requests, one at a time. `labels` is a tensor of its own map.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np

from swarm.errors import (
    DeadlineExceeded,
    DecodeError,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Status,
    SwarmError,
    Unavailable,
    error_for,
)
from swarm.samehost.memory import SHM_DIRECTORY
from swarm.samehost.socket_directory import check_private, enter_private
from swarm.wire.maps import pack, pack_open_map, unpack_map
from swarm.wire.tensors import decode_tensors, encode_tensors

log = logging.getLogger("swarm.teach")

VERSION = 1
LARGEST = 64 << 20  # bytes of one request
MOST_TEACHING = 4  # calls at a time that one learner works on
IDLE_LIMIT = 30.0  # seconds that a connection may wait for its next bytes
WHO_TIMEOUT = 2.0  # seconds
LABELS = "labels"


@dataclass(frozen=True, slots=True)
class Taught:
    """A learner's answer. node: its id; version: of the model that it learns. trained_on, held_out:
    samples of this call, by what they are used for. classes: those that it has samples of.
    accuracy: of its present weights on the samples of a test, 0 to 1; None where none was made."""

    node: str
    version: str
    trained_on: int
    held_out: int
    classes: tuple[int, ...]
    accuracy: float | None = None


class Pupil(Protocol):
    """A learner, as its teachers reach it."""

    def describe(self) -> Taught:
        """The learner as it is, with counts of 0."""

    async def take(self, version: str, inputs: dict[str, np.ndarray], labels: np.ndarray) -> Taught:
        """Keep samples, all or none. Raises `SwarmError` for those that cannot be learned."""

    async def test(self, version: str, inputs: dict[str, np.ndarray], labels: np.ndarray) -> Taught:
        """Measure the accuracy on samples, and keep none of them. Raises `SwarmError`."""


def teaching_directory() -> str:
    """The directory of this user's learners on this host."""
    parent = SHM_DIRECTORY if os.path.isdir(SHM_DIRECTORY) else tempfile.gettempdir()
    return f"{parent}/swarm.{getattr(os, 'geteuid', int)()}.teach"


def _prefix(mesh: str, model: str) -> str:
    return blake2b(f"{mesh}/{model}".encode(), digest_size=8).hexdigest()


def _socket_name(mesh: str, model: str, node: str) -> str:
    name = blake2b(node.encode(), digest_size=8).hexdigest()
    return f"{_prefix(mesh, model)}-{name}"


@asynccontextmanager
async def listening(
    mesh: str, model: str, node: str, pupil: Pupil, directory: str = ""
) -> AsyncIterator[str]:
    """Take samples for a learner of this process; gives the socket's path, and removes it at the
    end. Raises `OSError` where the directory is not this user's alone."""
    directory = directory or teaching_directory()
    enter_private(directory)
    path = f"{directory}/{_socket_name(mesh, model, node)}"
    listener = _Listener(pupil)
    _sweep(directory)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # of a process with this id that ended without removing it
    server = await asyncio.start_unix_server(listener.connected, path)
    try:
        os.chmod(path, 0o600)
        yield path
    finally:
        server.close()
        await listener.end()
        with contextlib.suppress(OSError):
            os.unlink(path)
        with contextlib.suppress(OSError):
            os.rmdir(directory)  # refused unless it is empty


def _sweep(directory: str) -> None:
    """Remove the sockets of learners that ended without removing them."""
    for entry in os.scandir(directory):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)  # a learner that hangs would keep a blocking one waiting
            try:
                probe.connect(entry.path)
            except ConnectionRefusedError:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)
            except OSError:  # no socket, or it went away meanwhile
                continue


class _Listener:
    """The conversations of one learner with its teachers."""

    def __init__(self, pupil: Pupil) -> None:
        self._pupil = pupil
        self._conversations: set[asyncio.Task[None]] = set()
        self._teaching = 0

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._conversations.add(task)
        try:
            await self._converse(reader, writer)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            log.debug("a teacher went away")
        except asyncio.CancelledError:
            # `end` did that. In Python 3.11 the stream's own callback takes it for a fault.
            log.debug("the learner ends")
        finally:
            self._conversations.discard(task)
            writer.close()

    async def end(self) -> None:
        """End all conversations."""
        tasks = list(self._conversations)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                async with asyncio.timeout(IDLE_LIMIT):
                    data = await _receive(reader)
            except DecodeError as error:
                await _send(writer, [_failure(error)])
                return  # where the next request begins is not known
            if data is None:
                return
            try:
                doc = unpack_map(data, LARGEST)
                who = doc.get("kind") == "who"
                answer = self._pupil.describe() if who else await self._teach(doc)
                reply = _success(answer)
            except SwarmError as error:
                reply = _failure(error)
            await _send(writer, [reply])

    async def _teach(self, doc: dict[str, Any]) -> Taught:
        version, inputs, labels = _samples(doc)
        if self._teaching >= MOST_TEACHING:
            raise ResourceExhausted("this learner is being taught already", retry_after=0.5)
        self._teaching += 1
        try:
            if doc["kind"] == "test":
                return await self._pupil.test(version, inputs, labels)
            return await self._pupil.take(version, inputs, labels)
        finally:
            self._teaching -= 1


def _samples(doc: dict[str, Any]) -> tuple[str, dict[str, np.ndarray], np.ndarray]:
    if doc.get("v") != VERSION or doc.get("kind") not in ("teach", "test"):
        raise DecodeError(f"this learner takes samples in version {VERSION} of the protocol only")
    version = doc.get("version", "")
    if not isinstance(version, str):
        raise DecodeError("version must be text")
    labels = decode_tensors(doc.get(LABELS)).get(LABELS)
    inputs = decode_tensors(doc.get("tensors"))
    for name, value in {LABELS: labels, **inputs}.items():
        if not isinstance(value, np.ndarray):
            raise DecodeError(f"{name!r} must be a tensor with its bytes")
    assert isinstance(labels, np.ndarray)
    return version, inputs, labels


async def teach(
    mesh: str,
    model: str,
    version: str,
    inputs: Mapping[str, np.ndarray],
    labels: np.ndarray,
    *,
    node: str = "",
    timeout: float,
    only_test: bool = False,
    directory: str = "",
) -> Taught:
    """Give labelled samples to the learner of a model on this host. timeout: seconds. only_test:
    measure its accuracy on them, and let it keep none.

    Raises `NotFound` without a learner, `InvalidArgument` where there are several and `node` names
    none, and what the learner raises.
    """
    try:
        async with asyncio.timeout(timeout):
            kind = "test" if only_test else "teach"
            path = await _find(mesh, model, node, directory or teaching_directory())
            head = pack_open_map({"v": VERSION, "kind": kind, "version": version}, 2)
            # Packed by the same functions as tensors of requests.
            parts = [head + b"\xa6labels", *encode_tensors({LABELS: labels})]
            parts += [b"\xa7tensors", *encode_tensors(inputs)]
            return await _ask(path, parts)
    except TimeoutError:
        raise DeadlineExceeded(f"the learner did not answer within {timeout} s") from None


async def _find(mesh: str, model: str, node: str, directory: str) -> str:
    prefix = _prefix(mesh, model)
    try:
        check_private(directory)  # else somebody else could take the samples
        names = sorted(n for n in os.listdir(directory) if n.startswith(f"{prefix}-"))
    except OSError:
        names = []
    named = _socket_name(mesh, model, node)
    # A named learner may be too busy to say who it is: its socket says that it is there.
    if node and named in names and await _listens(f"{directory}/{named}"):
        return f"{directory}/{named}"
    found: dict[str, str] = {}
    for name in names:
        with contextlib.suppress(SwarmError, TimeoutError):
            async with asyncio.timeout(WHO_TIMEOUT):
                answer = await _ask(f"{directory}/{name}", [pack({"v": VERSION, "kind": "who"})])
            found[answer.node] = f"{directory}/{name}"
    if node:
        others = f"; there are {', '.join(sorted(found))}" if found else ""
        raise NotFound(f"no learner {node!r} of {model!r} runs on this host as this user{others}")
    if not found:
        raise NotFound(
            f"no learner of {model!r} in mesh {mesh!r} runs on this host as this user: start "
            f"`swarm-node --role learner --model {model}` here, or add --learn to a node"
        )
    if len(found) > 1:
        raise InvalidArgument(
            f"several learners of {model!r} run on this host: name one of "
            f"{', '.join(sorted(found))} (--node)"
        )
    return next(iter(found.values()))


async def _listens(path: str) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except OSError:
        return False
    writer.close()
    return True


async def _ask(path: str, parts: list[Any]) -> Taught:
    size = sum(len(part) for part in parts)
    if size > LARGEST:
        raise InvalidArgument(
            f"{size} bytes of samples; one call takes {LARGEST}: teach them in several calls"
        )
    try:
        reader, writer = await asyncio.open_unix_connection(path)
    except OSError as error:
        raise Unavailable(f"the learner at {path} does not listen: {error}") from None
    try:
        await _send(writer, parts)
        data = await _receive(reader)
    except (OSError, asyncio.IncompleteReadError) as error:
        raise Unavailable(f"the learner ended before it answered: {error!r}") from None
    finally:
        writer.close()
    if data is None:
        raise Unavailable("the learner ended before it answered")
    return _taught(unpack_map(data, LARGEST))


async def _send(writer: asyncio.StreamWriter, parts: list[Any]) -> None:
    size = sum(len(part) for part in parts)
    writer.writelines([size.to_bytes(4, "little"), *parts])
    await writer.drain()


async def _receive(reader: asyncio.StreamReader) -> bytes | None:
    """One message; None at the end of the connection. Raises `DecodeError` for one too large."""
    try:
        size = int.from_bytes(await reader.readexactly(4), "little")
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise
    if size > LARGEST:
        raise DecodeError(f"a request of {size} bytes; at most {LARGEST} are accepted")
    return await reader.readexactly(size)


def _success(answer: Taught) -> bytes:
    return pack({"v": VERSION, "status": str(Status.OK), "message": "", **asdict(answer)})


def _failure(error: SwarmError) -> bytes:
    retry_after = getattr(error, "retry_after", 0.0)
    return pack(
        {
            "v": VERSION,
            "status": str(error.status),
            "message": str(error),
            "retry_after": retry_after,
        }
    )


def _taught(doc: dict[str, Any]) -> Taught:
    """Raises the error that the learner answered with."""
    try:
        status, message = str(doc["status"]), str(doc["message"])
        if status == Status.OK:
            return Taught(
                str(doc["node"]),
                str(doc["version"]),
                int(doc["trained_on"]),
                int(doc["held_out"]),
                tuple(int(label) for label in doc["classes"]),
                None if doc.get("accuracy") is None else float(doc["accuracy"]),
            )
        retry_after = float(doc.get("retry_after", 0.0))
    except (KeyError, TypeError, ValueError) as error:
        raise DecodeError(f"this is no learner's answer: {error!r}") from None
    raise error_for(status, message, retry_after)
