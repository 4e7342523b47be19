"""A node drains and ends when an operator asks for it, as on SIGTERM."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

from nodes.connection.connection import Connection
from swarm.link import LinkMessage

log = logging.getLogger("swarm.node")


def drain_when_told(connection: Connection, end: Callable[[], None]) -> None:
    """Call `end` once an operator asks for it.

    Only an operator may publish there, and any member may have the server send an answer there. An
    answer asks nobody for one, and an operator does.
    """
    link, subjects = connection.mesh.link, connection.mesh.subjects

    def drain(message: LinkMessage) -> None:
        if not message.reply or message.headers is not None or message.data:
            log.warning("not drained by a message on %s that is no request", message.subject)
            return
        answer = {"v": 1, "node": connection.id, "state": "draining"}
        link.publish(message.reply, json.dumps(answer).encode())
        log.info("told to drain")
        end()

    link.subscribe(subjects.drain(connection.id), drain)
