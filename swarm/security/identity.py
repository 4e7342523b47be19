"""A node's identity: an Ed25519 key pair, made at the first start and kept in a file of its own."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from swarm.errors import BadKey, InvalidArgument
from swarm.security.files import create, read_private
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
                create(path, f"{encode_seed(secrets.token_bytes(32))}\n".encode())
        except OSError as error:
            raise BadKey(f"the identity {path}: {error}") from None
        return cls.load(path)

    @classmethod
    def load(cls, path: str | Path) -> Identity:
        """The identity in a file. Raises `BadKey`, also where there is none."""
        path = Path(path)
        try:
            text = read_private(path, LARGEST_FILE).decode("ascii", "replace")
            return cls(decode_seed(text.strip()))
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
