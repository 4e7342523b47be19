"""A lean HTTP/1.1 client: keep-alive, one connection per request under way, binary bodies.

The contenders that speak HTTP are measured with the cheapest client we can write, so that the
client library's own cost is not charged to them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

_MOST_BUFFERED_BYTES = 1 << 24


class HttpError(RuntimeError):
    """The server answered with another status than 200."""


class HttpClient:
    """Talks to one server on the loopback; connections are kept and used again."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def post(
        self, path: str, body: list[bytes | memoryview], headers: Mapping[str, str]
    ) -> tuple[dict[str, str], bytes]:
        """The response's headers (lower case) and body; ``HttpError`` unless it is a 200."""
        status, answered, data = await self._call("POST", path, body, headers)
        if status != 200:
            raise HttpError(f"{status} from {path}: {data[:300]!r}")
        return answered, data

    async def healthy(self, path: str) -> bool:
        """Whether a GET of ``path`` is answered with 200."""
        try:
            return (await self._call("GET", path, [], {}))[0] == 200
        except (OSError, EOFError):
            return False

    async def _call(
        self, method: str, path: str, body: list[bytes | memoryview], headers: Mapping[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        while self._idle:
            try:
                return await self._over(self._idle.pop(), method, path, body, headers)
            except (EOFError, ConnectionError):
                continue  # the server has ended a connection that rested
        streams = await asyncio.open_connection("127.0.0.1", self._port, limit=_MOST_BUFFERED_BYTES)
        return await self._over(streams, method, path, body, headers)

    async def _over(
        self,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        method: str,
        path: str,
        body: list[bytes | memoryview],
        headers: Mapping[str, str],
    ) -> tuple[int, dict[str, str], bytes]:
        reader, writer = streams
        try:
            length = sum(len(part) for part in body)
            lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self._port}"]
            lines += [f"Content-Length: {length}"]
            lines += [f"{name}: {value}" for name, value in headers.items()]
            head = ("\r\n".join(lines) + "\r\n\r\n").encode()
            if length < 65536:
                writer.write(b"".join((head, *body)))
            else:
                writer.write(head)
                for part in body:
                    writer.write(part)
            status, answered, data = await _read(reader)
        except BaseException:
            writer.close()
            raise
        if answered.get("connection", "").lower() == "close":
            writer.close()
        else:
            self._idle.append((reader, writer))
        return status, answered, data

    def close(self) -> None:
        """Close the idle connections."""
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()


async def _read(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip("\r\n").split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    if headers.get("transfer-encoding", "").lower() == "chunked":
        data = await _read_chunks(reader)
    else:
        data = await reader.readexactly(int(headers.get("content-length", "0")))
    return int(first.split(" ", 2)[1]), headers, data


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    chunks: list[bytes] = []
    while True:
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        chunk = await reader.readexactly(size + 2)
        if size == 0:
            return b"".join(chunks)
        chunks.append(chunk[:-2])
