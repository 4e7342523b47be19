"""The client with which a command speaks with its mesh."""

from __future__ import annotations

import os
from typing import Any

import swarm
from nodes.cli.options import SignedTarget, Target
from nodes.versions.sole_model import sole_model
from swarm.errors import InvalidArgument, PermissionDenied
from swarm.security.signed_entries import Verifier
from swarm.security.trusted_keys import TrustedKeys, own_key

NOT_AT_ALL = "none"


def connect(target: Target, agent: str = "", **more: Any) -> swarm.Mesh:
    """more: see `swarm.Mesh`. Raises `NotAdmitted` for files that cannot be used."""
    return swarm.connect(target.nats, target.mesh, agent=agent, **target.access.options(), **more)


def operator(target: Target) -> dict[str, Any]:
    """Arguments of `swarm.Mesh` for a command that signs with the key of --sign-with; with the
    user's own for "", which is made at its first use; not at all for "none".

    It goes on from desired state that this key has signed, or one that the user trusts
    (`SWARM_TRUST`, else the user's own list). Raises `BadKey`.
    """
    if not isinstance(target, SignedTarget) or target.sign_with == NOT_AT_ALL:
        return {}
    signer = own_key(target.sign_with)
    trusted = TrustedKeys.of(os.environ.get("SWARM_TRUST", ""))
    return {"signer": signer, "verifier": Verifier(trusted, own=signer.public)}


def client_of(target: Target, *, signs: bool = True, **more: Any) -> swarm.Mesh:
    """The client of a command, which writes as `operator` says where it `signs`. more: arguments
    of `swarm.Mesh`."""
    return connect(target, **(operator(target) if signs else {}), **more)


async def asked_model(client: swarm.Mesh, model: str, command: str) -> str:
    """The model that a command was told, else the mesh's one serving model. command: its words
    before the model. Raises `NotFound`, and `InvalidArgument` where the mesh serves several."""
    if model:
        return model
    line = f"{command} {{model}} …"
    try:
        return sole_model(await client.registry.serving_models(), line)
    except PermissionDenied:
        text = f"this user may not see which models serve; name one: {line.format(model='NAME')}"
        raise InvalidArgument(text) from None


async def named_version(client: swarm.Mesh, model: str) -> tuple[str, str]:
    """Name and version of NAME@VERSION; of NAME the version that serves. Raises `NotFound`."""
    name, _, version = model.partition("@")
    return name, version or await client.registry.serving(name)
