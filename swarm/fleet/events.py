"""The stream of events: a reader that comes after the fact sees what happened.

Events are published by core NATS, so nobody waits for the stream. It is bounded in age and bytes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from typing import Any

from swarm.errors import SwarmError
from swarm.fleet.documents import LARGEST_EVENT
from swarm.link import Link, jetstream
from swarm.subjects import Subjects, api, republished

log = logging.getLogger("swarm.events")

NS = 1_000_000_000
MAX_AGE, MAX_BYTES = 7 * 86400, 32 << 20  # seconds, bytes; the oldest events go first
READ_TIMEOUT = 2.0  # seconds
AHEAD = 32  # events that are asked for at a time
RETRY_AFTER = 10.0  # seconds
LAST = 200  # events that a reader gets unless it asks for another number

_SEQUENCE = re.compile(rb"Nats-Sequence: ([0-9]{1,18})")
_SUBJECT = re.compile(rb"Nats-Subject: ([^\r\n]{1,512})")


def stream_config(
    subjects: Subjects, max_age: int = MAX_AGE, max_bytes: int = MAX_BYTES
) -> dict[str, Any]:
    """The stream's configuration, as JetStream's API takes it. max_age: seconds."""
    return {
        "name": subjects.events_stream,
        "subjects": [subjects.events_all],
        "storage": "file",
        "discard": "old",
        "max_age": max_age * NS,
        "max_bytes": max_bytes,
        "max_msg_size": LARGEST_EVENT,
        "allow_direct": True,
        "republish": republished(subjects.root, "events"),
        # Nobody waits for an acknowledgement.
        "no_ack": True,
    }


async def ensure_events(link: Link, subjects: Subjects) -> bool:
    """Make the stream unless it is there; False where this user may not: an operator makes it then,
    with `swarm model push`. Raises `ApiError`, `Unavailable`, `NotConnected`."""
    if not link.may_call(api("STREAM.CREATE", subjects.events_stream)):
        return False
    await jetstream.ensure_bounded_stream(link, stream_config(subjects))
    return True


async def keep_events(link: Link, subjects: Subjects) -> None:
    """Have the stream made, and made again by a server that has lost it, until cancelled."""
    again = asyncio.Event()
    again.set()
    link.on_up.append(again.set)
    try:
        while True:
            await again.wait()
            again.clear()
            try:
                if not await ensure_events(link, subjects):
                    return
            except SwarmError as error:
                log.debug("no stream of events yet: %s", error)
                await asyncio.sleep(RETRY_AFTER)
                again.set()
    finally:
        link.on_up.remove(again.set)


async def last_events(
    link: Link, subjects: Subjects, most: int = LAST
) -> list[tuple[str, bytes]] | None:
    """(subject, bytes) of the last events, oldest first; None where there is no stream, or this
    user may not read it, or the server does not answer."""
    stream = api("DIRECT.GET", subjects.events_stream)
    if not link.grants.may_publish(stream):
        return None
    try:
        newest = await _get(link, stream, {"last_by_subj": subjects.events_all})
    except (SwarmError, TimeoutError):
        return None
    if newest is None:
        return []
    found = [newest]
    while len(found) < most and found[-1][0] > 1:
        top = found[-1][0] - 1
        places = range(top, max(0, top - min(AHEAD, most - len(found))), -1)
        try:
            older = await asyncio.gather(*(_get(link, stream, {"seq": p}) for p in places))
        except (SwarmError, TimeoutError):
            break  # those that were read are shown
        present = [one for one in older if one is not None]
        found += present
        if len(present) < len(places):
            break  # the stream begins here
    return [(subject, data) for _, subject, data in reversed(found)]


async def _get(link: Link, stream: str, question: dict[str, Any]) -> tuple[int, str, bytes] | None:
    """Place, subject and bytes of one message; None where there is none. Raises `SwarmError`,
    `TimeoutError`."""
    message = await link.request(
        stream, json.dumps(question).encode(), READ_TIMEOUT, from_server=True
    )
    headers = message.headers or b""
    place, subject = _SEQUENCE.search(headers), _SUBJECT.search(headers)
    if message.status or place is None or subject is None:
        return None
    return int(place[1]), subject[1].decode(errors="replace"), bytes(message.data)
