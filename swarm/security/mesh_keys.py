"""The mesh's key, with which members mark their gossip, in a file; and its change in three steps.

A file holds one key of 16 to 64 bytes. During a change it holds two, a line each: messages are
marked with the first, and messages that are marked with either are taken.

    step      the file                 nodes whose file is of the step before or after understand it
    1         OLD, then NEW  next      they mark with the old key, and take both
    2         NEW, then OLD  before    they mark with the new key, and take both
    3         NEW                      they mark with the new key, and take it alone

So all members understand each other as long as no step begins before all have the file of the
last one.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from swarm.errors import BadKey, InvalidArgument
from swarm.security.files import alone, read_private, replace

LEAST, MOST = 16, 64  # bytes of a key
NEXT, BEFORE = "next", "before"
_LARGEST_FILE = 4096  # bytes
_LINE = re.compile(rb"([!-~]{16,64})(?:[ \t]+(next|before))?")


@dataclass(frozen=True)
class MeshKeys:
    """marks: the key of what is sent. also: another key that is taken, b"" for none. phase: what
    `also` is, `next` or `before`."""

    marks: bytes
    also: bytes = b""
    phase: str = ""

    @property
    def accepted(self) -> tuple[bytes, ...]:
        """All keys that are taken; the first marks."""
        return (self.marks, self.also) if self.also else (self.marks,)

    @property
    def step(self) -> int:
        """Of a change: 1 or 2; 0 where none is under way."""
        return {NEXT: 1, BEFORE: 2}.get(self.phase, 0)

    def advanced(self, fresh: bytes) -> MeshKeys:
        """The keys of the next step. fresh: the new key, if a change begins with it."""
        if self.phase == NEXT:
            return MeshKeys(self.also, self.marks, BEFORE)
        if self.phase == BEFORE:
            return MeshKeys(self.marks)
        return MeshKeys(self.marks, fresh, NEXT)

    def text(self) -> bytes:
        """As a file holds them."""
        if not self.also:
            return self.marks + b"\n"
        return self.marks + b"\n" + self.also + b"  " + self.phase.encode() + b"\n"


def new_key() -> bytes:
    """A key that nobody has had before."""
    return secrets.token_hex(32).encode()


def key_id(key: bytes) -> str:
    """What people compare between devices; it tells nothing of the key."""
    return hashlib.sha256(b"swarm mesh key\0" + key).hexdigest()[:16]


def read_mesh_keys(path: str | Path) -> MeshKeys:
    """The keys in a file. Raises `BadKey` for a file that cannot be read, that others may read, or
    that holds no key."""
    try:
        data = read_private(path, _LARGEST_FILE)
    except InvalidArgument as error:
        raise BadKey(f"--mesh-key {path}: {error}") from None
    except OSError as error:
        raise BadKey(
            f"--mesh-key {path}: {error.strerror}: give a file that this user may read; `swarm "
            f"keys new --mesh-key {path}` makes one"
        ) from None
    lines = [_LINE.fullmatch(line.strip()) for line in data.strip().splitlines()]
    if len(lines) == 2 and lines[0] and lines[1] and not lines[0][2] and lines[1][2]:
        if lines[0][1] == lines[1][1]:
            raise BadKey(f"--mesh-key {path} holds one key twice: `swarm keys new` makes another")
        return MeshKeys(lines[0][1], lines[1][1], lines[1][2].decode())
    key = data.strip()
    if not LEAST <= len(key) <= MOST:
        raise BadKey(
            f"--mesh-key {path} holds {len(key)} bytes; {LEAST} to {MOST} are needed: `swarm keys "
            "new --mesh-key FILE` makes a key"
        )
    return MeshKeys(key)


def make_mesh_key(path: Path) -> MeshKeys:
    """Write a new key to a new file (0600). Raises `BadKey`, also where there is a file."""
    try:
        with alone(path):
            if path.exists():
                raise BadKey(
                    f"{path} exists, and a key is not overwritten: `swarm keys rotate --mesh-key "
                    f"{path}`"
                )
            return _written(path, MeshKeys(new_key()))
    except OSError as error:
        raise BadKey(f"--mesh-key {path} cannot be written: {error}") from None


def rotate_mesh_key(path: Path) -> MeshKeys:
    """Take the next step of a change of the key in a file. Raises `BadKey`."""
    try:
        with alone(path):
            return _written(path, read_mesh_keys(path).advanced(new_key()))
    except OSError as error:
        raise BadKey(f"--mesh-key {path} cannot be written: {error}") from None


def _written(path: Path, keys: MeshKeys) -> MeshKeys:
    replace(path, keys.text())
    return keys
