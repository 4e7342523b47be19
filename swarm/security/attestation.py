"""A node's word that a key is its own, as gossip carries it: [public key, signature].

A member of the mesh can forge what others gossip. It cannot make a node pass for the holder of a
key: only the key's holder can sign "this key is that node's of this mesh". (It can claim another
node's id for a key of its own, until that node's next incarnation.)
"""

from __future__ import annotations

from functools import lru_cache

from swarm.errors import SwarmError
from swarm.security.identity import Identity
from swarm.security.signing import SIGNATURE_BYTES, sign, verify

GOSSIP_KEY = "identity"
_CONTEXT = "swarm node 1"
_PUBLIC_CHARACTERS = 56


def attest(identity: Identity, mesh: str, node: str) -> list[str | bytes]:
    """What the node `node` gossips under `GOSSIP_KEY`; below 130 bytes."""
    return [identity.public, sign(identity, _CONTEXT, _claim(mesh, node))]


def is_attestation(value: object) -> bool:
    """Whether a gossiped value has the form of an attestation; nothing is verified."""
    return (
        isinstance(value, list | tuple)
        and len(value) == 2
        and isinstance(value[0], str)
        and len(value[0]) == _PUBLIC_CHARACTERS
        and isinstance(value[1], bytes)
        and len(value[1]) == SIGNATURE_BYTES
    )


def attested_key(value: object, mesh: str, node: str) -> str | None:
    """The public key that `value`, as the node gossips it, proves to be the node's; None where it
    proves none."""
    if not is_attestation(value):
        return None
    assert isinstance(value, list | tuple)
    return value[0] if _is_genuine(value[0], value[1], mesh, node) else None


@lru_cache(maxsize=4096)
def _is_genuine(public: str, signature: bytes, mesh: str, node: str) -> bool:
    """Asked at each look at the fleet's view, and verified once."""
    try:
        verify(public, _CONTEXT, _claim(mesh, node), signature)
    except SwarmError:
        return False
    return True


def _claim(mesh: str, node: str) -> bytes:
    return f"{mesh}/{node}".encode()
