"""One file in the shared-memory directory: made, grown and opened.

`multiprocessing.shared_memory` is not used: its resource tracker unlinks segments that belong to
others. This is `open`, `flock` and `mmap`.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat

from . import slots
from .claim import mesh_of, segment_name
from .errors import ClaimError, ShmGone, ShmUnavailable

MODE = 0o600
_MADV_POPULATE_WRITE = 23  # Linux 5.14; not among Python 3.11's constants

# The errors of opening a symbolic link, another user's file, a directory or a socket.
_NOT_OURS = frozenset({errno.ELOOP, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENXIO})


class OwnedSegment:
    """A segment that this process writes, and holds locked for as long as it lives.

    The lock is an `flock`: it belongs to the open file, so the kernel drops it when the process
    dies, whatever it dies of, and it works between containers that see different process ids. (A
    POSIX record lock would go with the first close of *any* descriptor of the file.)

    The file never shrinks: a reader touching a page that is gone would die of SIGBUS.
    """

    def __init__(self, directory: str, name: str, file: int, memory: mmap.mmap) -> None:
        self.name = name
        self.memory = memory
        self.view = memoryview(memory)  # kept: making one takes as long as a header
        self.size = slots.FIRST_SLOT
        self._path = os.path.join(directory, name)
        self._file = file

    @classmethod
    def create(cls, directory: str, mesh: str, capacity: int) -> OwnedSegment:
        """A segment of one page, which may grow up to `capacity` bytes.

        The file gets its name last (`O_TMPFILE`, then `linkat`, which is exclusive): nobody ever
        sees one that is unlocked or has no header, and a death half-way leaves nothing behind.
        Measured: 0.07 ms.

        Raises:
            OSError: no room, no permission, or a file system without O_TMPFILE.
        """
        import fcntl  # absent on Windows, where this module must still import

        file = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, MODE)
        memory = None
        try:
            os.fchmod(file, MODE)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Python maps no more than the file holds. The file is short again before anyone
            # can see it, and the owner touches only what `grow` has allocated.
            os.ftruncate(file, capacity)
            memory = mmap.mmap(file, capacity)
            os.ftruncate(file, 0)
            os.posix_fallocate(file, 0, slots.FIRST_SLOT)
            process = os.getpid()
            header = (slots.SEGMENT_MAGIC, slots.SEGMENT_VERSION, process, 0.0)
            slots.SEGMENT_HEADER.pack_into(memory, 0, *header)
            name = segment_name(mesh, process)
            # Python calls linkat, which can follow /proc's link, only when given a directory.
            place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                source = f"/proc/self/fd/{file}"
                os.link(source, name, src_dir_fd=place, dst_dir_fd=place, follow_symlinks=True)
            finally:
                os.close(place)
        except BaseException:
            if memory is not None:
                memory.close()
            os.close(file)
            raise
        return cls(directory, name, file, memory)

    def grow(self, size: int) -> None:
        """Make the file `size` bytes long, with every page really there.

        Measured: 0.5 ms for each MB, most of it zeroing, and paid once.

        Raises:
            OSError: the file system is full (ENOSPC, here, instead of SIGBUS at the first store).
        """
        os.posix_fallocate(self._file, self.size, size - self.size)
        with contextlib.suppress(OSError):  # older kernel: the pages are mapped at first touch
            self.memory.madvise(_MADV_POPULATE_WRITE, self.size, size - self.size)
        self.size = size

    def is_linked(self) -> bool:
        """Whether the name still exists: logind (RemoveIPC) and tmp cleaners delete such files."""
        return os.fstat(self._file).st_nlink > 0

    def close(self, *, unlink: bool) -> None:
        """Unmap and unlock; with `unlink` also remove the name, which frees the memory."""
        if unlink:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
        # mmap holds a duplicate of the descriptor: both must go for the lock to go.
        self.view.release()
        self.memory.close()
        os.close(self._file)


def open_segment(directory: str, name: str, *, oldest: int = slots.SEGMENT_VERSION) -> int:
    """A descriptor, for reading and writing, of the named segment, after everything about the file
    has been checked.

    oldest: the oldest version of the layout that is accepted. A caller that reads slots accepts
    only ours.

    Raises:
        ShmGone: there is no such file.
        ClaimError: it is not a regular file of this user, mode 0600, with a segment's header.
        ShmUnavailable: this process can open nothing more.
    """
    if mesh_of(name) is None:
        raise ClaimError("not the name of a segment")
    # NONBLOCK: a FIFO by that name must not hang us. NOFOLLOW: nor may a symbolic link lead away.
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        file = os.open(os.path.join(directory, name), flags)
    except FileNotFoundError as error:
        raise ShmGone(f"segment {name} does not exist") from error
    except OSError as error:
        kind = ClaimError if error.errno in _NOT_OURS else ShmUnavailable
        raise kind(f"segment {name}: {error.strerror}") from error
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or stat.S_IMODE(status.st_mode) != MODE:
            raise ClaimError(f"segment {name} is not a regular file of mode 0600")
        if status.st_uid != os.geteuid():
            raise ClaimError(f"segment {name} belongs to user {status.st_uid}")
        read_header(file, name, oldest)
    except BaseException:
        os.close(file)
        raise
    return file


def read_header(file: int, name: str, oldest: int = slots.SEGMENT_VERSION) -> float:
    """When the owner was found dead, seconds of CLOCK_MONOTONIC; 0.0 when it was not.

    Raises:
        ClaimError: the file does not begin like a segment of a version from `oldest` to ours.
    """
    data = os.pread(file, slots.SEGMENT_HEADER.size, 0)
    if len(data) == slots.SEGMENT_HEADER.size:
        magic, version, _process, orphaned_at = slots.SEGMENT_HEADER.unpack(data)
        if magic == slots.SEGMENT_MAGIC and oldest <= version <= slots.SEGMENT_VERSION:
            return float(orphaned_at)
    raise ClaimError(f"segment {name} has no header of version {slots.SEGMENT_VERSION}")
