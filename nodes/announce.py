"""Telling running servers what an authority has changed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from swarm.errors import InvalidArgument, NoResponders, NotAdmitted, Unavailable
from swarm.link import Link, LinkOptions
from swarm.security.authority.authority import SYSTEM_USER, Authority

CONNECT_TIMEOUT = 5.0  # seconds
ASK_AGAIN = 0.2  # seconds behind a refusal
PAGE = 1024  # connections that a server lists at a time
NAME = "swarm auth"
NO_SYSTEM = (
    "the server takes no word of the system account: it needs the configuration of `swarm auth "
    "server`, without --plain; or signal it after writing its files anew"
)


async def announce(authority: Authority, options: LinkOptions) -> None:
    """Give the accounts as they are now to the servers, by the system account: who was revoked is
    cut off at once. options: how to reach a server, without credentials.

    Raises `NotConnected`, `NotAdmitted`, `Unavailable`.
    """
    async with _system_link(authority, options) as link:
        for jwt in authority.accounts().values():
            answer = await link.request("$SYS.REQ.CLAIMS.UPDATE", jwt.encode(), from_server=True)
            error = json.loads(bytes(answer.data)).get("error")
            if error:
                raise Unavailable(f"the server did not take an account: {error}")


async def end_connections(
    authority: Authority, options: LinkOptions, keep: Collection[str] = ()
) -> int:
    """End all connections of one server, as a router that fails does: whoever was connected
    connects again, with its files as they are now. Returns how many. keep: names of connections
    that stay.

    Raises as `announce`.
    """
    async with _system_link(authority, options) as link:
        server, seen, ids = "", 0, list[int]()
        while True:
            page = {"limit": PAGE, "offset": seen}
            subject = "$SYS.REQ.SERVER.PING.CONNZ" if not server else f"{server}.CONNZ"
            doc = await _asked(link, subject, page)
            server = f"$SYS.REQ.SERVER.{doc['server']['id']}"
            found = doc["data"]["connections"]
            ids += [int(one["cid"]) for one in found if one.get("name") not in (NAME, *keep)]
            seen += len(found)
            if len(found) < PAGE:
                break
        for cid in ids:
            await _asked(link, f"{server}.KICK", {"cid": cid})
        return len(ids)


async def _asked(link: Link, subject: str, question: dict[str, Any]) -> dict[str, Any]:
    answer = await link.request(subject, json.dumps(question).encode(), from_server=True)
    try:
        return dict(json.loads(bytes(answer.data)))
    except ValueError as error:
        raise Unavailable(f"the server's answer to {subject} cannot be read: {error}") from None


@asynccontextmanager
async def _system_link(authority: Authority, options: LinkOptions) -> AsyncIterator[Link]:
    """A connection as the authority's own user."""
    credentials = str(authority.credentials(SYSTEM_USER))
    link = Link(replace(options, credentials=credentials, inbox="", name=NAME))
    running = asyncio.create_task(link.run(), name=f"{NAME} link")
    try:
        await _admitted(link)
        yield link
    except (NoResponders, TimeoutError):
        raise Unavailable(NO_SYSTEM) from None
    finally:
        await link.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _admitted(link: Link) -> None:
    """Wait until the server admits the system user. While a server reads its files anew, as a
    signal just told it to, it refuses everybody; so a refusal counts after `CONNECT_TIMEOUT`."""
    loop = asyncio.get_running_loop()
    until = loop.time() + CONNECT_TIMEOUT
    while True:
        try:
            await link.ready(CONNECT_TIMEOUT)
            return
        except NotAdmitted:
            if loop.time() >= until:
                raise
            await asyncio.sleep(ASK_AGAIN)


def reload_servers(pid_files: str) -> None:
    """Let servers of this host read their files again. pid_files: separated by commas.

    Raises `InvalidArgument`."""
    for pid_file in pid_files.split(","):
        try:
            os.kill(int(Path(pid_file).read_text(encoding="utf-8")), signal.SIGHUP)
        except (OSError, ValueError) as error:
            said = f"--pid-file {pid_file}: no server can be told: {error}"
            raise InvalidArgument(said) from None
