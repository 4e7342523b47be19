"""Looks at servers that a link is not connected to: each greets whoever connects."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from swarm.errors import NotAdmitted
from swarm.link.servers import Greeting, ServerList, better_server, mixed
from swarm.link.session import greet_all, without_credentials

if TYPE_CHECKING:
    from swarm.link.types import LinkOptions

log = logging.getLogger("swarm.link")

GREET_TIMEOUT = 0.5  # seconds in which a server that can be used greets


async def look_at_given(servers: ServerList, options: LinkOptions) -> None:
    """Tell of given servers that do not answer while others do. Raises `NotAdmitted` where they are
    of several clusters: what one of them stores another one would never see."""
    found = await greet_all(servers.given, options, GREET_TIMEOUT)
    greetings = {server: Greeting.of(info) for server, info in found.items() if info}
    if reason := mixed(greetings):
        raise NotAdmitted(reason)
    for server in servers.given:
        if found and server not in found:
            log.warning("%s does not answer; the others do", without_credentials(server))


def check_cluster(home: Greeting, greeting: Greeting, where: str) -> None:
    """Raises `NotAdmitted` for a server of another cluster than the one before. home: of that."""
    if home.cluster and greeting.cluster and greeting.cluster != home.cluster:
        raise NotAdmitted(
            f"{where} is of the cluster {greeting.cluster!r}, the server before it was of "
            f"{home.cluster!r}: give servers of one cluster"
        )


async def find_better(home: Greeting, servers: ServerList, options: LinkOptions) -> str | None:
    """The server to move to from the present one, or None (`better_server`)."""
    found = await greet_all(servers.others(), options, GREET_TIMEOUT)
    return better_server(home, {s: Greeting.of(info) for s, info in found.items() if info})
