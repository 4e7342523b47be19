"""The keys of an authority: of its operator, accounts and users, each in a file of its own."""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path

from swarm.errors import InvalidArgument
from swarm.security.files import read_private, rewrite
from swarm.security.identity import Identity
from swarm.security.nkey import USER, decode_public, decode_seed, encode_public, encode_seed
from swarm.security.readers import check_readers


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
        text = read_text(path).strip()
        try:
            return cls(kind, decode_seed(text, kind))
        except InvalidArgument as error:
            raise InvalidArgument(f"{path}: {error}") from None


def read_text(path: Path) -> str:
    """The text of a file that its owner alone may read. Raises `InvalidArgument`."""
    try:
        return read_private(path).decode()
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path}: {error}: `swarm auth init DIR` makes it") from None


def write_text(path: Path, text: str) -> None:
    """Replace a file (0600, or as it was) whole or not at all; its folder is made (0700). Raises
    `OSError`."""
    make_private_folder(path.parent)
    rewrite(path, text.encode())


def make_private_folder(folder: Path) -> None:
    """Make it (0700) where it is missing.

    Raises `InvalidArgument` for one that others may enter.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        check_readers(descriptor, folder, "others may enter it: `chmod 700 {path}`")
    except InvalidArgument as error:
        raise InvalidArgument(f"{folder}: {error}") from None
    finally:
        os.close(descriptor)
