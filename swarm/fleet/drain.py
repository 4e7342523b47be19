"""Telling a node to drain: it finishes what it has begun, gives back the rest, and ends."""

from __future__ import annotations

import json

from swarm.errors import NoResponders, NotFound, Unavailable
from swarm.link import Link
from swarm.subjects import Subjects

ANSWER_TIMEOUT = 2.0  # seconds


async def drain(link: Link, subjects: Subjects, node: str) -> None:
    """Tell a node to drain; returns when it has said that it does. Raises `NotFound` where it does
    not listen, `Unavailable` where it does not answer, `PermissionDenied`, `NotConnected`."""
    try:
        message = await link.request(subjects.drain(node), b"", ANSWER_TIMEOUT)
    except NoResponders:
        raise NotFound(f"no node {node!r} listens: `swarm status` shows those that do") from None
    except TimeoutError:
        raise Unavailable(f"node {node!r} does not answer: end its process on its host") from None
    try:
        said = json.loads(bytes(message.data))["state"]
    except (ValueError, KeyError, TypeError, RecursionError):
        said = None
    if said != "draining":
        raise Unavailable(f"node {node!r} did not say that it drains")
