"""Requests that wait at a site while it is cut off from the hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodes.feature import Feature
from nodes.sites.settings import SiteOptions
from swarm.errors import InvalidArgument

if TYPE_CHECKING:
    from nodes.config import NodeConfig


def _check(config: NodeConfig) -> None:
    if config.of(SiteOptions).sites and config.role != "gateway":
        raise InvalidArgument("a gateway forwards what sites have stored: --role gateway --site …")


FEATURE = Feature("sites", settings=[SiteOptions], check=_check)
