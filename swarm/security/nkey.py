"""The nkey form of Ed25519 keys: a letter for the kind, base 32, a checksum against misreading.

    public key:  base32( kind | 32 bytes | CRC-16 )                   56 characters, "U…" for a user
    seed:        base32( "S" and kind in two bytes | 32 bytes | CRC-16 )   58 characters, "SU…"

Kinds: U a user (a node too), A an account, O an operator.
Source: github.com/nats-io/nkeys (README, `crc16.go`, `strkey.go`). NATS accepts such a key as a
user's, so that one key can name a node to the mesh and to the server.
"""

from __future__ import annotations

import base64
import binascii
import re

from swarm.errors import InvalidArgument

USER, ACCOUNT, OPERATOR = "U", "A", "O"
KINDS = {USER: 20 << 3, ACCOUNT: 0, OPERATOR: 14 << 3}
_SEED = 18 << 3
_SEED_FORM = re.compile(r"S[UAO][A-Z2-7]{56}")


def encode_public(key: bytes, kind: str = USER) -> str:
    """The text of a public key of 32 bytes."""
    return _encode(bytes([KINDS[kind]]) + key)


def encode_seed(seed: bytes, kind: str = USER) -> str:
    """The text of a secret seed of 32 bytes."""
    prefix = KINDS[kind]
    return _encode(bytes([_SEED | prefix >> 5, (prefix & 31) << 3]) + seed)


def decode_public(text: str, kind: str = USER) -> bytes:
    """The 32 bytes of a public key. Raises `InvalidArgument`."""
    if not isinstance(text, str) or re.fullmatch(kind + r"[A-Z2-7]{55}", text) is None:
        raise InvalidArgument(f"{text!r:.80} is no public key: {kind!r} and 55 of A-Z and 2-7")
    return _decode(text)[1:]


def decode_seed(text: str, kind: str = USER) -> bytes:
    """The 32 bytes of a secret seed. Raises `InvalidArgument`, which never names it."""
    if not isinstance(text, str) or _SEED_FORM.fullmatch(text) is None:
        raise InvalidArgument(f"this is no seed of {_AN[kind]}: 'S{kind}' and 56 of A-Z and 2-7")
    if text[1] != kind:
        raise InvalidArgument(f"this is the key of {_AN[text[1]]}, and {_AN[kind]}'s is needed")
    return _decode(text)[2:]


_AN = {USER: "an identity", ACCOUNT: "an account", OPERATOR: "an operator"}


def _encode(body: bytes) -> str:
    checked = body + binascii.crc_hqx(body, 0).to_bytes(2, "little")
    return base64.b32encode(checked).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    raw = base64.b32decode(text + "=" * (-len(text) % 8))
    body, checksum = raw[:-2], int.from_bytes(raw[-2:], "little")
    # Spare bits of the last character must be zero: one key has one text.
    if binascii.crc_hqx(body, 0) != checksum or _encode(body) != text:
        raise InvalidArgument("a key with a wrong checksum: it was mistyped or cut")
    return body
