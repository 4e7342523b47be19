"""The parser without a socket: any cut of a byte stream gives the same messages."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swarm.link.parser import CHUNK, OWN_MEMORY_FROM, Parser, ProtocolError

Event = tuple[object, ...]


class Reader:
    """Feeds a parser as a transport does: never more than `buffer()` holds."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.parser = Parser(self._message, self._control)

    def _message(
        self,
        sid: int,
        subject: bytes,
        reply: bytes,
        headers: bytes | None,
        data: bytes | memoryview,
    ) -> None:
        self.events.append((sid, subject, reply, headers, bytes(data)))

    def _control(self, verb: bytes, argument: bytes) -> None:
        self.events.append((verb, argument))

    def feed(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            buffer = self.parser.buffer()
            count = min(len(view), len(buffer))
            assert count > 0, "the parser offers no room"
            buffer[:count] = view[:count]
            self.parser.received(count)
            view = view[count:]


names = st.text("abcXYZ019.-_$*>", min_size=1, max_size=40).map(str.encode)
sizes = st.one_of(
    st.integers(0, 300),
    st.sampled_from(
        [
            OWN_MEMORY_FROM - 1,
            OWN_MEMORY_FROM,
            OWN_MEMORY_FROM + 1,
            CHUNK // 2 - 30,
            CHUNK - 2,
            CHUNK,
            CHUNK + 1,
            700_000,
        ]
    ),
)
header_blocks = st.binary(min_size=1, max_size=200).map(lambda b: b"NATS/1.0\r\n" + b + b"\r\n\r\n")


@st.composite
def messages(draw: st.DrawFn) -> tuple[bytes, Event]:
    sid, subject = draw(st.integers(0, 10**6)), draw(names)
    reply = draw(st.one_of(st.just(b""), names))
    headers = draw(st.one_of(st.none(), header_blocks))
    unit = draw(st.binary(min_size=1, max_size=8)) + b"\r\nMSG "
    size = draw(sizes)
    data = (unit * (size // len(unit) + 1))[:size]
    verb = b"MSG " if headers is None else b"HMSG "
    line = verb + subject + b" %d " % sid + (reply + b" " if reply else b"")
    if headers is not None:
        line += b"%d " % len(headers)
    total = (headers or b"") + data
    wire = line + b"%d\r\n" % len(total) + total + b"\r\n"
    return wire, (sid, subject, reply, headers, data)


controls = st.sampled_from(
    [
        (b"PING\r\n", (b"PING", b"")),
        (b"pong\r\n", (b"PONG", b"")),
        (b"+OK\r\n", (b"+OK", b"")),
        (b'INFO {"a": 1}\r\n', (b"INFO", b'{"a": 1}')),
        (b"-ERR 'Stale Connection'\r\n", (b"-ERR", b"'Stale Connection'")),
    ]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.one_of(messages(), controls), min_size=1, max_size=8), st.data())
def test_any_cut_of_a_stream_gives_the_same_messages(
    stream: list[tuple[bytes, Event]], data: st.DataObject
) -> None:
    wire = b"".join(piece for piece, _ in stream)
    cuts = data.draw(st.lists(st.integers(0, len(wire)), max_size=30))
    reader = Reader()
    edges = sorted({0, len(wire), *cuts})
    for start, end in pairwise(edges):
        reader.feed(wire[start:end])
    assert reader.events == [event for _, event in stream]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(messages(), controls), min_size=1, max_size=3))
def test_a_stream_that_comes_byte_by_byte_gives_the_same_messages(
    stream: list[tuple[bytes, Event]],
) -> None:
    wire = b"".join(piece for piece, _ in stream)[:5000]
    whole, bytewise = Reader(), Reader()
    whole.feed(wire)
    for at in range(len(wire)):
        bytewise.feed(wire[at : at + 1])
    assert bytewise.events == whole.events


def test_a_large_payload_is_handed_over_in_memory_of_its_own() -> None:
    seen: list[bytes | memoryview] = []
    parser = Parser(lambda *a: seen.append(a[4]), lambda *_: None)
    for fill in (b"a", b"b"):
        wire = b"MSG s 1 1000000\r\n" + fill * 1_000_000 + b"\r\n"
        at = 0
        while at < len(wire):
            buffer = parser.buffer()
            count = min(len(buffer), len(wire) - at)
            buffer[:count] = wire[at : at + count]
            parser.received(count)
            at += count
    assert isinstance(seen[0], memoryview)
    # The second message did not write over the first.
    assert (bytes(seen[0]), bytes(seen[1])) == (b"a" * 1_000_000, b"b" * 1_000_000)


@pytest.mark.parametrize(
    "line",
    [
        b"MSG\r\n",
        b"MSG a\r\n",
        b"MSG a 1\r\n",
        b"MSG a x 5\r\n",
        b"MSG a 1 -1\r\n",
        b"MSG a 1 b c 5\r\n",
        b"MSG a 1 five\r\n",
        b"MSG a 1 99999999999999\r\n",
        b"MSG a 1 " + b"9" * 5000 + b"\r\n",
        b"HMSG a 1 5\r\n",
        b"HMSG a 1 9 5\r\n",
        b"HMSG a 1 -2 5\r\n",
        b"HMSG a 1 b x 5\r\n",
        b"MSG a 1 \xff\r\n",
        b"x" * (70 * 1024),
        b"x" * (70 * 1024) + b"\r\n",
    ],
)
def test_a_malformed_line_is_a_protocol_error(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        Reader().feed(line)


def test_the_largest_payload_a_server_may_allow_is_accepted_and_more_is_not() -> None:
    Reader().feed(b"MSG a 1 %d\r\n" % (64 << 20))
    with pytest.raises(ProtocolError):
        Reader().feed(b"MSG a 1 %d\r\n" % (66 << 20))
