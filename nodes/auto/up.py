"""`swarm up --auto`: nodes that share the stages by a plan of their own; `--autoscale`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodes.auto.autoscale import Autoscale
from nodes.cli.command import seldom
from nodes.cli.up import UpOptions
from nodes.console import err
from nodes.feature import Given
from nodes.up.companion import Companion
from swarm.errors import InvalidArgument

if TYPE_CHECKING:
    from nodes.up.mesh import LocalMesh


@dataclass(frozen=True)
class UpAutoOptions:
    """Of `swarm up`."""

    auto: int = seldom(
        0,
        "Nodes that share the stages by a plan of their own, instead of one node for each stage.",
        min=0,
        max=64,
    )
    auto_memory: int = seldom(
        0, "Megabytes that each node of --auto gives to stages; 0: what is free.", min=0
    )
    autoscale: int = seldom(
        0,
        "Further nodes that may come and go with the load, for the stages that lack them.",
        min=0,
        max=64,
    )


class UpAuto(Companion):
    serves = True

    def __init__(self, options: UpAutoOptions) -> None:
        self._options = options

    def start(self, local: LocalMesh, model: str, flags: Sequence[str]) -> None:
        for _ in range(self._options.auto):
            local.start("auto", model, *flags, "--memory-mb", str(self._options.auto_memory))


class UpAutoscale(Companion):
    """base: nodes of each stage in any case. most: further ones, all stages together."""

    def __init__(self, base: int, most: int) -> None:
        self._base, self._most = base, most
        self._flags: Sequence[str] = ()

    def start(self, local: LocalMesh, model: str, flags: Sequence[str]) -> None:
        self._flags = list(flags)

    async def opened(self, local: LocalMesh, model: str) -> None:
        scale = Autoscale(local, model, self._base, self._most, _tell, self._flags)
        local.own(scale.run(), "autoscale")


def _tell(text: str) -> None:
    err.print(text, markup=False, highlight=False, soft_wrap=True)


def companions(given: Given) -> list[Companion]:
    """Raises `InvalidArgument`."""
    options, up = given.of(UpAutoOptions), given.of(UpOptions)
    if options is None or up is None:
        return []
    if options.auto and options.autoscale:
        raise InvalidArgument("--autoscale is for shards; nodes of --auto share by themselves")
    if options.autoscale:
        return [UpAutoscale(up.replicas, options.autoscale)]
    return [UpAuto(options)] if options.auto else []
