"""One write for a burst: what the messages of one read cause is sent together, and at once.

Each write is a system call, and uvloop makes one per `write()`: they were a quarter of a busy
node's time, and made the server read as often. Gathering them doubled the requests a second.

uvloop also sends only when all callbacks of its turn have returned, so an answer would wait for
its stage's bookkeeping. What is small goes to the socket directly, therefore, as asyncio's own
transports do it; the transport takes what the socket does not.
"""

from __future__ import annotations

import asyncio
import os
import socket


class Gather:
    """The small writes of a connection. `transport` is None while there is none."""

    __slots__ = ("_corked", "_pieces", "_socket", "transport")

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._corked = False
        self._pieces: list[bytes] = []

    def reset(self, transport: asyncio.Transport | None) -> None:
        """Another connection: what was gathered for the last one is void."""
        if self._socket is not None:
            self._socket.close()  # the connection ends with its last descriptor
        self.transport = transport
        self._socket = None if transport is None else _socket_of(transport)
        self._corked = False
        self._pieces.clear()

    def write(self, data: bytes) -> None:
        """Write now, or with the rest of the burst."""
        if self._corked:
            self._pieces.append(data)
        else:
            self._send(data)

    def cork(self) -> None:
        """A read begins: gather."""
        self._corked = True

    def flush(self) -> None:
        """Send what was gathered."""
        if self._pieces:
            data = b"".join(self._pieces)
            self._pieces.clear()
            self._send(data)

    def uncork(self) -> None:
        """The burst is over."""
        self._corked = False
        self.flush()

    def _send(self, data: bytes) -> None:
        transport = self.transport
        if transport is None:
            return
        if self._socket is not None and not transport.get_write_buffer_size():
            try:
                sent = self._socket.send(data)
            except OSError:  # it is full, or broken: the transport finds out which
                sent = 0
            if sent == len(data):
                return
            data = data[sent:]
        transport.write(data)


def _socket_of(transport: asyncio.Transport) -> socket.socket | None:
    """The transport's socket for sending, where nothing stands between (TLS does). A descriptor of
    our own: the transport's number may be another file's as soon as it is closed."""
    if transport.get_extra_info("sslcontext") is not None:
        return None
    theirs = transport.get_extra_info("socket")
    if theirs is None:
        return None
    ours = socket.socket(fileno=os.dup(theirs.fileno()))
    ours.setblocking(False)
    return ours
