"""What the server says of a message in the subject that acknowledges it."""

from __future__ import annotations

import pytest

from swarm.errors import DecodeError
from swarm.transport.lane.message import parse_ack_subject


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("$JS.ACK.S.C.3.17.5.1700000000000000001.42", (3, 17, 1700000000000000001, 42)),
        ("$JS.ACK._.HASH.S.C.3.17.5.1700000000000000001.42", (3, 17, 1700000000000000001, 42)),
        ("$JS.ACK._.HASH.S.C.3.17.5.1700000000000000001.42.x", (3, 17, 1700000000000000001, 42)),
    ],
)
def test_both_forms_of_an_ack_subject_are_read(reply: str, expected: tuple[int, ...]) -> None:
    assert parse_ack_subject(reply) == expected


@pytest.mark.parametrize("reply", ["", "a", "_INBOX.x.1", "$JS.ACK.S.C.x.y.z.t.p", "$JS.ACK.S"])
def test_another_reply_is_no_ack_subject(reply: str) -> None:
    with pytest.raises(DecodeError):
        parse_ack_subject(reply)
