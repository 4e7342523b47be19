"""The client: `async with swarm.connect("nats://…") as mesh: await mesh.infer(…)`.

It is put together here, of what each client can (`swarm.client`) and of what the features add that
are there (`swarm.features`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from swarm.client import Client
from swarm.features import features
from swarm.link import LinkOptions
from swarm.security.identity import Identity
from swarm.security.signed_entries import Verifier
from swarm.tracing.traceparent import Tracer
from swarm.wire.codec_choice import AUTO

if TYPE_CHECKING:
    from swarm.language.of_mesh import Generates  # type: ignore[import-not-found, unused-ignore]
    from swarm.learning.of_mesh import Teaches  # type: ignore[import-not-found, unused-ignore]
    from swarm.sites.of_mesh import Submits  # type: ignore[import-not-found, unused-ignore]

    class Mesh(Generates, Teaches, Submits, Client):  # type: ignore[misc, unused-ignore]
        """See `swarm.client.Client`."""
else:

    class Mesh(*(each.of_mesh() for each in features() if each.of_mesh), Client):
        __doc__ = Client.__doc__


def connect(
    servers: str | Sequence[str] = "nats://127.0.0.1:4222",
    mesh: str = "default",
    *,
    agent: str = "",
    shm: bool = True,
    stored: bool = False,
    signer: Identity | None = None,
    verifier: Verifier | None = None,
    codec: str = AUTO,
    tracer: Tracer | None = None,
    two_connections: str | bool = "auto",
    **options: Any,
) -> Mesh:
    """A client of `mesh`, to be entered with `async with`.

    servers: one URL, several, or several separated by commas. agent, shm, stored, signer, verifier,
    codec, tracer, two_connections: see `Mesh`. options: see `LinkOptions` (domain, user, password,
    credentials, tls …). Raises `BadAddress` for servers that cannot be reached by what is written
    there. Entering raises `NotConnected` when no server answers within five seconds.
    """
    link = LinkOptions(servers=servers, **options)
    return Mesh(
        link,
        mesh,
        agent,
        shm=shm,
        stored=stored,
        signer=signer,
        verifier=verifier,
        codec=codec,
        tracer=tracer,
        two_connections=two_connections,
    )
