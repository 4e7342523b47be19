"""Which processes can share memory with this one, and whether any can."""

from __future__ import annotations

import hashlib
import os
import sys

from . import claim, slots
from .errors import ShmUnavailable

SHM_DIRECTORY = "/dev/shm"
# Left alone for everyone else on the host: Docker's default /dev/shm is 64 MB for all processes of
# a container, and a full tmpfs kills others with SIGBUS.
RESERVE_BYTES = 4 << 20
HOST_CLOCKS = 0xEFFFFFFA  # the inode of the kernel's first time namespace (proc_ns.h)
VERSIONS = f"{claim.VERSION}.{slots.SEGMENT_VERSION}"


def unavailable(directory: str = SHM_DIRECTORY) -> str | None:
    """Why shared memory cannot be used in `directory`, in words for an operator; None when it can.

    Never raises. Creates nothing that outlives the call.
    """
    if not sys.platform.startswith("linux"):
        return f"shared memory is used on Linux only, this is {sys.platform}"
    try:
        free = free_bytes(directory)
        if free <= RESERVE_BYTES:
            return f"{directory} has {free} bytes free, {RESERVE_BYTES} of them stay reserved"
        os.close(os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError as error:
        return f"{directory}: {error.strerror or error}"
    return None


def free_bytes(directory: str) -> int:
    """Bytes that an unprivileged process may still allocate in `directory` (statvfs).

    Raises:
        OSError: the directory does not exist or cannot be read.
    """
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


def host_id(directory: str = SHM_DIRECTORY) -> str:
    """16 hexadecimal digits, equal for processes that can open each other's segments.

    Made of the kernel's boot id (this boot of this kernel), device and inode of the mounted
    directory (a container with its own /dev/shm has its own superblock, hence another device
    number), the user namespace, a time namespace that is not the host's (messages between processes
    of a host are timed by CLOCK_MONOTONIC, which has another zero there), the effective user id
    (segments are readable by their owner only) and the versions of claims and segments (nodes of
    another version get the bytes). Equality is necessary, not sufficient: machines cloned from one
    snapshot of a running system share a boot id, and then a claim ends in `ShmGone`.

    Raises:
        ShmUnavailable: not Linux, or the directory does not exist.
    """
    if not sys.platform.startswith("linux"):
        raise ShmUnavailable(f"shared memory is used on Linux only, this is {sys.platform}")
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        mount = os.stat(directory)
        namespace = os.stat("/proc/self/ns/user").st_ino
    except OSError as error:
        raise ShmUnavailable(f"{error.filename}: {error.strerror}") from error
    identity = f"{boot} {mount.st_dev} {mount.st_ino} {namespace} {os.geteuid()} {VERSIONS}"
    if (clocks := _time_namespace()) != HOST_CLOCKS:
        identity += f" {clocks}"
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def _time_namespace() -> int:
    """The inode of this process's time namespace; the host's where the kernel has no such thing."""
    try:
        return os.stat("/proc/self/ns/time").st_ino
    except OSError:
        return HOST_CLOCKS
