"""Who else can read a file of keys: a decision of its owner, group, mode and access list, of the
process that reads it, and of who is in which group.

The mode alone tells too little. A Secret of Kubernetes is root's, and readable by the group of its
pod, in which nobody else is. systemd's LoadCredential lets the service's user read root's file by
an access list, whose mask then stands where the group's bits are. A file that its own user left
open to a group is an oversight, which that user mends by one command.
"""

from __future__ import annotations

import errno
import functools
import grp
import logging
import os
import pwd
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from swarm.errors import InvalidArgument

log = logging.getLogger("swarm.security")

ACCESS_LIST = "system.posix_acl_access"
_NO_LIST = (errno.ENODATA, errno.EOPNOTSUPP, errno.ENOSYS)
_HEAD, _ENTRY, _VERSION = struct.Struct("<I"), struct.Struct("<HHI"), 2
_USER, _OWN_GROUP, _GROUP, _MASK = 2, 4, 8, 16  # tags of entries

Members = Callable[[int], "frozenset[int] | None"]


class ReadersJudgement(Enum):
    """ALONE: this process, the owner and root. DOUBTFUL: a group that is in none of the
    system's lists. OTHERS: somebody else."""

    ALONE = "alone"
    DOUBTFUL = "doubtful"
    OTHERS = "others"


@dataclass(frozen=True, slots=True)
class FilePermissions:
    """Of a file. mode: as of `stat`. users, groups: the entries of its access list by id, three
    bits each, with those of the owning group; both None where the file has no list."""

    owner: int
    group: int
    mode: int
    users: Mapping[int, int] | None = None
    groups: Mapping[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Process:
    """Who reads: effective user, and all groups."""

    user: int
    groups: frozenset[int] = field(default_factory=frozenset)

    @classmethod
    def own(cls) -> Process:
        return cls(os.geteuid(), frozenset({os.getegid(), *os.getgroups()}))


def judge(
    permissions: FilePermissions, process: Process, members: Members
) -> tuple[ReadersJudgement, str]:
    """Who else may read or write the file, and in words who that is; "" for nobody. members: the
    users in a group by the system's own lists, None for a group that is in none of them."""
    if permissions.mode & 0o007:
        return ReadersJudgement.OTHERS, "everybody"
    if permissions.owner == process.user and permissions.mode & 0o200 and permissions.mode & 0o070:
        return ReadersJudgement.OTHERS, "its group"
    known = {0, process.user, permissions.owner}
    for user, bits in (permissions.users or {}).items():
        if bits and user not in known:
            return ReadersJudgement.OTHERS, f"the user {user}"
    groups = permissions.groups
    if groups is None:
        groups = {permissions.group: permissions.mode >> 3 & 0o7}
    doubt = ""
    for group in (group for group, bits in groups.items() if bits):
        found = members(group)
        if found is not None and found - known:
            return ReadersJudgement.OTHERS, f"the group {group}, in which others are"
        # A process in a group without a name was put there by whatever started it.
        if found is None and group not in process.groups:
            doubt = f"whoever runs in the group {group}"
    return (ReadersJudgement.DOUBTFUL, doubt) if doubt else (ReadersJudgement.ALONE, "")


def acl_of(value: bytes, group: int) -> tuple[dict[int, int], dict[int, int]]:
    """The users and groups of an access list, as Linux keeps it, each with the bits that the mask
    leaves. group: the file's own. Raises `ValueError` for bytes that are none."""
    body = value[_HEAD.size :]
    if (
        len(value) < _HEAD.size
        or _HEAD.unpack_from(value)[0] != _VERSION
        or len(body) % _ENTRY.size
    ):
        raise ValueError("no access list of a kind that is known")
    entries = list(_ENTRY.iter_unpack(body))
    mask = next((bits for tag, bits, _ in entries if tag == _MASK), 0o7)
    users = {who: bits & mask for tag, bits, who in entries if tag == _USER}
    groups = {
        group if tag == _OWN_GROUP else who: bits & mask
        for tag, bits, who in entries
        if tag in (_OWN_GROUP, _GROUP)
    }
    if not any(tag == _OWN_GROUP for tag, _, _ in entries):
        raise ValueError("an access list without the owning group")
    return users, groups


def permissions_of(descriptor: int) -> FilePermissions:
    """Of an open file. Raises `OSError`, and `ValueError` for an access list of another kind."""
    state = os.fstat(descriptor)
    value = _access_list(descriptor)
    lists = acl_of(value, state.st_gid) if value else (None, None)
    return FilePermissions(state.st_uid, state.st_gid, state.st_mode, *lists)


def _access_list(descriptor: int) -> bytes:
    try:
        return os.getxattr(descriptor, ACCESS_LIST)
    except AttributeError:  # only Linux keeps it so
        return b""
    except OSError as error:
        if error.errno in _NO_LIST:
            return b""
        raise


def members_of(group: int) -> frozenset[int] | None:
    """The ids of the users in a group by this system's lists of users and groups."""
    first = {user.pw_uid for user in pwd.getpwall() if user.pw_gid == group}
    try:
        names = grp.getgrgid(group).gr_mem
    except KeyError:
        return frozenset(first) if first else None
    return frozenset(first | {uid for name in names if (uid := _uid(name)) is not None})


def _uid(name: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None  # it was deleted: nobody runs as it


OF_A_FILE = "others may read it: `chmod 600 {path}`, or make a new one"


def check_readers(descriptor: int, path: object, refusal: str = OF_A_FILE) -> None:
    """Raises `InvalidArgument` for an open file or folder that others may read, and warns once of
    one where that is doubtful. refusal: in words, with `{path}`."""
    try:
        found, who = judge(permissions_of(descriptor), Process.own(), members_of)
    except ValueError as error:
        raise InvalidArgument(f"who may read it cannot be told ({error}): `setfacl -b`") from None
    if found is ReadersJudgement.OTHERS:
        raise InvalidArgument(f"{refusal.format(path=path)} ({who})")
    if found is ReadersJudgement.DOUBTFUL:
        _warn(str(path), who)


@functools.lru_cache(maxsize=256)
def _warn(path: str, who: str) -> None:
    log.warning("%s: %s may read it, too: `chmod 600` it, or start this in that group", path, who)


def refused_by_kernel(path: str, error: OSError) -> str:
    """Why a file cannot be read, with whose it is and who asks."""
    reason = error.strerror or str(error)
    if error.errno != errno.EACCES:
        return reason
    try:
        state = os.stat(path)
    except OSError:  # its folder is closed, too
        return f"{reason} for the user {os.geteuid()}"
    return (
        f"{reason}: it is of the user {state.st_uid} and the group {state.st_gid} with mode "
        f"{state.st_mode & 0o7777:04o}, and this is the user {os.geteuid()}"
    )
