"""In which linked servers the lanes of a model version are: there may be one.

Two linked servers with the same lanes both store each message, so each stage computes twice. Each
of them says so: a message that expects a stream of no possible name is refused, with its own
stream's name, by every server that would store it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence

from swarm.errors import (
    InvalidArgument,
    NoResponders,
    NotConnected,
    PermissionDenied,
    ResourceExhausted,
)
from swarm.link import Link, LinkMessage
from swarm.subjects import Subjects

SLOW = 0.5  # seconds in which a server answers as a rule
OLD_LANES_GO = 3.0  # seconds; measured: 2
WAIT = 0.3  # seconds: longer than a round trip between two sites
_STAGE = re.compile("stage[0-9]+")
_NO_STREAM = b"NATS/1.0\r\nNats-Expected-Stream: -\r\n\r\n"


class TwoDomains(InvalidArgument):
    """The same lanes are in two linked JetStream domains."""


async def find_streams(
    link: Link, subjects: Subjects, model: str, version: str, stage: int = 1, wait: float = WAIT
) -> list[str]:
    """The streams of the lanes of a stage, one name for each server that has one; asked for `wait`
    seconds. All stages of a version are in the same servers.

    Empty where this user may not ask, or there is no connection. In a cluster, a server that comes
    back has for a moment the lanes that were made anew without it: then it is asked again.
    """
    asked = subjects.whereabouts(model, version, stage)
    if not link.grants.may_publish(asked):
        return []
    found = await _streams_at(link, asked, wait)
    if link.home.cluster and len(set(found)) < len(found):
        await asyncio.sleep(OLD_LANES_GO)
        found = await _streams_at(link, asked, wait)
    return found


async def _streams_at(link: Link, asked: str, wait: float) -> list[str]:
    found: list[str] = []

    def answered(message: LinkMessage) -> None:
        if (name := _stream_in(message)) is not None:
            found.append(name)

    reply = link.expect_from_server(answered)
    try:
        link.publish(asked, b"", reply, _NO_STREAM)
        # No answer says how many are to come.
        await asyncio.sleep(wait)
    except (NotConnected, ResourceExhausted):
        return []
    finally:
        link.forget(reply)
    return sorted(found)


async def is_kept(link: Link, asked: str) -> bool:
    """Whether any server has these lanes: it refuses the question, or is slow to. Without one
    nobody listens, which is known at once. asked: their `Subjects.whereabouts`.

    Raises `NotConnected`.
    """
    if not link.grants.may_publish(asked):
        return True  # nothing says that they are lost
    try:
        await link.request(asked, b"", SLOW, _NO_STREAM, from_server=True)
    except NoResponders:
        return False
    except (TimeoutError, PermissionDenied):
        pass
    return True


def check_one_domain(streams: Sequence[str], own: str, lanes: str) -> None:
    """Raises `TwoDomains` where the lanes called `lanes` are in another domain than `own`, or in
    two servers that both have it."""
    others = [_domain_in(stream) for stream in streams]
    if own in others:
        others.remove(own)
    if not others:
        return
    other = others[0]
    if other == own:
        raise TwoDomains(
            f"the lanes of {lanes} are on two linked servers under one name: give each server a "
            "`domain` in its jetstream {} block, and restart both"
        )
    here = f"in domain {own!r}" if own else "on this server"
    there = f"in domain {other!r}" if other else "on a linked server without a domain"
    mend = f"start with --domain {other}" if other else "name that server's domain"
    raise TwoDomains(
        f"the lanes of {lanes} are {there} already, and would be {here} too: "
        f"{mend}, or use another --mesh"
    )


def _stream_in(message: LinkMessage) -> str | None:
    try:
        doc = json.loads(bytes(message.data))
    except (ValueError, RecursionError):
        return None
    name = doc.get("stream") if isinstance(doc, dict) else None
    return name if isinstance(name, str) else None


def _domain_in(stream: str) -> str:
    """The domain in the name of a stream of lanes; one of an older swarm names no stage."""
    behind = stream.split("=")[4:]
    if behind and _STAGE.fullmatch(behind[0]):
        del behind[0]
    return behind[0] if behind else ""
