"""What an operator does by commands, in one chain of its own: `swarm.<mesh>.audit.operator`."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from typing import Any

from swarm.errors import ApiError, NoResponders, Unavailable
from swarm.link import Link, jetstream
from swarm.records.record import BEGINNING, OPERATOR, RecordEntry, parse, seal
from swarm.records.stream import READ_TIMEOUT, extent_of
from swarm.records.subjects import RecordSubjects
from swarm.subjects import Subjects, api, as_token

ATTEMPTS = 5  # while other commands write too
_PLACE = re.compile(rb"Nats-Sequence: ([0-9]{1,18})")


async def record_act(
    link: Link, subjects: Subjects, act: str, at: float, by: str, fields: Mapping[str, Any]
) -> bool:
    """Record an act behind the last one; False where the mesh has no audit.

    at: seconds since 1970. by: the name of who did it. fields: texts and integers that say what was
    done. Raises `Unavailable`, `ApiError`, `NotConnected`, `PermissionDenied`, `DecodeError` (the
    last act on record is no record).
    """
    own = RecordSubjects.of(subjects)
    if await extent_of(link, own.audit_stream) is None:
        return False
    subject = own.audit(OPERATOR)
    who = {"person": as_token(by), "host": as_token(socket.gethostname())}
    entry = RecordEntry("act", OPERATOR, at, fields={**who, **fields, "act": act})
    refusal: ApiError | None = None
    for _ in range(ATTEMPTS):
        place, sequence, prev = await _last(link, own, subject)
        data, _digest = seal(entry, OPERATOR, sequence + 1, prev)
        headers = b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: %d\r\n\r\n" % place
        try:
            answer = await link.request(subject, data, READ_TIMEOUT, headers, from_server=True)
            jetstream.parse(answer.data)
            return True
        except (NoResponders, TimeoutError):
            raise Unavailable("the audit's stream did not answer") from None
        except ApiError as error:
            if error.err_code not in jetstream.WRONG_REVISIONS:
                raise
            refusal = error
    assert refusal is not None
    raise refusal


async def _last(link: Link, subjects: RecordSubjects, subject: str) -> tuple[int, int, str]:
    """The stream's number, the sequence and the hash of the last act on record."""
    try:
        message = await link.request(
            api("DIRECT.GET", subjects.audit_stream, subject), b"", READ_TIMEOUT, from_server=True
        )
    except (NoResponders, TimeoutError):
        raise Unavailable("the audit's stream does not answer") from None
    if message.status:
        return 0, 0, BEGINNING
    doc, place = parse(message.data), _PLACE.search(message.headers or b"")
    return int(place[1]) if place else 0, doc["sequence"], doc["hash"]
