"""Parts of a node that follow what others say: an error in one of them does not end the node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from nodes.connection.events import REASON_LIMIT, Tell

log = logging.getLogger("swarm.node")

BEGIN_AGAIN_AFTER = 1.0  # seconds


async def go_on(part: str, run: Callable[[], Awaitable[None]], tell: Tell) -> None:
    """Await `run()`, and begin it again after an error, until cancelled or until it returns.

    Otherwise a defect that foreign data triggers would end a node that serves well, and its
    successor too. tell(kind, detail): publishes the event `rejected`, once while the error stays
    the same; the status document counts it.
    """
    reported = ""
    while True:
        try:
            await run()
            return
        except Exception as error:
            log.exception("%s met a defect, and begins again", part)
            reason = f"{part} met a defect, and begins again: {error!r}"[:REASON_LIMIT]
            if reason != reported:
                reported = reason
                tell("rejected", {"detail": reason})
        await asyncio.sleep(BEGIN_AGAIN_AFTER)
