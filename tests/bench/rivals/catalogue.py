"""All contenders by name, and their classes.

A contender's module is imported only where the contender runs: it needs the package of its own
system and nothing of the others.
"""

from __future__ import annotations

import importlib
from typing import Any

from bench.rivals.contract import Contender, Unavailable

_SYSTEMS = "bench.rivals.systems"

FLOOR = "inprocess"
"""The contender whose latency is subtracted: all stages in one process."""

CONTENDERS: dict[str, str] = {
    FLOOR: f"{_SYSTEMS}.inprocess:InProcess",
    "pyzmq": f"{_SYSTEMS}.pyzmq:PyZmq",
    "zenoh": f"{_SYSTEMS}.zenoh:Zenoh",
    "nats_core": f"{_SYSTEMS}.nats_core:NatsCore",
    "nats_jetstream": f"{_SYSTEMS}.nats_jetstream:NatsJetStream",
    "grpc_aio": f"{_SYSTEMS}.grpc_aio:GrpcAio",
    "mosec": f"{_SYSTEMS}.mosec:Mosec",
    "triton": f"{_SYSTEMS}.triton:Triton",
    "ray_compiled": f"{_SYSTEMS}.ray_compiled:RayCompiled",
    "ray_serve": f"{_SYSTEMS}.ray_serve:RayServe",
}
"""What users would pick instead of the mesh, as ``module:Class``."""

MESH_BY_UP = {
    "durable": f"{_SYSTEMS}.swarm_up:SwarmUp",
    "fast": f"{_SYSTEMS}.swarm_up:SwarmUpFast",
}
"""The mesh by delivery, as a user runs it: ``swarm up`` and ``swarm.connect``."""

MESH = {
    "durable": f"{_SYSTEMS}.swarm_mesh:Swarm",
    "fast": f"{_SYSTEMS}.swarm_mesh:SwarmFast",
}
"""The mesh by delivery, with nodes that start from the stages' files, on one host."""

MESH_BY_WIRE = {
    "durable": f"{_SYSTEMS}.swarm_mesh:SwarmWire",
    "fast": f"{_SYSTEMS}.swarm_mesh:SwarmFastWire",
}
"""The mesh by delivery, where every message between processes goes through the server."""

MESH_WITH_TRUST = {
    name: f"{_SYSTEMS}.swarm_trust:{cls}"
    for name, cls in (
        ("host_secured", "HostSecured"),
        ("wire_users", "WireUsers"),
        ("wire_tls", "WireTls"),
        ("wire_file", "WireFile"),
        ("wire_file_encrypted", "WireFileEncrypted"),
    )
}
"""The mesh, durable, with rights, TLS, and encryption at rest."""


def contender_class(target: str) -> type[Contender]:
    """The class behind a name of `CONTENDERS` or behind ``module:Class``.

    Raises `ValueError` for an unknown name, `Unavailable` when the module or a package that the
    module imports is not installed.
    """
    module, _, name = CONTENDERS.get(target, target).partition(":")
    if not name:
        raise ValueError(f"no contender {target!r}; known: {', '.join(CONTENDERS)}")
    try:
        loaded: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise Unavailable(f"not installed: {error.name}") from error
    found: type[Contender] = getattr(loaded, name)
    return found
