"""The settings of a gateway."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from nodes.settings import check, setting, tuning

gateway = partial(setting, "gateway")


@dataclass(frozen=True)
class GatewayOptions:
    """Raises `InvalidArgument`."""

    http: str = gateway(
        "",
        "gateway: PORT, for this machine alone, or ADDRESS:PORT, where HTTP clients of the Open "
        "Inference Protocol ask. Needs swarm-mesh[gateway]. Off when empty.",
    )
    grpc: str = gateway(
        "",
        "gateway: PORT or ADDRESS:PORT, where gRPC clients of that protocol ask. Off when empty.",
    )
    most_in_flight: int = tuning(
        256, "gateway: requests of all its clients at a time; more are refused.", least=1
    )

    def __post_init__(self) -> None:
        check(self)
