"""One connection of a client: uvicorn's, with limits on its headers and on the time they take."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from nodes.gateway.door import Figures
from nodes.gateway.hand import BytesInHand

CONNECTION = "connection"  # key of an ASGI scope's state
AHEAD = 1 << 20  # bytes of a body that are read before the application asks for it
PIECE = 256 << 10  # bytes of a body without a length that are read before there is room for them


@dataclass(frozen=True, slots=True)
class HttpBounds:
    """connections: at a time; more are closed at once. head: bytes of a request's first line and
    headers. fields: headers. head_time: seconds in which the headers have to come, from the
    connection or from their first byte on. body_time: seconds for the whole body. idle_time:
    seconds between two requests."""

    connections: int = 768
    head: int = 32 << 10
    fields: int = 100
    head_time: float = 10.0
    body_time: float = 60.0
    idle_time: float = 75.0


def connection_class(
    bounds: HttpBounds, figures: Figures, hand: BytesInHand
) -> type[HttpToolsProtocol]:
    """The protocol class of a server with these bounds, which counts its connections there."""
    own = {"bounds": bounds, "figures": figures, "hand": hand}
    return type("BoundedConnection", (HttpConnection,), own)


class HttpConnection(HttpToolsProtocol):
    """`running`: the task that is cancelled when the client goes away, while it is set.
    `certificate`: the common name of the client's verified certificate, "" without one. It keeps
    count of the bytes of the request that is answered at present."""

    bounds: HttpBounds
    figures: Figures
    hand: BytesInHand

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.app_state = {**self.app_state, CONNECTION: self}
        self.running: asyncio.Task[Any] | None = None
        self.is_lost = False
        self.certificate = ""
        self._pieces: list[bytes] = []  # of the body
        self._size = 0
        self._ahead = AHEAD  # bytes of the body that may be kept here
        self._held = 0  # bytes of the hand
        self._unread = 0  # bytes since the last that belonged to a body
        self._unsent = -1  # bytes of an answer, when last looked at
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self.figures.connections += 1
        if len(self.connections) > self.bounds.connections:
            self._refuse(503, "too many connections are open at this gateway")
            return
        self.certificate = _common_name(transport.get_extra_info("peercert"))
        self._start_timer(self.bounds.head_time)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self.figures.connections -= 1
        self._stop_timer()
        super().connection_lost(exc)
        if self.running is not None:
            self.running.cancel()

    def hold(self, size: int) -> None:
        """So many bytes more. Raises `ResourceExhausted`."""
        self.hand.take(size)
        self._held += size

    def expect(self, size: int) -> None:
        """Hold so many bytes, which are still to come. Raises `ResourceExhausted`."""
        self.hold(size)
        self._ahead = max(PIECE, size)

    def release(self) -> None:
        """The request is answered: its bytes are let go."""
        self.hand.give(self._held)
        self._held = 0
        self._ahead = AHEAD

    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        super().data_received(data)
        if self._unread > self.bounds.head:  # of headers, of what follows a chunked body
            self._refuse(431, f"the headers are longer than {self.bounds.head} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._start_timer(self.bounds.head_time)

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > self.bounds.fields:
            self._refuse(431, f"there are more than {self.bounds.fields} headers")

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self.bounds.head:
            self._refuse(431, f"the headers are longer than {self.bounds.head} bytes")
        self._unread = 0
        self._stop_timer()
        if not self.transport.is_closing():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Keep it until it is whole: the application wakes once, and the bytes are copied once
        (measured: a fifth of the time of 0.6 MB). One that did not say its length goes on in
        pieces, each of which the application has to find room for."""
        self._unread = 0
        if self.transport.is_closing() or self.cycle.response_complete:
            return
        self._pieces.append(body)
        self._size += len(body)
        if self._size > self._ahead:
            self._hand_over()
            self.flow.pause_reading()
            self.cycle.message_event.set()

    def _hand_over(self) -> None:
        taken = [bytes(self.cycle.body)] if self.cycle.body else []
        self.cycle.body = b"".join(taken + self._pieces)  # type: ignore[assignment]
        self._pieces.clear()
        self._size = 0

    def on_message_complete(self) -> None:
        self._unread = 0
        if self.transport.is_closing():
            return
        if not self.cycle.response_complete:
            self._hand_over()
        super().on_message_complete()
        if self.cycle.response_complete:  # it was answered before it had come
            self._start_timer(self.bounds.idle_time)

    def on_response_complete(self) -> None:
        self.running = None
        super().on_response_complete()
        if not self.cycle.response_complete:
            return  # of the request before the one that has begun to come
        self._pieces.clear()
        self._size = 0
        if self.cycle.more_body:  # the rest of its body is thrown away as it comes
            self._start_timer(self.bounds.body_time)

    def timeout_keep_alive_handler(self) -> None:
        """A client that does not read its answer is let go; one that reads slowly is waited for."""
        left = self.transport.get_write_buffer_size()
        if left == 0:
            super().timeout_keep_alive_handler()
        elif left == self._unsent:
            self.transport.abort()
        else:
            self._unsent = left
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is no request of HTTP/1.1")

    def _start_timer(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self._too_slow)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if self._unread:
            self._refuse(408, f"the headers did not come within {self.bounds.head_time:g} s")
        else:
            self.transport.close()

    def _refuse(self, code: int, text: str) -> None:
        """Answer and close, without the application."""
        if self.transport.is_closing():
            return
        body = b'{"error": "%s"}' % text.encode()
        head = b"HTTP/1.1 %d Refused\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(head % code + b"content-length: %d\r\n\r\n" % len(body) + body)
        self.transport.close()


def _common_name(certificate: dict[str, Any] | None) -> str:
    subject = (certificate or {}).get("subject", ())
    return next((value for part in subject for key, value in part if key == "commonName"), "")
