"""A supervised connection to NATS for the hot path: features, results, acks, gossip.

Why not nats-py here: per message it wakes two tasks, copies the payload four times and
parses headers as e-mail. Everything that is called seldom (object store, KV, services)
does use it: `swarm.services.control`. Callbacks run inside the read: they must not block, and an
exception in one is logged and counted, never fatal (an `error_cb` that raises stops
nats-py for good).

Publishing never waits. While there is no connection it raises `NotConnected` instead of
buffering: features that are sent late are stale.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, cast
from urllib.parse import SplitResult, urlsplit

from swarm.errors import NoResponders, NotConnected, ResourceExhausted, SwarmError
from swarm.link.gather import Gather
from swarm.link.parser import Parser, ProtocolError
from swarm.link.session import (
    connect_command,
    endpoint,
    open_session,
    parse_info,
    without_credentials,
)
from swarm.link.types import LinkMessage, LinkOptions
from swarm.periodic import next_beat
from swarm.wire.tensors import Part

log = logging.getLogger("swarm.link")

JOIN_BELOW = 16 * 1024  # bytes: one joined write costs less than a gather below this
NO_RESPONDERS = b"503"


OnMessage = Callable[[LinkMessage], None]


class Link(asyncio.BufferedProtocol):
    """`run()` keeps it connected; `await ready()` waits for the first connection.

    on_up / on_down: lists of callbacks without arguments, called at each change.
    """

    def __init__(self, options: LinkOptions) -> None:
        self.options = options
        self.info: dict[str, Any] = {}
        self.url: SplitResult | None = None
        self.connected = False
        self.max_payload = 1 << 20  # the server's limit on one message with its headers, bytes
        self.reconnects = 0
        self.callback_errors = 0
        self.last_error: str = ""
        self.on_up: list[Callable[[], None]] = []
        self.on_down: list[Callable[[], None]] = []
        self._transport: asyncio.Transport | None = None
        self._parser = Parser(self._message, self._control)
        self._subscriptions: dict[int, tuple[str, str, OnMessage]] = {}
        self._next_sid = 1
        self._replies: dict[str, OnMessage] = {}
        self._next_reply = 0
        self._pongs: list[asyncio.Future[None]] = []
        self._pings_out = 0
        self.gather = Gather()
        self._up = asyncio.Event()
        self._lost = asyncio.Event()
        self._closing = False
        self._greeting: asyncio.Future[None] | None = None
        self.subscribe(f"{options.inbox}.*", self.deliver)

    # --- life -----------------------------------------------------------------------

    async def run(self) -> None:
        """Connect, and reconnect with jittered backoff, until `close()` or cancellation."""
        attempt = 0
        try:
            while not self._closing:
                server = self.options.servers[attempt % len(self.options.servers)]
                try:
                    await self._connect(server)
                except (OSError, TimeoutError, ValueError, ProtocolError, SwarmError) as error:
                    attempt += 1
                    where = without_credentials(server)
                    self.last_error = f"{where}: {error or type(error).__name__}"
                    self._abort()
                    if attempt % len(self.options.servers) == 0:
                        delay = min(self.options.max_backoff, 0.05 * 2 ** min(attempt, 8))
                        await asyncio.sleep(random.uniform(delay / 2, delay))
                    continue
                attempt = 0
                await self._serve()
        finally:
            self._abort()
            self._went_down()

    async def ready(self, timeout: float | None = None) -> None:
        """Wait for a connection; raises `NotConnected` when `timeout` seconds pass."""
        try:
            await asyncio.wait_for(self._up.wait(), timeout)
        except TimeoutError:
            servers = ", ".join(map(without_credentials, self.options.servers))
            raise NotConnected(
                f"no NATS server answers at {servers} ({self.last_error or 'no reply'}); "
                "start one (`nats-server -js`) or pass --nats URL"
            ) from None

    async def close(self) -> None:
        """Send what is buffered, then end."""
        self._closing = True
        if self.connected:
            with contextlib.suppress(SwarmError, TimeoutError):
                await self.flush(1.0)
        self._lost.set()
        self._abort()
        self._went_down()

    async def _connect(self, server: str) -> None:
        self.url = urlsplit(server if "//" in server else f"nats://{server}")
        self._parser = Parser(self._message, self._control)
        self._pings_out = 0
        self.info = {}
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self.options.connect_timeout):
            info = await open_session(loop, self, self.url, self.options)
            if self._transport is None:
                raise NotConnected("the server closed the connection before the greeting")
            self._learn(info)
            self._greeting = loop.create_future()
            self.gather.write(connect_command(self.info, self.url, self.options) + b"PING\r\n")
            await self._greeting
        self._greeting = None
        self.connected = True
        lines = [self._sub_line(sid) for sid in self._subscriptions]
        self.gather.write(b"".join(lines))

    def _learn(self, info: dict[str, Any]) -> None:
        self.info |= info
        self.max_payload = int(self.info.get("max_payload", 1 << 20))

    async def _serve(self) -> None:
        self._up.set()
        log.debug("connected to %s", endpoint(self.url))
        self._notify(self.on_up)
        while not self._lost.is_set() and not self._closing:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(next_beat(self.options.ping_interval)):
                    await self._lost.wait()
            if self._lost.is_set():
                break
            if self._pings_out >= 2:
                # wait_closed() can hang on unsent bytes when the server is stopped: abort.
                self.last_error = "the server does not answer pings"
                break
            self._pings_out += 1
            self.sync().cancel()  # nobody waits; its PONG keeps its place in the order
        self._abort()
        self._went_down()
        self.reconnects += 1

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
            self.gather.reset(None)

    def _went_down(self) -> None:
        self._up.clear()
        if not self.connected:
            return
        self.connected = False
        for pong in self._pongs:
            if not pong.done():
                pong.set_exception(NotConnected("the connection to NATS was lost"))
        self._pongs.clear()
        self._notify(self.on_down)

    def _notify(self, callbacks: list[Callable[[], None]]) -> None:
        for callback in list(callbacks):
            try:
                callback()
            except Exception:
                self.callback_errors += 1
                log.exception("a connection callback failed")

    # --- sending --------------------------------------------------------------------

    def publish(
        self,
        subject: str,
        data: Sequence[Part] | bytes = b"",
        reply: str = "",
        headers: bytes = b"",
    ) -> None:
        """Write one message; `headers` is a whole `NATS/1.0` block.

        Raises `NotConnected`, or `ResourceExhausted` for a message above the server's
        limit or when `max_pending` bytes are unsent.
        """
        transport = self._transport
        if transport is None or not self.connected:
            raise NotConnected("there is no connection to NATS at present")
        size = len(data) if isinstance(data, bytes) else sum(map(len, data))
        total = size + len(headers)
        if total > self.max_payload:
            # Sent all the same, it would end the connection.
            raise ResourceExhausted(
                f"message of {total} bytes; the server accepts {self.max_payload}: raise "
                "max_payload in its configuration, or choose a smaller cut",
                retry_after=inf,
            )
        if headers:
            line = f"HPUB {subject} {reply} {len(headers)} {total}\r\n".encode() + headers
        else:
            line = f"PUB {subject} {reply} {total}\r\n".encode()
        if total < JOIN_BELOW:
            if isinstance(data, bytes):
                self.gather.write(line + data + b"\r\n")
            else:
                self.gather.write(b"".join((line, *data, b"\r\n")))
            return
        self.gather.flush()
        if transport.get_write_buffer_size() > self.options.max_pending:
            raise ResourceExhausted(
                f"more than {self.options.max_pending} bytes are waiting to be sent"
            )
        transport.writelines([line, *([data] if isinstance(data, bytes) else data), b"\r\n"])

    def push(self) -> None:
        """Send now what was gathered, when no other message came with this read: what else its
        callback does need not come first."""
        if not self.bursting:
            self.gather.flush()

    @property
    def bursting(self) -> bool:
        """Whether what is sent now goes with more, since several messages came at once."""
        gather = self.gather
        return gather.corked and (gather.messages > 1 or self._parser.more)

    async def flush(self, timeout: float = 5.0) -> None:
        """Wait until the server has seen everything sent so far."""
        await asyncio.wait_for(self.sync(), timeout)

    def sync(self) -> asyncio.Future[None]:
        """Completes when the server has read everything sent so far (PING, PONG); fails with
        `NotConnected` when the connection is lost before. Raises `NotConnected`."""
        if not self.connected:
            raise NotConnected("there is no connection to NATS at present")
        pong = asyncio.get_running_loop().create_future()
        self._pongs.append(pong)
        self.gather.write(b"PING\r\n")
        return pong

    # --- receiving ------------------------------------------------------------------

    def subscribe(self, subject: str, callback: OnMessage, queue: str = "") -> int:
        """Returns the subscription's number. It is renewed after each reconnect."""
        sid = self._next_sid
        self._next_sid += 1
        self._subscriptions[sid] = (subject, queue, callback)
        if self.connected:
            self.gather.write(self._sub_line(sid))
        return sid

    def unsubscribe(self, sid: int) -> None:
        """No message of this subscription is delivered from now on."""
        if self._subscriptions.pop(sid, None) is not None and self.connected:
            self.gather.write(f"UNSUB {sid}\r\n".encode())

    async def unsubscribe_and_drain(self, sid: int, timeout: float = 2.0) -> None:
        """Stop a subscription; what the server had sent already is still delivered."""
        if sid in self._subscriptions and self.connected:
            self.gather.write(f"UNSUB {sid}\r\n".encode())
            with contextlib.suppress(SwarmError, TimeoutError):
                await self.flush(timeout)
        self._subscriptions.pop(sid, None)

    def expect(self, callback: OnMessage) -> str:
        """A fresh reply subject; `callback` gets each message to it until `forget`."""
        self._next_reply += 1
        reply = f"{self.options.inbox}.{self._next_reply:x}"
        self._replies[reply] = callback
        return reply

    def forget(self, reply: str) -> None:
        self._replies.pop(reply, None)

    async def request(
        self, subject: str, data: Sequence[Part] | bytes = b"", timeout: float = 2.0
    ) -> LinkMessage:
        """One request, one reply.

        Raises `NoResponders` at once when nobody listens, `TimeoutError` after `timeout`
        seconds, `NotConnected`.
        """
        answer: asyncio.Future[LinkMessage] = asyncio.get_running_loop().create_future()

        def receive(message: LinkMessage) -> None:
            if not answer.done():
                answer.set_result(message)

        reply = self.expect(receive)
        try:
            self.publish(subject, data, reply)
            async with asyncio.timeout(timeout):
                message = await answer
        finally:
            self.forget(reply)
        if message.status == NO_RESPONDERS:
            raise NoResponders(f"nobody listens on {subject}")
        return message

    def _sub_line(self, sid: int) -> bytes:
        subject, queue, _ = self._subscriptions[sid]
        return f"SUB {subject} {queue} {sid}\r\n".encode()

    def deliver(self, message: LinkMessage) -> None:
        """Call back who expects this reply; also for what came another way than by the server."""
        callback = self._replies.get(message.subject)
        if callback is not None:
            callback(message)

    def _message(
        self,
        sid: int,
        subject: bytes,
        reply: bytes,
        headers: bytes | None,
        data: bytes | memoryview,
    ) -> None:
        self.gather.messages += 1
        entry = self._subscriptions.get(sid)
        if entry is None:
            return
        try:
            entry[2](LinkMessage(subject.decode(), reply.decode(), headers, data))
        except Exception:
            self.callback_errors += 1
            log.exception("the callback for %s failed", subject.decode(errors="replace"))

    def _control(self, verb: bytes, argument: bytes) -> None:
        if verb == b"PING":
            self.gather.write(b"PONG\r\n")
        elif verb == b"PONG":
            self._pings_out = 0
            if self._greeting is not None:
                if not self._greeting.done():
                    self._greeting.set_result(None)
            elif self._pongs:
                pong = self._pongs.pop(0)
                if not pong.done():
                    pong.set_result(None)
        elif verb == b"INFO":
            self._learn(parse_info(argument))
        elif verb == b"-ERR":
            text = argument.decode(errors="replace").strip("' ")
            self.last_error = f"server: {text}"
            if self._greeting is not None and not self._greeting.done():
                self._greeting.set_exception(NotConnected(f"the server refused: {text}"))
            elif not text.lower().startswith("permissions violation"):
                log.warning("the server ended the connection: %s", text)

    # --- asyncio.BufferedProtocol -----------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._parser.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.gather.begin()
        try:
            self._parser.received(nbytes)
        except ProtocolError as error:
            self.last_error = str(error)
            self._abort()
        finally:
            self.gather.end()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Only from here on is a loss this connection's: the one before reports its own late.
        self._transport = cast(asyncio.Transport, transport)
        self.gather.reset(self._transport)
        self._lost.clear()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None  # uvloop raises RuntimeError on a write to it
        self._up.clear()  # who finds it set, and asks again, would not let the next one be made
        self.gather.reset(None)
        if exc is not None:
            self.last_error = str(exc)
        if self._greeting is not None and not self._greeting.done():
            self._greeting.set_exception(NotConnected(self.last_error or "connection refused"))
        self._lost.set()
