"""A hub and a site: two nats-servers, of which the site's is a leaf of the hub's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import swarm
from nodes.up.embedded_cluster import free_ports
from nodes.up.embedded_server import EmbeddedServer
from support.link_proxy import LinkProxy
from swarm.errors import NoResponders

HUB, SITE = "hub", "edge1"  # the domains
LINKED_WITHIN = 15.0  # seconds that the leaf may take to connect
LINKED_PAUSE = 0.05  # seconds between looks


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
    (port,) = free_ports(1)
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
        if site_domain is not None:
            async with asyncio.timeout(LINKED_WITHIN):
                await _until_linked(hub.url, site_domain)
        yield LinkedServers(hub, site, link)


async def _until_linked(hub: str, domain: str) -> None:
    """Until the hub's clients reach the site's JetStream: the leaf connects by itself."""
    async with swarm.connect(hub) as client:
        while True:
            with contextlib.suppress(NoResponders):
                await client.link.request(f"$JS.{domain}.API.INFO", b"", 2.0)
                return
            await asyncio.sleep(LINKED_PAUSE)
