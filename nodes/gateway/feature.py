"""The doors for HTTP and gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodes.feature import Commands, Feature, Life, MissingExtra, Start, later
from nodes.gateway.settings import GatewayOptions
from swarm.errors import InvalidArgument

if TYPE_CHECKING:
    from nodes.config import NodeConfig


def _check(config: NodeConfig) -> None:
    if config.of(GatewayOptions).is_on and config.role != "gateway":
        raise InvalidArgument("--http and --grpc are for --role gateway")


def _life(config: NodeConfig) -> Life | None:
    return _with_doors if config.of(GatewayOptions).is_on else None


def _leaves_within(config: NodeConfig) -> float:
    options = config.of(GatewayOptions)
    return options.leaves_within if options.is_on else 0.0


async def _with_doors(start: Start) -> None:
    """Raises `InvalidArgument`."""
    from nodes.life.node import Node
    from nodes.process import collect_seldom, endpoints_of

    try:
        from nodes.gateway.front import Front
    except ModuleNotFoundError as error:
        raise MissingExtra(f"--http, --grpc: {error}: pip install 'swarm-mesh[gateway]'") from None
    front = Front(start.config.of(GatewayOptions))
    node = Node(start.config, start.started, start.on_change, front.status, start.stop.set)
    collect_seldom()
    with endpoints_of(node):
        await front.run(node, start.stop)


COMMANDS: Commands = {
    "Commands": {"keys gateway": "nodes.gateway.commands.gateway_key:gateway_key"}
}
LIBRARIES = "grpc", "grpc_reflection", "orjson", "google", "jwt", "uvicorn", "httptools"
FEATURE = Feature(
    "gateway",
    figures="nodes.gateway.figures",
    extras=dict.fromkeys(
        ["grpc", "grpc_reflection", "orjson", "google", "jwt", "uvicorn", "httptools"], "gateway"
    ),
    settings=[GatewayOptions],
    check=_check,
    life=_life,
    leaves_within=_leaves_within,
    commands=COMMANDS,
    options={"up": ["nodes.gateway.up:UpGatewayOptions"]},
    needs={"up --http": ["gateway"]},
    companions=later("nodes.gateway.up:companions"),
)
