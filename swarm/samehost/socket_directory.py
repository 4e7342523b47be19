"""The directory in which the processes of one user on this host name their sockets.

Only its user may enter it: a process that can send here can map the receiver's shared memory too.
Nothing is read from, or sent to, sockets in a directory that somebody else could have made.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat

from swarm.subjects import INBOX

# Of the messages, in the directory's name: processes of another version are not reached this way.
VERSION = 6
MOST_SWEPT_AT_EXIT = 32  # sockets that a process looks through when it leaves; 10 us each
_LONGEST_PATH = 107  # characters, of a sockaddr_un


def enter_private(name: str) -> None:
    """Make a directory, or find it. Raises `OSError` where that cannot be, and where it is not this
    user's alone."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700)
    check_private(name)


def check_private(name: str) -> None:
    """Raises `OSError` unless a directory is there that is this user's alone."""
    found = os.lstat(name)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"{name} is not a directory of this user's alone")


class SocketDirectory:
    """parent: the directory in which this user's directory lies."""

    def __init__(self, parent: str) -> None:
        self.name = f"{parent}/swarm.{getattr(os, 'geteuid', int)()}.{VERSION}"

    def path(self, inbox: str) -> str:
        """The name of the socket of the process with that inbox. Raises `FileNotFoundError` for a
        name that cannot be one: an inbox may come from anywhere."""
        path = f"{self.name}/{inbox}"
        if INBOX.fullmatch(inbox) is None or len(path) > _LONGEST_PATH:
            raise FileNotFoundError(inbox)
        return path

    def peer(self, inbox: str) -> str:
        """The name of another process's socket, to send to. Raises `FileNotFoundError` as `path`,
        and `OSError` in a directory that is not this user's alone: where ours was removed,
        somebody else may have made one of that name."""
        path = self.path(inbox)
        check_private(self.name)
        return path

    def enter(self) -> None:
        """Make the directory, or find it. Raises `OSError` where that cannot be, and where it is
        not this user's alone."""
        enter_private(self.name)

    def bind(self, mine: socket.socket, inbox: str) -> tuple[int, int]:
        """Give a socket its name; returns device and inode of the name. Raises `OSError`."""
        path = self.path(inbox)
        self.enter()
        mine.bind(path)
        try:
            os.chmod(path, 0o600)
            found = os.lstat(path)
        except BaseException:
            os.unlink(path)
            raise
        return found.st_dev, found.st_ino

    def name_also(self, inbox: str, other: str) -> None:
        """Give the socket of that inbox another name, beside its own. Raises `OSError`."""
        os.link(self.path(inbox), self.path(other))

    def leads_to(self, inbox: str, identity: tuple[int, int]) -> bool:
        """Whether the name of that socket still has that device and inode, in a directory that is
        this user's alone. (A cleaner may have taken away either.)"""
        try:
            within = os.lstat(self.name)
            found = os.lstat(self.path(inbox))
        except OSError:
            return False
        ours = stat.S_ISDIR(within.st_mode) and within.st_uid == os.geteuid()
        alone = not within.st_mode & 0o077
        return ours and alone and (found.st_dev, found.st_ino) == identity

    def sweep(self) -> None:
        """Remove the sockets of processes that ended without removing them. Raises `OSError`."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            for entry in os.scandir(self.name):
                try:  # others sweep at the same time
                    if stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
                        probe.connect(entry.path)
                except ConnectionRefusedError:
                    with contextlib.suppress(OSError):
                        os.unlink(entry.path)
                except OSError:
                    continue

    def leave(self, inbox: str) -> None:
        """Remove the name of that socket, and the directory behind the last one. Never raises."""
        with contextlib.suppress(OSError):
            os.unlink(self.path(inbox))
            if len(os.listdir(self.name)) < MOST_SWEPT_AT_EXIT:
                self.sweep()  # there may be no later process to do it
            os.rmdir(self.name)  # refused unless it is empty
