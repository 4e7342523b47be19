"""Messages between processes of one host without the server: a datagram on a socket of the kernel.

A leg through the server wakes two processes, a datagram one (0.01-0.03 ms here, measured). Nothing
is kept here: what must not be lost is stored beside it, or by its sender, who is told when it is
done (`swarm.transport.handover`). A message that a full or missing socket refuses goes through the
server.

Each process has one socket, named by its inbox, in a directory that only its user may enter: who
can send here can map its shared memory too. Nothing is read from, or sent to, another user's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import stat
import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial

from swarm.errors import SwarmError
from swarm.link import Link, LinkMessage
from swarm.local.connections import Connections, largest_datagram
from swarm.local.datagrams import LARGEST_DATAGRAM, Bundles, Then, frame_head, frames
from swarm.shm import SHM_DIRECTORY
from swarm.subjects import INBOX
from swarm.wire.tensors import Part

log = logging.getLogger("swarm.direct")

# Bytes; larger messages go by shared memory, or through the server. A socket takes ten datagrams by
# default (net.unix.max_dgram_qlen), and a sender 416 KB that are not read: both, of the largest.
LARGEST_MESSAGE = 20_000
SWEEP_EVERY = 30.0  # seconds
MOST_KNOWN_INBOXES = 256
FEW = 32  # sockets that whoever leaves looks through; 10 us each
# Of the messages, in the directory's name: processes of another version are not reached this way.
VERSION = 6
_LONGEST_PATH = 107  # sockaddr_un
LIVING = "living"  # the subject of the question whether a process's loop turns

# (message, when it was sent: time.monotonic_ns(), where its sender waits for `answer`, or "")
OnMessage = Callable[[bytes, int, str], None]


class HostSocket:
    """One process's socket. Without one (`open` was not called, or failed) nothing is sent.

    on_unheard(subject, data, reply) is called for a message that nobody listens for here (any
    more): its sender thinks that it was delivered. directory: where the directory of this user's
    sockets lies.
    """

    def __init__(
        self,
        link: Link,
        *,
        on_unheard: Callable[[str, bytes, str], None] = lambda subject, data, reply: None,
        directory: str = SHM_DIRECTORY,
    ) -> None:
        self._link = link
        self._directory = f"{directory}/swarm.{getattr(os, 'geteuid', int)()}.{VERSION}"
        self._identity = (0, 0)  # of the socket's name: device, inode
        self._wanted = False  # to be reachable
        self._failed = ""  # why it is not, as logged
        self._replies = link.options.inbox + "."
        self._listeners: dict[str, OnMessage] = {}
        self._on_unheard = on_unheard
        self._socket: socket.socket | None = None
        self._buffer = memoryview(b"")
        self._swept = 0.0
        # A process that something was sent to is not there (any more).
        self.on_gone: list[Callable[[str], None]] = []
        self._senders = Connections(self._path, self._gone)
        self._bundles = Bundles(self._senders.send)
        self.sent = 0
        self.received = 0

    # --- sending ----------------------------------------------------------------------

    def send(self, inbox: str, subject: str, parts: Sequence[Part], reply: str = "") -> bool:
        """Whether the message lies in the socket of the process with that inbox. False, and nothing
        is sent, when it has none, is full, or the message is too large.

        reply: where it is said what became of it (`answer`)."""
        size = sum(map(len, parts))
        if self._socket is None or size > LARGEST_MESSAGE:
            return False
        sent = self._senders.send(inbox, (frame_head(size, subject, reply), *parts))
        self.sent += sent
        return sent

    def post(
        self, inbox: str, subject: str, parts: Sequence[Part], then: Then, reply: str = ""
    ) -> None:
        """The same with the rest of a burst (`Link.bursting`), or at once; then(sent) is told, at
        once or soon, what `send` returns. It should not raise; the parts are copied."""
        together = self._link.bursting and self._socket is not None
        if not together or (size := sum(map(len, parts))) > LARGEST_MESSAGE:
            then(self.send(inbox, subject, parts, reply))
            return
        self._bundles.add(inbox, frame_head(size, subject, reply), parts, partial(self._tell, then))
        self._link.gather.gathered()

    def answer(self, reply: str, parts: Sequence[Part], then: Then) -> None:
        """`post` to a reply subject that a process of this host is waiting on."""
        self.post(reply.rpartition(".")[0], reply, parts, then)

    def _gone(self, inbox: str) -> None:
        """Never raises: the messages to others of the same burst must go."""
        for callback in self.on_gone:
            try:
                callback(inbox)
            except Exception:
                self._link.callback_errors += 1
                log.exception("what follows the end of a process of this host failed")

    def _tell(self, then: Then, sent: bool) -> None:
        self.sent += sent
        try:
            then(sent)
        except Exception:
            self._link.callback_errors += 1
            log.exception("what follows a message to this host failed")

    def _path(self, inbox: str) -> str:
        """Raises `OSError` for what names no socket: an inbox may come from anywhere."""
        path = f"{self._directory}/{inbox}"
        if INBOX.fullmatch(inbox) is None or len(path) > _LONGEST_PATH:
            raise FileNotFoundError(inbox)
        return path

    # --- receiving --------------------------------------------------------------------

    def listen(self, subject: str, callback: OnMessage) -> None:
        """Take what is sent for a subject; it must not block."""
        self._listeners[subject] = callback

    def forget(self, subject: str) -> None:
        """Take it no more."""
        self._listeners.pop(subject, None)

    def _readable(self) -> None:
        assert self._socket is not None
        try:
            # One: where more have come, the loop calls again, for less than it costs to ask.
            size = self._socket.recv_into(self._buffer)
        except OSError:
            return
        try:
            messages = frames(self._buffer[:size])
        except ValueError:
            self._link.callback_errors += 1
            log.exception("a datagram from this host is damaged")
            return
        if len(messages) == 1:
            self._received(*messages[0])
            return
        self._link.gather.begin(len(messages))
        for message in messages:
            self._received(*message)
        self._link.gather.end()

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
        if subject.startswith(self._replies):
            self._link.deliver(LinkMessage(subject, "", None, data))
        elif (callback := self._listeners.get(subject)) is not None:
            callback(data, sent, reply)
        elif subject == LIVING:
            if reply and not self.send(reply.rpartition(".")[0], reply, []):
                with contextlib.suppress(SwarmError):
                    self._link.publish(reply, b"")
        else:
            self._on_unheard(subject, data, reply)

    # --- life -------------------------------------------------------------------------

    def open(self) -> str:
        """Be reachable from this host's processes: the inbox under which, or "" where that cannot
        be, which is logged; `tend` tries again."""
        self._wanted = True
        try:
            self._open()
        except (OSError, AttributeError) as error:
            if (reason := str(error)) != self._failed:
                log.info("messages of this host go through the server: %s", reason)
            self._failed = reason
            return ""
        self._failed = ""
        return self._link.options.inbox

    def _open(self) -> None:
        path = self._path(self._link.options.inbox)
        self._enter()
        self._bundles.largest = min(LARGEST_DATAGRAM, largest_datagram())
        with contextlib.ExitStack() as undo:
            mine = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            undo.enter_context(mine)
            mine.bind(path)
            undo.callback(os.unlink, path)
            os.chmod(path, 0o600)
            found = os.lstat(path)
            asyncio.get_running_loop().add_reader(mine, self._readable)
            undo.pop_all()
        self._identity = found.st_dev, found.st_ino
        self._buffer = memoryview(bytearray(LARGEST_DATAGRAM + LARGEST_MESSAGE))
        self._link.gather.before.append(self._bundles.flush)
        self._socket = mine

    def _enter(self) -> None:
        """Make the directory, or find it; it is ours alone. Raises `OSError`."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._directory, 0o700)
        found = os.lstat(self._directory)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(f"{self._directory} is not a directory of this user's alone")

    def tend(self) -> None:
        """Call about every second. Never raises."""
        if not self._wanted:
            return
        if not self._reachable():
            # A cleaner took the directory away, or what is in it.
            self.close()
            self.open()
        if self._socket is not None and time.monotonic() - self._swept > SWEEP_EVERY:
            self._swept = time.monotonic()
            with contextlib.suppress(OSError):
                self._sweep()

    def _reachable(self) -> bool:
        """Whether the name still leads to this process's socket, in a directory of ours alone."""
        try:
            self._enter()
            found = os.lstat(self._path(self._link.options.inbox))
        except OSError:
            return False
        return self._socket is not None and (found.st_dev, found.st_ino) == self._identity

    def _sweep(self) -> None:
        """Remove the sockets of processes that ended without a word. Raises `OSError`."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            for entry in os.scandir(self._directory):
                try:  # others sweep at the same time
                    if stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
                        probe.connect(entry.path)
                except ConnectionRefusedError:
                    with contextlib.suppress(OSError):
                        os.unlink(entry.path)
                except OSError:
                    continue

    def close(self) -> None:
        """Not reachable any more."""
        self._wanted = False
        self._bundles.flush()
        self._senders.close()
        mine, self._socket = self._socket, None
        if mine is not None:
            self._link.gather.before.remove(self._bundles.flush)
            asyncio.get_running_loop().remove_reader(mine)
            with contextlib.suppress(OSError):
                os.unlink(self._path(self._link.options.inbox))
                if len(os.listdir(self._directory)) < FEW:
                    self._sweep()  # nobody may be left to do it
                os.rmdir(self._directory)  # by the last one
            mine.close()


def _is_reply_subject(reply: str) -> bool:
    """Whether `reply` is a process's inbox and a number behind it, as `Link.expect` makes them. A
    subject of any other form could become a command to the server."""
    inbox, _, token = reply.rpartition(".")
    return token.isascii() and token.isalnum() and _is_inbox(inbox)


# Kept: with cold caches the expression takes 10 us.
@lru_cache(maxsize=MOST_KNOWN_INBOXES)
def _is_inbox(inbox: str) -> bool:
    return INBOX.fullmatch(inbox) is not None
