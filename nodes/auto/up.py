"""`swarm up --auto`: nodes that share the stages by a plan of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodes.cli.command import seldom
from nodes.cli.options import UpOptions
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


class UpAuto(Companion):
    serves = True

    def __init__(self, options: UpAutoOptions) -> None:
        self._options = options

    def start(self, local: LocalMesh, model: str, flags: Sequence[str]) -> None:
        for _ in range(self._options.auto):
            local.start("auto", model, *flags, "--memory-mb", str(self._options.auto_memory))


def companions(given: Given) -> list[Companion]:
    options, up = given.of(UpAutoOptions), given.of(UpOptions)
    if options is None or up is None or not options.auto:
        return []
    if up.autoscale:
        raise InvalidArgument("--autoscale is for shards; nodes of --auto share by themselves")
    return [UpAuto(options)]
