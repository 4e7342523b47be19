"""A node's identity: an Ed25519 key pair, made at the first start and kept in a file of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from swarm.errors import BadKey, InvalidArgument
from swarm.security.nkey import decode_seed, encode_public, encode_seed

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

LARGEST_FILE = 4096  # bytes; a seed has 58


class Identity:
    """A key pair; `public` is its public half in nkey form, "U…".

    `swarm.security.signing.sign` makes signatures that say for which purpose they were given.
    """

    def __init__(self, seed: bytes) -> None:
        """seed: 32 secret bytes. Raises `InvalidArgument` for another length."""
        if len(seed) != 32:
            raise InvalidArgument(f"a seed of {len(seed)} bytes; an identity has 32")
        self._key = _private_key(seed)
        self.public = encode_public(self._key.public_key().public_bytes_raw())

    @classmethod
    def make(cls) -> Identity:
        """A new identity that is kept nowhere."""
        return cls(secrets.token_bytes(32))

    @classmethod
    def load_or_make(cls, path: str | Path) -> Identity:
        """The identity in a file (mode 0600), which is made with its folder (0700) when missing.

        Raises `BadKey` for a file that others may read, or that holds no seed, and where it cannot
        be read or written.
        """
        path = Path(path)
        try:
            if not path.exists():
                _write_new(path, encode_seed(secrets.token_bytes(32)))
        except OSError as error:
            raise BadKey(f"the identity {path}: {error}") from None
        return cls.load(path)

    @classmethod
    def load(cls, path: str | Path) -> Identity:
        """The identity in a file. Raises `BadKey`, also where there is none."""
        path = Path(path)
        try:
            return cls(decode_seed(_read(path)))
        except FileNotFoundError:
            raise BadKey(f"the identity {path} does not exist: `swarm keys new {path}`") from None
        except (OSError, InvalidArgument) as error:
            raise BadKey(f"the identity {path}: {error}") from None

    def sign(self, message: bytes) -> bytes:
        """The 64 bytes of an Ed25519 signature of exactly these bytes."""
        return self._key.sign(message)

    def __repr__(self) -> str:
        return f"Identity({self.public})"


def _private_key(seed: bytes) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(seed)


def _read(path: Path) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise InvalidArgument("it is no file")
        if mode & 0o077:
            raise InvalidArgument(f"others may read it: `chmod 600 {path}`, or make a new one")
        data = file.read(LARGEST_FILE)
    return data.decode("ascii", "replace").strip()


def _write_new(path: Path, text: str) -> None:
    """Write the file whole or not at all; one that another process wrote meanwhile stays."""
    if not path.parent.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink()
