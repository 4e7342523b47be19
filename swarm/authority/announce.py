"""Telling running servers what an authority has changed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from dataclasses import replace
from pathlib import Path

from swarm.authority.authority import SYSTEM_USER, Authority
from swarm.errors import InvalidArgument, NoResponders, Unavailable
from swarm.link import Link, LinkOptions

CONNECT_TIMEOUT = 5.0  # seconds


async def announce(authority: Authority, options: LinkOptions) -> None:
    """Give the accounts as they are now to the servers, by the system account: who was revoked is
    cut off at once. options: how to reach a server, without credentials.

    Raises `NotConnected`, `NotAdmitted`, `Unavailable`.
    """
    credentials = str(authority.credentials(SYSTEM_USER))
    link = Link(replace(options, credentials=credentials, inbox="", name="swarm auth"))
    running = asyncio.create_task(link.run(), name="swarm auth link")
    try:
        await link.ready(CONNECT_TIMEOUT)
        for jwt in authority.accounts().values():
            answer = await link.request("$SYS.REQ.CLAIMS.UPDATE", jwt.encode(), from_server=True)
            error = json.loads(bytes(answer.data)).get("error")
            if error:
                raise Unavailable(f"the server did not take an account: {error}")
    except (NoResponders, TimeoutError):
        raise Unavailable(
            "the server takes no updates of accounts: it needs the configuration of `swarm auth "
            "server`, without --plain; or signal it after writing its files anew"
        ) from None
    finally:
        await link.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def reload_server(pid_file: str) -> None:
    """Let a server of this host read its files again. Raises `InvalidArgument`."""
    try:
        os.kill(int(Path(pid_file).read_text()), signal.SIGHUP)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"--pid-file {pid_file}: no server can be told: {error}") from None
