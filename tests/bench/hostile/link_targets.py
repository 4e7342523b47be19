"""Parsers of what a server, or somebody in its place, sends."""

from __future__ import annotations

from contextlib import ExitStack

from bench.hostile.target import FLOOR, Case, Target, json_objects
from swarm.link.grants import read_denial, read_grants
from swarm.link.jetstream import parse, stored_sequence
from swarm.link.parser import CHUNK, Parser
from swarm.link.session import parse_info
from swarm.link.types import LinkMessage
from swarm.security.signed_entries import signature_in
from swarm.transport.lane.message import parse_ack_subject

_MOST_PAYLOAD = 1 << 20  # bytes, as a server's INFO says
_INFO = (
    b'{"server_id":"N","max_payload":1048576,"headers":true,"connect_urls":["a:4222"],"nonce":"x"}'
)
_HEADERS = b"NATS/1.0 503 No Responders\r\nNats-Sequence: 7\r\n\r\n"
_ACK = "$JS.ACK.SWARM=default=digits=1=stage1.default=digits=stage1=any.1.7.7.1700000000000000000.3"


_MOST_PIECES = 500


class _Stuck(Exception):
    """The parser offers no memory for the next bytes: its reader would turn for ever."""


def _open_protocol(stack: ExitStack) -> Case:
    def parse_stream(data: bytes) -> None:
        # In one piece, and in small ones, as a network may bring it.
        for size in (len(data), max(1 + len(data) % 97, len(data) // _MOST_PIECES)):
            parser = Parser(
                lambda sid, subject, reply, headers, payload: None,
                lambda verb, argument: None,
                _MOST_PAYLOAD,
            )
            left = memoryview(data)
            while left:
                buffer = parser.buffer()
                count = min(size, len(buffer), len(left))
                if not count:
                    raise _Stuck
                buffer[:count] = left[:count]
                left = left[count:]
                parser.received(count)

    large = b"x" * 40_000
    seeds = (
        b"MSG swarm.default.gossip.a 3 5\r\nhello\r\n",
        b"MSG a.b 3 _INBOX.u.x.1 5\r\nhello\r\nPING\r\n",
        b"HMSG a 4 %d %d\r\n%shello\r\n" % (len(_HEADERS), len(_HEADERS) + 5, _HEADERS),
        b"MSG a 1 %d\r\n%s\r\nMSG a 1 0\r\n\r\n" % (len(large), large),
        b"INFO " + _INFO + b"\r\nPONG\r\n+OK\r\n-ERR 'Stale Connection'\r\n",
    )
    # Two parsers' buffers, and a payload that a line has announced.
    return Case(seeds, parse_stream, floor=FLOOR + 2 * CHUNK + 2 * (_MOST_PAYLOAD + (1 << 20)))


def _open_info(stack: ExitStack) -> Case:
    return Case((_INFO,), parse_info, declared=json_objects)


def _open_answer(stack: ExitStack) -> Case:
    def read(data: bytes) -> None:
        read_grants(data)
        stored_sequence(data)
        parse(data)

    seeds = (
        b'{"stream":"SWARM=default=digits=1=stage1", "seq":7}',
        b'{"stream":"S","seq":7,"duplicate":true,"domain":"hub"}',
        b'{"type":"io.nats","error":{"code":404,"err_code":10059,"description":"not found"}}',
        b'{"data":{"user":"U","permissions":{"publish":{"allow":["a.>"],"deny":["b"]}}}}',
    )
    # Read up to three times, one after another.
    return Case(seeds, read, declared=json_objects)


def _open_words(stack: ExitStack) -> Case:
    def read(data: bytes) -> None:
        text = data.decode(errors="replace")
        read_denial(text)
        signature_in(data)
        assert len(LinkMessage("a", "", data, b"").status) <= 3
        parse_ack_subject(text)

    seeds = (
        _ACK.encode(),
        _ACK.replace("$JS.ACK.", "$JS.ACK.hub.hash.").encode(),
        b'Permissions Violation for Publish to "swarm.default.features.digits.1.1.any"',
        _HEADERS,
    )
    return Case(seeds, read)


TARGETS = (
    Target("link.protocol", "bytes", _open_protocol),
    Target("link.info", "json", _open_info, 0.5),
    Target("link.answers", "json", _open_answer, 0.5),
    Target("link.words", "bytes", _open_words, 0.5),
)
