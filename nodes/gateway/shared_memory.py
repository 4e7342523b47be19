"""Shared memory that clients of this host register: Triton's system shared memory.

A region stands in a table, and its file is opened for each tensor: nothing is mapped and no file is
kept open. So a client that cuts its file short gets an error, where a mapping would end this
process with SIGBUS, and the memory of a client that died is held by nobody.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import re
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nodes.gateway.call import Region
from swarm.errors import InvalidArgument, NotFound, PermissionDenied, ResourceExhausted
from swarm.samehost.memory import SHM_DIRECTORY
from swarm.wire.tensors import DTYPES, LIMITS, memory_of, plain

# POSIX: a slash, and a name without one (shm_open(3)); some libraries leave the slash out.
_KEY = re.compile(r"/?([A-Za-z0-9_][A-Za-z0-9_.-]{0,199})")
# Files of the directory that are no client's: the tensors of meshes, and semaphores (sem_open(3)).
_TAKEN = ("swarm-", "sem.")
LONGEST_NAME = 128  # characters of a region's name
_NO_LINKS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class RegionBounds:
    """regions: at a time. size: bytes of one. tensor: bytes of one tensor in it."""

    regions: int = 256
    size: int = 16 << 30
    tensor: int = LIMITS.bytes


class _Registered(NamedTuple):
    """file: device and inode, by which another file of the same name is told apart."""

    key: str
    offset: int
    size: int
    file: tuple[int, int]


class Regions:
    """Memory that clients have registered in the shared memory directory of this host.

    A client may name all shared memory that this process may open, but for that of meshes: who
    allows it trusts the clients that it admits. Each registration sweeps those whose file is gone
    or used by no process any more; the file itself is left, as it is the client's.
    """

    def __init__(
        self, bounds: RegionBounds = RegionBounds(), directory: str = SHM_DIRECTORY
    ) -> None:
        self._bounds = bounds
        self._directory = directory
        self._regions: dict[str, _Registered] = {}

    def register(self, name: str, key: str, offset: int, size: int) -> None:
        """A name is registered anew with the same key, or once it was swept. Raises
        `InvalidArgument`, `NotFound`, `PermissionDenied`, `ResourceExhausted`."""
        if not 0 < len(name) <= LONGEST_NAME:
            raise InvalidArgument(f"a region's name has 1 to {LONGEST_NAME} characters")
        if offset < 0 or not 0 < size <= self._bounds.size:
            raise InvalidArgument(
                f"region {name!r}: {size} bytes from {offset} on; it has 1 to {self._bounds.size}"
            )
        with self._opened(key) as file:
            found = os.fstat(file)
            if offset + size > found.st_size:
                raise InvalidArgument(
                    f"region {name!r}: {key!r} has {found.st_size} bytes, not {offset + size}"
                )
            before = self._regions.get(name)
            if before is None or before.key != key:
                self._sweep()
            if name in self._regions and self._regions[name].key != key:
                raise InvalidArgument(
                    f"region {name!r} is registered with key {self._regions[name].key!r}: "
                    "unregister it first"
                )
            if name not in self._regions and len(self._regions) >= self._bounds.regions:
                raise ResourceExhausted(f"{self._bounds.regions} regions are registered")
        self._regions[name] = _Registered(key, offset, size, (found.st_dev, found.st_ino))

    def unregister(self, name: str) -> None:
        """Forget one, or with "" all. A name that is not registered is no error."""
        if name:
            self._regions.pop(name, None)
        else:
            self._regions.clear()

    def registered(self, name: str = "") -> dict[str, tuple[str, int, int]]:
        """Key, offset and size by name. Raises `NotFound` for a name that is not registered."""
        if name:
            return {name: self._of(name)[:3]}
        return {each: region[:3] for each, region in self._regions.items()}

    def read(self, region: Region, datatype: str, shape: tuple[int, ...]) -> np.ndarray:
        """A copy of a tensor: the client may write again once it has its answer. Raises
        `InvalidArgument`, `NotFound`."""
        dtype = DTYPES[datatype]
        size = math.prod(shape) * dtype.itemsize
        if region.size not in (0, size):
            raise InvalidArgument(
                f"region {region.name!r}: {region.size} bytes, where {datatype} of shape "
                f"{list(shape)} has {size}"
            )
        with self._part(region, size) as (file, start):
            try:
                array = np.empty(shape, dtype)
            except ValueError:  # a dimension of 0 beside ones whose product no array may have
                text = f"region {region.name!r}: shape {list(shape)} is too large"
                raise InvalidArgument(text) from None
            if size and os.preadv(file, [memory_of(array)], start) != size:
                raise _cut_short(region.name)
        return array

    def write(self, region: Region, array: np.ndarray) -> None:
        """Raises `InvalidArgument` where it does not fit."""
        array = plain(array)
        if region.size and array.nbytes > region.size:
            raise InvalidArgument(
                f"region {region.name!r}: the output has {array.nbytes} bytes, and {region.size} "
                "are given for it"
            )
        with self._part(region, array.nbytes) as (file, start):
            if array.nbytes:
                os.pwritev(file, [memory_of(array)], start)

    @contextmanager
    def _part(self, region: Region, size: int) -> Iterator[tuple[int, int]]:
        """A region's file, and where in it a tensor of `size` bytes begins."""
        known = self._of(region.name)
        if size > self._bounds.tensor:
            raise InvalidArgument(f"a tensor has at most {self._bounds.tensor} bytes, not {size}")
        if region.offset < 0 or region.offset + size > known.size:
            raise InvalidArgument(
                f"region {region.name!r} has {known.size} bytes: none of its tensors has {size} "
                f"from {region.offset} on"
            )
        with self._opened(known.key) as file:
            found = os.fstat(file)
            start = known.offset + region.offset
            if (found.st_dev, found.st_ino) != known.file:
                raise NotFound(f"the memory of region {region.name!r} is gone: register it again")
            if start + size > found.st_size:
                raise _cut_short(region.name)
            yield file, start

    def _of(self, name: str) -> _Registered:
        if name not in self._regions:
            raise NotFound(f"region {name!r} is not registered")
        return self._regions[name]

    @contextmanager
    def _opened(self, key: str) -> Iterator[int]:
        """A file of shared memory; the last word on its name is here. Raises as `register`."""
        name = _KEY.fullmatch(key)
        if name is None:
            raise InvalidArgument(f"{key!r:.200} is no key of shared memory, as /camera_input is")
        if name[1].startswith(_TAKEN):
            raise PermissionDenied(f"{key!r} is no client's shared memory")
        try:
            file = os.open(os.path.join(self._directory, name[1]), _NO_LINKS)
        except FileNotFoundError:
            raise NotFound(f"there is no shared memory {key!r} on this host") from None
        except OSError as error:
            text = f"shared memory {key!r} cannot be opened here: {error.strerror}"
            raise PermissionDenied(text) from None
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise PermissionDenied(f"{key!r} is no shared memory")
            yield file
        finally:
            os.close(file)

    def _sweep(self) -> None:
        """Forget the regions of clients that died."""
        self._regions = {
            name: region for name, region in self._regions.items() if self._is_used(region)
        }

    def _is_used(self, region: _Registered) -> bool:
        try:
            with self._opened(region.key) as file:
                found = os.fstat(file)
                return (found.st_dev, found.st_ino) == region.file and not _is_left_alone(file)
        except (NotFound, PermissionDenied):
            return False


def _is_left_alone(file: int) -> bool:
    """Whether no other process has a file open or mapped for writing; False where the kernel does
    not say.

    A write lease is granted for such a file alone (fcntl(2), F_SETLEASE). A process that opens the
    file in this moment waits until the lease is given back; the kernel then sends this process a
    signal, and SIGURG is one that it ignores.
    """
    try:
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:
        return False
    with contextlib.suppress(OSError):
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return True


def _cut_short(name: str) -> InvalidArgument:
    return InvalidArgument(f"the memory of region {name!r} was cut short: register it again")
