"""Who sent a datagram: the kernel says so.

A socket that asks for it (`SO_PASSCRED`) gets with each datagram the process, user and group of its
sender, which no sender but root can forge (unix(7), `SCM_CREDENTIALS`). `SO_PEERCRED` says nothing
of datagrams. The directory of the sockets keeps others out already: this holds where its rights
were loosened, or where a socket was inherited by a process that has become another user's.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence

_CREDENTIALS = struct.Struct("3i")  # process, user, group: `struct ucred`
# No room for anything else: file descriptors that come along are closed by the kernel.
ROOM = socket.CMSG_SPACE(_CREDENTIALS.size) if hasattr(socket, "CMSG_SPACE") else 0
_USER = slice(4, 8)  # bytes of the user in them

Ancillary = Sequence[tuple[int, int, bytes]]


def ask_for_senders(mine: socket.socket) -> None:
    """Call before the socket has a name. Raises `OSError`, and `AttributeError` on a system that
    does not tell senders."""
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)


def own_user() -> bytes:
    """This process's user, as `is_from` compares it."""
    return struct.pack("i", os.geteuid())


def is_from(user: bytes, ancillary: Ancillary) -> bool:
    """Whether the kernel says that this user sent the datagram. One that says nothing is not."""
    # One slice of bytes: this is asked for each datagram.
    return bool(ancillary) and ancillary[0][2][_USER] == user


def user_of(ancillary: Ancillary) -> int:
    """The sender's user; -1 where it is not told."""
    if not ancillary or len(ancillary[0][2]) != _CREDENTIALS.size:
        return -1
    return int(_CREDENTIALS.unpack(ancillary[0][2])[1])
