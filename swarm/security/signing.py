"""The mesh's signatures: Ed25519 (RFC 8032) over a context and a payload.

A context names the purpose ("swarm delta 1"). A signature that was given for one purpose is no
signature for another one, even where the payloads are the same bytes:

    signed bytes:  "swarm-mesh signature 1" NUL | length of context u8 | context | payload
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from swarm.errors import BadSignature, InvalidArgument
from swarm.security.identity import Identity
from swarm.security.nkey import decode_public

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

SIGNATURE_BYTES = 64
_DOMAIN = b"swarm-mesh signature 1\0"
_CONTEXT = re.compile(r"[\x20-\x7e]{1,64}")


def sign(identity: Identity, context: str, payload: bytes) -> bytes:
    """The 64 bytes of the identity's signature of `payload` for the purpose `context`.

    Raises `InvalidArgument` for a context that is not 1 to 64 printable ASCII characters.
    """
    return identity.sign(_signed_bytes(context, payload))


def verify(public: str, context: str, payload: bytes, signature: bytes) -> None:
    """Returns when `signature` is that of the key `public` (nkey form) over context and payload.

    Raises `BadSignature` when it is not, `InvalidArgument` for a text that is no public key.
    """
    from cryptography.exceptions import InvalidSignature

    try:
        _public_key(public).verify(signature, _signed_bytes(context, payload))
    except InvalidSignature:
        raise BadSignature(f"the signature is not that of {public} for {context!r}") from None


def _signed_bytes(context: str, payload: bytes) -> bytes:
    if _CONTEXT.fullmatch(context) is None:
        raise InvalidArgument(f"{context!r:.80} is no context: 1 to 64 printable characters")
    return _DOMAIN + bytes([len(context)]) + context.encode("ascii") + payload


@lru_cache(maxsize=1024)
def _public_key(public: str) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(decode_public(public))
