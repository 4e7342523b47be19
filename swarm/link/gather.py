"""One write for a burst: messages that one read brings about are sent together, and at once.

Each write is a system call, and makes the server read once. uvloop makes one for each `write()`
(measured: a quarter of a busy node's time; gathered, twice the requests a second).

uvloop also sends only when all callbacks of its turn have returned, so an answer would wait for
the bookkeeping behind it. Therefore a small message goes to the socket directly, as asyncio's own
transports do it, and the transport takes the bytes that the socket does not take.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable

# Seconds of a burst after which its messages so far are sent: its tasks may compute something.
LONGEST_BURST = 0.01


class Gather:
    """The small writes of a connection. `transport` is None while there is none.

    messages: the messages of the present burst; bursts that overlap are one. before: callbacks that
    are called before the gathered bytes are sent; they may write, and must not raise. clock:
    seconds, monotonic.
    """

    __slots__ = (
        "_clock",
        "_ends",
        "_pieces",
        "_since",
        "_socket",
        "before",
        "corked",
        "messages",
        "transport",
    )

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self.corked = False
        self.messages = 0
        self.before: list[Callable[[], None]] = []
        self._pieces: list[bytes] = []
        self._ends = 0  # of reads, whose tasks have not all run
        self._since = 0.0  # of the clock, when the burst began or was last sent

    def reset(self, transport: asyncio.Transport | None) -> None:
        """Another connection, or none: bytes that were gathered for the last one are dropped."""
        if self._socket is not None:
            self._socket.close()  # the connection ends with its last descriptor
        self.transport = transport
        self._socket = None if transport is None else _socket_of(transport)
        self.corked = False
        self._pieces.clear()

    def write(self, data: bytes) -> None:
        """Write now, or with the rest of the burst."""
        if self.corked:
            self._pieces.append(data)
            self.gathered()
        else:
            self._send(data)

    def begin(self, messages: int = 0) -> None:
        """A read begins: gather. messages: their number, as far as it is known."""
        self.corked = True
        if not self._ends:
            self.messages = 0
            self._since = self._clock()
        self.messages += messages

    def gathered(self) -> None:
        """A message was gathered, here or elsewhere: a burst that is long already is sent."""
        now = self._clock()
        if now - self._since > LONGEST_BURST:
            self._since = now
            self._send_all()

    def flush(self) -> None:
        """Send the gathered bytes."""
        if self._pieces:
            data = b"".join(self._pieces)
            self._pieces.clear()
            self._send(data)

    def end(self) -> None:
        """The read is over.

        When several messages came at once, the tasks that they woke will write too: their messages
        are sent when all of these tasks have run."""
        self._send_all()
        if self.messages < 2:
            self.corked = False
        else:
            self._ends += 1
            asyncio.get_running_loop().call_soon(self._end)

    def together(self) -> None:
        """Gather the messages of the rest of this turn of the loop, as those of a burst."""
        self.begin(2)
        self.end()

    def _end(self) -> None:
        self._ends -= 1
        self._send_all()
        if not self._ends:
            self.corked = False

    def _send_all(self) -> None:
        for callback in self.before:
            callback()
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
    try:
        ours = socket.socket(fileno=os.dup(theirs.fileno()))
    except OSError:  # no descriptor is left, or it is closed by now: the transport alone sends
        return None
    ours.setblocking(False)
    return ours
