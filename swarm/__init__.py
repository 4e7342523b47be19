"""An event-driven mesh that runs one neural network on a fleet of edge devices, over NATS.

import swarm
async with swarm.connect("nats://127.0.0.1:4222", mesh="default") as mesh:
    result = await mesh.infer("digits", {"image": array}, budget=0.050)
    result.outputs["logits"], result.hops, result.degraded
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from swarm.learning.teaching import Taught  # type: ignore[import-not-found, unused-ignore]
    from swarm.mesh import Mesh, connect
    from swarm.over import over
    from swarm.sites.client import (  # type: ignore[import-not-found, unused-ignore]
        Answer,
        Ticket,
    )
    from swarm.wire.hops import Hop
    from swarm.wire.messages import Result
    from swarm.wire.picture import Picture
else:
    # Imported at the first use: the modules of a client take a quarter of a second of a small
    # device, and whoever imports a part of this package needs a few of them.
    _HOMES = {
        "Answer": "swarm.sites.client",
        "Hop": "swarm.wire.hops",
        "Mesh": "swarm.mesh",
        "Picture": "swarm.wire.picture",
        "Result": "swarm.wire.messages",
        "Taught": "swarm.learning.teaching",
        "Ticket": "swarm.sites.client",
        "connect": "swarm.mesh",
        "over": "swarm.over",
    }
    # A feature whose room is not there has no names here.
    _HOMES = {name: home for name, home in _HOMES.items() if find_spec(home.rpartition(".")[0])}

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(home), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOMES})


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
    "Picture",
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
    "over",
]

if not TYPE_CHECKING:
    __all__ = [name for name in __all__ if name in globals() or name in _HOMES]
