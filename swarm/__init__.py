"""An event-driven mesh that runs one neural network on a fleet of edge devices, over NATS.

import swarm
async with swarm.connect("nats://127.0.0.1:4222", mesh="default") as mesh:
    result = await mesh.infer("digits", {"image": array}, budget=0.050)
    result.outputs["logits"], result.hops, result.degraded
"""

from swarm.errors import (
    DeadlineExceeded,
    DecodeError,
    Internal,
    InvalidArgument,
    NotConnected,
    NotFound,
    ResourceExhausted,
    Status,
    SwarmError,
    Unauthenticated,
    Unavailable,
)
from swarm.local.teaching import Taught
from swarm.mesh import Mesh, connect
from swarm.site.client import Answer, Ticket
from swarm.wire.hops import Hop
from swarm.wire.messages import Result

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "DeadlineExceeded",
    "DecodeError",
    "Hop",
    "Internal",
    "InvalidArgument",
    "Mesh",
    "NotConnected",
    "NotFound",
    "ResourceExhausted",
    "Result",
    "Status",
    "SwarmError",
    "Taught",
    "Ticket",
    "Unauthenticated",
    "Unavailable",
    "__version__",
    "connect",
]
