"""Looks at servers that a link is not connected to: each greets whoever connects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from swarm.addresses import without_credentials
from swarm.errors import ServerTooOld, SeveralClusters
from swarm.link.server_version import is_too_old, too_old
from swarm.link.servers import Greeting, ServerList, better_server, mixed
from swarm.link.session import greet_all

if TYPE_CHECKING:
    from swarm.link.link import Link
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
    for server, greeting in greetings.items():
        if old := old_server(greeting, without_credentials(server), options.domain):
            log.warning("%s", old)
    for server in servers.given:
        if found and server not in found:
            log.warning("%s does not answer; the others do", without_credentials(server))


def check_greeting(home: Greeting, greeting: Greeting, where: str, options: LinkOptions) -> None:
    """Raises `ServerTooOld` for a server whose JetStream would be used and keeps no lanes, and
    `SeveralClusters` for one of another cluster than the one before. home: of that."""
    if old := old_server(greeting, where, options.domain):
        raise old
    if home.cluster and greeting.cluster and greeting.cluster != home.cluster:
        raise SeveralClusters(
            f"{where} is of the cluster {greeting.cluster!r}, the server before it was of "
            f"{home.cluster!r}: give servers of one cluster"
        )


def old_server(greeting: Greeting, where: str, domain: str) -> ServerTooOld | None:
    """Why this server keeps no lanes of `domain`, "" for its own JetStream; None where it may, or
    where another one keeps them."""
    used = greeting.stores and domain in ("", greeting.domain)
    return too_old(greeting.version, where) if used and is_too_old(greeting.version) else None


async def old_servers(link: Link) -> list[ServerTooOld]:
    """Of the servers that a connected link knows of, those that keep no lanes."""
    found = await greetings_of(link.servers, link.options)
    domain = link.options.domain
    looked = (old_server(found[s], s, domain) for s in found)
    return [old for old in looked if old is not None]


async def greetings_of(servers: ServerList, options: LinkOptions) -> dict[str, Greeting]:
    """Of each given server that greets, and of those of its cluster, by their URLs without
    credentials. A server that greets only after TLS tells nothing about itself."""
    found: dict[str, Greeting] = {}
    while wanted := [server for server in servers.all() if server not in found]:
        greeted = await greet_all(wanted, options, GREET_TIMEOUT)
        if not greeted:
            break
        found |= {server: Greeting.of(info) for server, info in greeted.items()}
        for greeting in list(found.values()):
            servers.learn(greeting.peers)
    return {without_credentials(server): greeting for server, greeting in found.items()}


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
