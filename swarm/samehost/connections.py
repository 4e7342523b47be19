"""A connected socket for each process of this host that is sent to.

A process that does not read takes no room from the others, and the kernel looks up its name once (a
third of a short message's time).
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Callable, Sequence

from swarm.wire.tensors import Part

SEND_BUFFER = 208 * 1024  # bytes as asked for; Linux doubles it, and grants no more by default
MOST_CONNECTIONS = 64  # the oldest makes room
# Errors of a process that lives: no room at the moment, or never for so much.
_FULL = {errno.EAGAIN, errno.EMSGSIZE, errno.ENOBUFS, errno.ENOMEM}
# Errors that say that nobody is there.
_GONE = {errno.ECONNREFUSED, errno.ENOENT, errno.ENOTCONN, errno.EPIPE}


class Connections:
    """path(inbox): the name of the socket of the process with that inbox; raises `OSError` where
    there can be none. gone(inbox) is called when nobody is there (any more)."""

    def __init__(self, path: Callable[[str], str], gone: Callable[[str], None]) -> None:
        self._path = path
        self._gone = gone
        self._open: dict[str, socket.socket] = {}

    def send(self, inbox: str, pieces: Sequence[Part]) -> bool:
        """Whether the pieces lie, as one datagram, in the socket of the process with that inbox."""
        if (connected := self._open.get(inbox)) is not None:
            try:
                connected.sendmsg(pieces)
                return True
            except OSError as error:
                if error.errno in _FULL:
                    return False
            self._forget(inbox)  # the process may have made another socket, of the same name
        try:
            self._connect(inbox).sendmsg(pieces)
        except OSError as error:
            if error.errno in _GONE:
                self._forget(inbox)
                self._gone(inbox)
            return False
        return True

    def _connect(self, inbox: str) -> socket.socket:
        with contextlib.ExitStack() as undo:
            connected = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            undo.enter_context(connected)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            connected.connect(self._path(inbox))
            undo.pop_all()
        if len(self._open) >= MOST_CONNECTIONS:
            self._forget(next(iter(self._open)))
        self._open[inbox] = connected
        return connected

    def _forget(self, inbox: str) -> None:
        if (connected := self._open.pop(inbox, None)) is not None:
            connected.close()

    def close(self) -> None:
        """Close all; `send` connects again."""
        for inbox in list(self._open):
            self._forget(inbox)


def largest_datagram() -> int:
    """The bytes of a datagram of which two find room in a socket's send buffer here. Raises
    `OSError`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        return one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2 - 1024
