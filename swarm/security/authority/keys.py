"""The keys of an authority: of its operator, accounts and users, each in a file of its own."""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from pathlib import Path

from swarm.errors import InvalidArgument
from swarm.security.identity import Identity
from swarm.security.nkey import USER, decode_public, decode_seed, encode_public, encode_seed


class AuthorityKey:
    """An Ed25519 key pair of one kind. public: "O…", "A…" or "U…"."""

    def __init__(self, kind: str, secret: bytes) -> None:
        identity = Identity(secret)
        self.kind = kind
        self.public = encode_public(decode_public(identity.public), kind)
        self.seed = encode_seed(secret, kind)
        self.sign = identity.sign

    @classmethod
    def new(cls, kind: str = USER) -> AuthorityKey:
        """A key that nobody has had before."""
        return cls(kind, secrets.token_bytes(32))

    def derived(self, kind: str, name: str) -> AuthorityKey:
        """Another key, which follows from this one and a name: whoever has this one can make it."""
        secret = decode_seed(self.seed, self.kind)
        return AuthorityKey(kind, hmac.digest(secret, name.encode(), "sha256"))

    @classmethod
    def read(cls, path: Path, kind: str) -> AuthorityKey:
        """The key in a file. Raises `InvalidArgument`, which names the file."""
        try:
            return cls(kind, decode_seed(read_private(path).strip(), kind))
        except InvalidArgument as error:
            raise InvalidArgument(f"{path}: {error}") from None


def read_private(path: Path) -> str:
    """The text of a file that its owner alone may read. Raises `InvalidArgument`."""
    try:
        with path.open(encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise InvalidArgument(f"{path}: others may read it: `chmod 600 {path}`")
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path}: {error}: `swarm auth init DIR` makes it") from None


def write_private(path: Path, text: str) -> None:
    """Replace a file (0600) whole or not at all; its folder is made (0700). Raises `OSError`."""
    make_private_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def make_private_folder(folder: Path) -> None:
    """Make it (0700) where it is missing.

    Raises `InvalidArgument` for one that others may enter.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = folder.stat().st_mode
    if not stat.S_ISDIR(mode) or mode & 0o077:
        raise InvalidArgument(f"{folder}: others may enter it: `chmod 700 {folder}`")
