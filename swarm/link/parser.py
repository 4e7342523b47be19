"""The NATS client protocol, received side, without a socket (docs.nats.io, "client protocol").

The owner reads into `buffer()` and reports with `received(n)`; a callback gets the messages. The
kernel reads a large payload straight into memory of its own, so the kernel's copy is the only one
(nats-py reads 32 KB at a time, joins the pieces and copies the payload again).
"""

from __future__ import annotations

from collections.abc import Callable

from swarm.errors import DecodeError

CHUNK = 256 * 1024  # bytes; one read
OWN_MEMORY_FROM = 32 * 1024  # bytes; an incomplete payload as large as this gets its own memory
LONGEST_LINE = 64 * 1024  # bytes of a control line
_TOO_LONG = f"a control line longer than {LONGEST_LINE} bytes"

OnMessage = Callable[[int, bytes, bytes, bytes | None, "bytes | memoryview"], None]
OnControl = Callable[[bytes, bytes], None]


class ProtocolError(DecodeError):
    """The server sent something that is not the NATS protocol."""


class Parser:
    """Calls on_message(sid, subject, reply, headers or None, payload) for each message, and
    on_control(verb, argument) for each other line: INFO, PING, PONG, -ERR, +OK.

    max_payload: bytes; a longer message is a `ProtocolError`. `more`: whether bytes lie behind the
    present message that came with it.
    """

    def __init__(self, on_message: OnMessage, on_control: OnControl, max_payload: int = 64 << 20):
        self._on_message = on_message
        self._on_control = on_control
        self._max_total = max_payload + (1 << 20)
        self._buffer = bytearray(CHUNK)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self.more = False
        self._own: memoryview | None = None  # a large payload being received
        self._own_end = 0
        self._own_args: tuple[int, bytes, bytes, int] = (0, b"", b"", 0)

    def buffer(self) -> memoryview:
        """Where to read the next bytes to."""
        if self._own is not None:
            return self._own[self._own_end :]
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """`count` bytes were read into `buffer()`. Raises `ProtocolError`."""
        if self._own is not None:
            self._own_end += count
            if self._own_end == len(self._own):
                payload, self._own = self._own, None
                sid, subject, reply, header_size = self._own_args
                headers = bytes(payload[:header_size]) if header_size else None
                self.more = False
                self._on_message(sid, subject, reply, headers, payload[header_size:-2])
            return
        self._end += count
        self._parse()

    def _parse(self) -> None:
        buffer = self._buffer
        start, end = self._start, self._end
        while start < end:
            line_end = buffer.find(b"\r\n", start, end)
            if line_end < 0:
                if end - start > LONGEST_LINE:
                    raise ProtocolError(_TOO_LONG)
                break
            first = buffer[start]
            if first == 77 or first == 72:  # M(SG), H(MSG)
                after = self._message(first == 72, start, line_end + 2, end)
                if after < 0:
                    break
                start = after
            else:
                if line_end - start > LONGEST_LINE:
                    raise ProtocolError(_TOO_LONG)
                verb, _, argument = bytes(buffer[start:line_end]).partition(b" ")
                start = line_end + 2
                self._on_control(verb.upper(), argument)
        if self._own is not None or start == end:
            self._start = self._end = 0
        elif start:
            # Keep the tail at the front, so that a whole chunk fits behind it.
            buffer[: end - start] = buffer[start:end]
            self._start, self._end = 0, end - start
        # A message that does not fit gets its own memory, so the buffer never fills up.

    def _message(self, with_headers: bool, start: int, body: int, end: int) -> int:
        """Where the next control line starts, or -1 when more bytes are needed."""
        # Slices of the view: one of the bytearray would be copied twice.
        buffer = self._view
        args = bytes(buffer[start + (5 if with_headers else 4) : body - 2]).split()
        try:
            header_size = int(args[-2]) if with_headers else 0
            size = int(args[-1])
            sid = int(args[1])
            subject = args[0]
            count = len(args) - with_headers
            reply = args[2] if count == 4 else b""
        except (ValueError, IndexError):
            raise ProtocolError(f"malformed message line {bytes(buffer[start:body])!r}") from None
        if not 3 <= count <= 4 or not 0 <= header_size <= size <= self._max_total:
            raise ProtocolError(f"malformed message line {bytes(buffer[start:body])!r}")
        stop = body + size
        if stop + 2 <= end:
            split = body + header_size
            self.more = stop + 2 < end
            headers = bytes(buffer[body:split]) if with_headers else None
            self._on_message(sid, subject, reply, headers, bytes(buffer[split:stop]))
            return stop + 2
        if size >= OWN_MEMORY_FROM or body - start + size + 2 > CHUNK // 2:
            memory = bytearray(size + 2)
            have = end - body
            memory[:have] = buffer[body:end]
            self._own, self._own_end = memoryview(memory), have
            self._own_args = (sid, subject, reply, header_size)
        return -1
