"""Looks at servers that a link is not connected to: each greets whoever connects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from swarm.addresses import without_credentials
from swarm.errors import SeveralClusters
from swarm.link.servers import Greeting, ServerList, better_server, mixed
from swarm.link.session import greet_all

if TYPE_CHECKING:
    from swarm.link.types import LinkOptions

log = logging.getLogger("swarm.link")

# Of looking for a better server than one that stays; seconds between them.
ATTEMPTS, RETRY_AFTER = 5, 1.0
GREET_TIMEOUT = 0.5  # seconds in which a server that can be used greets


async def check_given(servers: ServerList, options: LinkOptions) -> None:
    """Tell of given servers that do not answer while others do. Raises `SeveralClusters`: what one
    of them stores another one would never see."""
    found = await greet_all(servers.given, options, GREET_TIMEOUT)
    greetings = {server: Greeting.of(info) for server, info in found.items() if info}
    if reason := mixed(greetings, options.domain):
        raise SeveralClusters(reason)
    for server in servers.given:
        if found and server not in found:
            log.warning("%s does not answer; the others do", without_credentials(server))


def check_cluster(home: Greeting, greeting: Greeting, where: str) -> None:
    """Raises `SeveralClusters` for a server of another one than the one before. home: of that."""
    if home.cluster and greeting.cluster and greeting.cluster != home.cluster:
        raise SeveralClusters(
            f"{where} is of the cluster {greeting.cluster!r}, the server before it was of "
            f"{home.cluster!r}: give servers of one cluster"
        )


async def wait_for_better(
    home: Callable[[], Greeting], servers: ServerList, options: LinkOptions
) -> str | None:
    """The server to move to from the present one (`better_server`), as soon as there is one; None
    where the present one stays, and after some looks none was better. home(): of the present one.
    """
    attempts = 0
    while home().leaves or attempts < ATTEMPTS:
        attempts += 1
        found = await greet_all(servers.others(), options, GREET_TIMEOUT)
        greetings = {server: Greeting.of(info) for server, info in found.items() if info}
        if (better := better_server(home(), greetings)) is not None:
            return better
        await asyncio.sleep(RETRY_AFTER)
    return None
