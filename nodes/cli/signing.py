"""Who signs what an operator's command writes, and whose desired state it goes on from."""

from __future__ import annotations

import os
from typing import Any

from swarm.security.signed_entries import Verifier
from swarm.security.trusted_keys import TrustedKeys, own_key

NOT_AT_ALL = "none"


def operator(sign_with: str) -> dict[str, Any]:
    """Arguments of `swarm.Mesh` for a command that signs with the key in this file; with the user's
    own for "", which is made at its first use; not at all for "none".

    It goes on from desired state that this key has signed, or one that the user trusts
    (`SWARM_TRUST`, else the user's own list). Raises `BadKey`.
    """
    if sign_with == NOT_AT_ALL:
        return {}
    signer = own_key(sign_with)
    trusted = TrustedKeys.of(os.environ.get("SWARM_TRUST", ""))
    return {"signer": signer, "verifier": Verifier(trusted, own=signer.public)}
