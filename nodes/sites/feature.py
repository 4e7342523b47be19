"""Requests that wait at a site while it is cut off from the hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodes.feature import CommandGroup, Commands, Feature, Part, Surroundings
from nodes.sites.settings import SiteOptions
from swarm.errors import InvalidArgument

if TYPE_CHECKING:
    from nodes.config import NodeConfig


def _check(config: NodeConfig) -> None:
    if config.of(SiteOptions).sites and config.role != "gateway":
        raise InvalidArgument("a gateway forwards what sites have stored: --role gateway --site …")


def _parts(around: Surroundings) -> list[Part]:
    if not around.connection.config.of(SiteOptions).sites:
        return []
    from nodes.sites.forwarding import ForwardingPart  # other nodes forward nothing

    return [ForwardingPart(around)]


COMMANDS: Commands = {
    "Fleet": {
        "site": CommandGroup(
            "What a linked site stores while it is cut off; see `swarm submit`.",
            {
                "Commands": {
                    "add": "nodes.sites.commands.site:add",
                    "status": "nodes.sites.commands.site:status",
                    "remove": "nodes.sites.commands.site:remove",
                }
            },
        ),
        "submit": "nodes.sites.commands.submit:submit",
        "results": "nodes.sites.commands.submit:results",
    }
}
FEATURE = Feature("sites", settings=[SiteOptions], check=_check, parts=_parts, commands=COMMANDS)
