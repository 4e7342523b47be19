"""Messages between processes of one host without the server: datagrams on sockets of the kernel.

A message through the server wakes two processes, a datagram one (measured: 0.01 to 0.03 ms). The
kernel keeps a datagram until its receiver reads it; it is lost when the receiver dies. So a message
that must not be lost is stored beside, or kept by its sender until the receiver has said that the
work is done (`swarm.transport`). A message that a full or missing socket refuses goes through the
server.

Each process has one socket, named by its inbox (`SocketDirectory`); where it has a second
connection, that one's inbox is another name of the same socket. It sends over a connection to each
process (`Connections`). Several messages of one burst for the same process lie in one datagram
(`Bundles`). The kernel says which user sent a datagram; those of others are dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial

from swarm.errors import DecodeError, SwarmError
from swarm.link import Link, LinkMessage
from swarm.samehost.memory import SHM_DIRECTORY
from swarm.samehost.socket_directory import SocketDirectory
from swarm.subjects import INBOX
from swarm.wire.tensors import Part

log = logging.getLogger("swarm.direct")

# Bytes; larger messages go by shared memory, or through the server. A socket takes ten datagrams by
# default (net.unix.max_dgram_qlen), and a sender 416 KB that are not read: both, of the largest.
LARGEST_MESSAGE = 20_000
# Bytes; fewer where the kernel grants a socket less. Measured: a third of it gives 12 % fewer
# requests a second with 64 in flight.
LARGEST_DATAGRAM = 180_000
SEND_BUFFER = 208 * 1024  # bytes as asked for; Linux doubles it, and grants no more by default
MOST_CONNECTIONS = 64  # the oldest makes room
MOST_KNOWN_INBOXES = 256
SWEEP_EVERY = 30.0  # seconds
LIVING = "living"  # the subject of the question whether a process's loop turns

# (message, when it was sent: time.monotonic_ns(), where its sender waits for `answer`, or "")
OnMessage = Callable[[bytes, int, str], None]
OnSent = Callable[[bool], None]  # told whether the message was sent


class HostSocket:
    """One process's socket. Without one (`open` was not called, or failed) nothing is sent.

    on_no_listener(subject, data, reply) is called for a message that nobody listens for here (any
    more): its sender thinks that it was delivered. directory: where the directory of this user's
    sockets lies.

    on_gone: callbacks, told the inbox of a process that a message was to be sent to and that is
    not there (any more). sent, received: how many messages. foreign: datagrams of other users,
    which are dropped.
    """

    def __init__(
        self,
        link: Link,
        *,
        on_no_listener: Callable[[str, bytes, str], None] = lambda subject, data, reply: None,
        directory: str = SHM_DIRECTORY,
    ) -> None:
        self.on_gone: list[Callable[[str], None]] = []
        self.sent = 0
        self.received = 0
        self.foreign = 0
        self._link = link
        self._inbox = link.options.inbox
        self._second: Link | None = None
        self._second_inbox = ""
        self._links: tuple[Link, ...] = (link,)
        self._on_no_listener = on_no_listener
        self._listeners: dict[str, OnMessage] = {}
        self._directory = SocketDirectory(directory)
        self._connections = Connections(self._directory.peer, self._gone)
        self._user = struct.pack("i", os.geteuid())
        self._socket: socket.socket | None = None
        self._buffer = memoryview(b"")  # what a datagram is read into
        self._bundles: Bundles | None = None  # while there is a socket
        self._identity = (0, 0)  # of the socket's name: device, inode
        self._wanted = False  # to be reachable
        self._failed = ""  # why it is not, as logged
        self._swept = 0.0  # time.monotonic()

    # --- sending ----------------------------------------------------------------------

    def send(self, inbox: str, subject: str, parts: Sequence[Part], reply: str = "") -> bool:
        """Whether the message lies in the socket of the process with that inbox. False, and nothing
        is sent, when the process has no socket, when its socket is full, and when the message is
        larger than `LARGEST_MESSAGE`.

        reply: a reply subject of this process, where the receiver answers (`answer`).
        """
        size = sum(map(len, parts))
        if self._socket is None or size > LARGEST_MESSAGE:
            return False
        sent = self._connections.send(inbox, (frame_head(size, subject, reply), *parts))
        self.sent += sent
        return sent

    def post(
        self, inbox: str, subject: str, parts: Sequence[Part], then: OnSent, reply: str = ""
    ) -> None:
        """Send a message with the rest of a burst (`Link.bursting`), or at once. The parts are
        copied. then(sent) is told, at once or at the end of the burst, what `send` returns; it
        should not raise."""
        link = self._link
        bursting = link.bursting
        if not bursting and self._second is not None:
            link, bursting = self._second, self._second.bursting
        bundles = self._bundles if bursting else None
        if bundles is None or (size := sum(map(len, parts))) > LARGEST_MESSAGE:
            then(self.send(inbox, subject, parts, reply))
            return
        bundles.add(inbox, frame_head(size, subject, reply), parts, partial(self._tell, then))
        link.gather.gathered()

    def answer(self, reply: str, parts: Sequence[Part], then: OnSent) -> None:
        """`post` to a reply subject that a process of this host is waiting on."""
        self.post(reply.rpartition(".")[0], reply, parts, then)

    def _gone(self, inbox: str) -> None:
        """Never raises: the messages to others of the same burst must go."""
        for callback in self.on_gone:
            try:
                callback(inbox)
            except Exception:
                self._link.callback_errors += 1
                log.exception("a callback failed that was told the end of a process of this host")

    def _tell(self, then: OnSent, sent: bool) -> None:
        self.sent += sent
        try:
            then(sent)
        except Exception:
            self._link.callback_errors += 1
            log.exception("a callback failed that was told whether a message was sent")

    # --- receiving --------------------------------------------------------------------

    def listen(self, subject: str, callback: OnMessage) -> None:
        """Take the messages of a subject; the callback must not block."""
        self._listeners[subject] = callback

    def forget(self, subject: str) -> None:
        """Take the messages of a subject no more."""
        self._listeners.pop(subject, None)

    def take_waiting(self, most: int = 16) -> None:
        """Take messages that have come and were not read yet: for one who is about to work for a
        while, and can do theirs along. Not to be called while a message is taken."""
        mine = self._socket
        while most > 0 and mine is not None and self._readable(mine):
            most -= 1

    def _readable(self, mine: socket.socket) -> bool:
        """Whether there was a datagram."""
        try:
            # One datagram: where more have come, the loop calls again, for less than asking costs.
            size, ancillary, _, _ = mine.recvmsg_into((self._buffer,), _ANCILLARY)
        except OSError:
            return False
        # One slice of bytes: this is asked for each datagram. One without a sender is foreign.
        if not ancillary or ancillary[0][2][_USER] != self._user:
            self._foreign(_sender(ancillary))
            return True
        try:
            messages = frames(self._buffer[:size])
        except DecodeError:
            self._link.callback_errors += 1
            log.exception("a datagram from this host is damaged")
            return True
        if len(messages) == 1:
            self._received(*messages[0])
            return True
        for link in self._links:
            link.gather.begin(len(messages))
        for message in messages:
            self._received(*message)
        for link in self._links:
            link.gather.end()
        return True

    def _foreign(self, user: int) -> None:
        """Drop a datagram of another user: counted, and told once."""
        self.foreign += 1
        if self.foreign == 1:
            log.warning(
                "user %d sends messages to this process's socket: they are dropped; look at the "
                "rights of %s",
                user,
                self._directory.name,
            )

    def _received(self, sent: int, subject: str, reply: str, data: bytes) -> None:
        try:
            self._deliver(sent, subject, reply, data)
        except Exception:
            self._link.callback_errors += 1
            log.exception("a message from this host failed")

    def _deliver(self, sent: int, subject: str, reply: str, data: bytes) -> None:
        if reply and not _is_reply_subject(reply):
            return
        self.received += 1
        if subject.rpartition(".")[0] == self._inbox:
            self._link.deliver(LinkMessage(subject, "", None, data))
        elif (callback := self._listeners.get(subject)) is not None:
            callback(data, sent, reply)
        elif subject == LIVING:
            if reply and not self.send(reply.rpartition(".")[0], reply, []):
                with contextlib.suppress(SwarmError):
                    self._link.publish(reply, b"")
        elif self._second is not None and subject.rpartition(".")[0] == self._second_inbox:
            self._second.deliver(LinkMessage(subject, "", None, data))
        else:
            self._on_no_listener(subject, data, reply)

    # --- life -------------------------------------------------------------------------

    def answer_for(self, second: Link) -> None:
        """Take the messages to the inbox of a second connection of this process too. Call before
        `open`."""
        self._second, self._second_inbox = second, second.options.inbox
        self._links = (self._link, second)

    def open(self) -> str:
        """Be reachable for the processes of this host. Returns the inbox that names the socket; ""
        where there can be none, which is logged, and `tend` tries again."""
        self._wanted = True
        try:
            self._open()
        except (OSError, AttributeError) as error:
            if (reason := str(error)) != self._failed:
                log.info("messages of this host go through the server: %s", reason)
            self._failed = reason
            return ""
        self._failed = ""
        return self._inbox

    def _open(self) -> None:
        bundles = Bundles(self._connections.send, min(LARGEST_DATAGRAM, largest_datagram()))
        self._buffer = memoryview(bytearray(LARGEST_DATAGRAM + LARGEST_MESSAGE))
        with contextlib.ExitStack() as undo:
            mine = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            undo.enter_context(mine)
            mine.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # before it has a name
            self._identity = self._directory.bind(mine, self._inbox)
            undo.callback(self._leave)
            if self._second_inbox:
                self._directory.name_also(self._inbox, self._second_inbox)
            asyncio.get_running_loop().add_reader(mine, self._readable, mine)
            undo.pop_all()
        for link in self._links:
            link.gather.before.append(bundles.flush)
        self._socket, self._bundles = mine, bundles

    def tend(self) -> None:
        """Call about every second. Opens the socket again when a cleaner took its name away;
        removes the sockets of dead processes. Never raises."""
        if not self._wanted:
            return
        if self._socket is None or not self._is_named():
            self.close()
            self.open()
        if self._socket is not None and time.monotonic() - self._swept > SWEEP_EVERY:
            self._swept = time.monotonic()
            with contextlib.suppress(OSError):
                self._directory.sweep()

    def close(self) -> None:
        """Not reachable any more."""
        self._wanted = False
        if self._bundles is not None:
            self._bundles.flush()
            for link in self._links:
                link.gather.before.remove(self._bundles.flush)
        self._connections.close()
        mine, self._socket, self._bundles = self._socket, None, None
        if mine is not None:
            asyncio.get_running_loop().remove_reader(mine)
            self._leave()
            mine.close()

    def _is_named(self) -> bool:
        """Whether its names still lead to the socket."""
        return all(
            self._directory.leads_to(link.options.inbox, self._identity) for link in self._links
        )

    def _leave(self) -> None:
        for link in self._links:
            self._directory.leave(link.options.inbox)


def _is_reply_subject(reply: str) -> bool:
    """Whether `reply` is a process's inbox and a number behind it, as `Link.expect` makes them. A
    subject of any other form could become a command to the server."""
    inbox, _, token = reply.rpartition(".")
    return token.isascii() and token.isalnum() and _is_inbox(inbox)


# Kept: with cold caches the expression takes 10 us.
@lru_cache(maxsize=MOST_KNOWN_INBOXES)
def _is_inbox(inbox: str) -> bool:
    return INBOX.fullmatch(inbox) is not None


# --- sending, to each process -----------------------------------------------------

# Errors of a process that lives: no room at the moment, or never for so much.
_FULL = {errno.EAGAIN, errno.EMSGSIZE, errno.ENOBUFS, errno.ENOMEM}
# Errors that say that nobody is there.
_GONE = {errno.ECONNREFUSED, errno.ENOENT, errno.ENOTCONN, errno.EPIPE}


class Connections:
    """A connected socket for each process that is sent to: a process that does not read takes no
    room from the others, and the kernel looks up its name once (a third of a short message's time).

    path(inbox): the name of the socket of the process with that inbox; raises `OSError` where
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


@dataclass(slots=True)
class _Bundle:
    data: bytearray = field(default_factory=bytearray)
    then: list[OnSent] = field(default_factory=list)


class Bundles:
    """The bundles that are being filled, one for each process.

    A burst is a read that brought several messages; those that they cause for one process go as one
    datagram. One by one, each costs its sender a system call and its receiver a turn of the loop
    (measured, with 16 requests in flight through tiny stages: a third more requests a second).

    send(inbox, pieces): whether the pieces lie, as one datagram, in the socket of the process with
    that inbox. largest: bytes in one datagram.
    """

    def __init__(
        self, send: Callable[[str, Sequence[Part]], bool], largest: int = LARGEST_DATAGRAM
    ) -> None:
        self._send = send
        self._largest = largest
        self._open: dict[str, _Bundle] = {}

    def add(self, inbox: str, head: bytes, parts: Sequence[Part], then: OnSent) -> None:
        """Keep one message until `flush`, or until its datagram is full. then(sent) is called when
        the datagram was sent, or refused; it must not raise, and may add."""
        room = self._largest - len(head) - sum(map(len, parts))
        while (bundle := self._open.get(inbox)) is not None and len(bundle.data) > room:
            self._dispatch(inbox, self._open.pop(inbox))
        if bundle is None:
            bundle = self._open[inbox] = _Bundle()
        bundle.data += head
        for part in parts:
            bundle.data += part
        bundle.then.append(then)

    def flush(self) -> None:
        """Send all bundles, and then the messages that their callbacks add."""
        while self._open:
            inbox = next(iter(self._open))
            self._dispatch(inbox, self._open.pop(inbox))

    def _dispatch(self, inbox: str, bundle: _Bundle) -> None:
        sent = self._send(inbox, [memoryview(bundle.data)])
        for then in bundle.then:
            then(sent)


# --- the bytes of a datagram ------------------------------------------------------

# CLOCK_MONOTONIC in ns at the sending | bytes of data, of the subject and of the reply subject
_HEAD = struct.Struct("<QIHH")


def frame_head(size: int, subject: str, reply: str) -> bytes:
    """The bytes that precede `size` bytes of a message's data; subjects are ASCII."""
    names = subject.encode() + reply.encode()
    return _HEAD.pack(time.monotonic_ns(), size, len(names) - len(reply), len(reply)) + names


def frames(datagram: memoryview) -> list[tuple[int, str, str, bytes]]:
    """(when it was sent: `time.monotonic_ns()`, subject, reply subject, data) of each message in a
    datagram. Raises `DecodeError` where the bytes are no messages."""
    found = []
    while datagram:
        try:
            sent, size, subject_size, reply_size = _HEAD.unpack_from(datagram)
        except struct.error as error:
            raise DecodeError(f"no message: {error}") from None
        middle = _HEAD.size + subject_size
        start = middle + reply_size
        end = start + size
        if end > len(datagram):
            raise DecodeError(f"a message of {end} bytes in {len(datagram)}")
        try:
            names = str(datagram[_HEAD.size : start], "ascii")
        except UnicodeDecodeError as error:
            raise DecodeError(f"subjects are ASCII: {error}") from None
        data = bytes(datagram[start:end])
        found.append((sent, names[:subject_size], names[subject_size:], data))
        datagram = datagram[end:]
    return found


# --- who sent it ------------------------------------------------------------------

# With SO_PASSCRED the kernel tells the process, user and group of each datagram's sender, which no
# sender but root can forge (unix(7), `SCM_CREDENTIALS`; `SO_PEERCRED` says nothing of datagrams).
# The directory of the sockets keeps others out already: this holds where its rights were loosened,
# or where a socket was inherited by a process that has become another user's.
_CREDENTIALS = struct.Struct("3i")  # process, user, group: `struct ucred`
# No room for anything else: file descriptors that come along are closed by the kernel.
_ANCILLARY = socket.CMSG_SPACE(_CREDENTIALS.size) if hasattr(socket, "CMSG_SPACE") else 0
_USER = slice(4, 8)  # bytes of the user in them


def _sender(ancillary: Sequence[tuple[int, int, bytes]]) -> int:
    """The user who sent a datagram; -1 where it is not told."""
    if not ancillary or len(ancillary[0][2]) != _CREDENTIALS.size:
        return -1
    return int(_CREDENTIALS.unpack(ancillary[0][2])[1])
