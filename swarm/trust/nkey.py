"""The nkey form of Ed25519 keys: a letter for the kind, base 32, a checksum against misreading.

    public key:  base32( kind | 32 bytes | CRC-16 )                   56 characters, "U…" for a user
    seed:        base32( "S" and kind in two bytes | 32 bytes | CRC-16 )   58 characters, "SU…"

Source: github.com/nats-io/nkeys (README, `crc16.go`, `strkey.go`). NATS accepts such a key as a
user's, so that one key can name a node to the mesh and to the server.
"""

from __future__ import annotations

import base64
import binascii
import re

from swarm.errors import InvalidArgument

_SEED = 18 << 3
_USER = 20 << 3
_PUBLIC_FORM = re.compile(r"U[A-Z2-7]{55}")
_SEED_FORM = re.compile(r"SU[A-Z2-7]{56}")


def encode_public(key: bytes) -> str:
    """The text of a user's public key of 32 bytes."""
    return _encode(bytes([_USER]) + key)


def encode_seed(seed: bytes) -> str:
    """The text of a user's secret seed of 32 bytes."""
    return _encode(bytes([_SEED | _USER >> 5, (_USER & 31) << 3]) + seed)


def decode_public(text: str) -> bytes:
    """The 32 bytes of a user's public key. Raises `InvalidArgument`."""
    if not isinstance(text, str) or _PUBLIC_FORM.fullmatch(text) is None:
        raise InvalidArgument(f"{text!r:.80} is no public key: 'U' and 55 of A-Z and 2-7")
    return _decode(text)[1:]


def decode_seed(text: str) -> bytes:
    """The 32 bytes of a user's secret seed. Raises `InvalidArgument`, which never names it."""
    if not isinstance(text, str) or _SEED_FORM.fullmatch(text) is None:
        raise InvalidArgument("this is no seed of an identity: 'SU' and 56 of A-Z and 2-7")
    return _decode(text)[2:]


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
