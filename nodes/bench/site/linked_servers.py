"""A hub and a site: two nats-servers, of which the site's is a leaf of the hub's."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from nodes.bench.site.link_proxy import LinkProxy
from swarm.services.embedded import EmbeddedServer

HUB, SITE = "hub", "edge1"  # the domains


@dataclass(frozen=True)
class LinkedServers:
    """The servers, and the link from the site's to the hub's."""

    hub: EmbeddedServer
    site: EmbeddedServer
    link: LinkProxy


@asynccontextmanager
async def linked_servers(
    hub_domain: str | None = HUB, site_domain: str | None = SITE
) -> AsyncIterator[LinkedServers]:
    """Start them; all end with the block. site_domain: None for a site without JetStream.

    The settings of the link are those of `deploy/sites/`.
    """
    port = _free_port()
    leaves = f"leafnodes {{ host: 127.0.0.1, port: {port}, no_advertise: true }}\n"
    async with (
        EmbeddedServer(domain=hub_domain, more=leaves) as hub,
        LinkProxy(port) as link,
        EmbeddedServer(
            domain=site_domain,
            more='leafnodes { reconnect: "250ms", remotes: ['
            f'{{ url: "nats-leaf://127.0.0.1:{link.port}" }}] }}\n',
        ) as site,
    ):
        yield LinkedServers(hub, site, link)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
