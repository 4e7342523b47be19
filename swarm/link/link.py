"""A supervised connection to NATS for the hot path: features, results, acks, gossip.

nats-py wakes two tasks for each message, copies the payload four times and parses headers as
e-mail, so the mesh speaks with servers by this one alone.
Callbacks run inside the read: they must not block. An exception in one
is logged and counted, and ends nothing.

Publishing never waits. While there is no connection it raises `NotConnected` and keeps nothing:
features that are sent late are stale.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from random import Random
from typing import Any, cast
from urllib.parse import SplitResult

from swarm.addresses import endpoint, split_url, without_credentials
from swarm.errors import (
    LinkEnded,
    MessageTooLarge,
    NoResponders,
    NotAdmitted,
    NotConnected,
    PermissionDenied,
    ResourceExhausted,
    SwarmError,
)
from swarm.flow.backoff import Backoff
from swarm.link.access import early_end, is_about_identity, refusal
from swarm.link.awaited import OpenRequests, Pings, answered
from swarm.link.gather import Gather
from swarm.link.grants import ASK, EVERYTHING, Denial, DenialLog, Grants, read_denial, read_grants
from swarm.link.greetings import check_given, check_greeting, wait_for_better
from swarm.link.parser import Parser, ProtocolError
from swarm.link.revisions import Revisions
from swarm.link.send_rate import SendRate
from swarm.link.servers import Greeting, ServerList
from swarm.link.session import connect_command, no_answer, open_session, parse_info, why_not
from swarm.link.subscriptions import OnMessage, Replies, Subscriptions
from swarm.link.types import LinkMessage, LinkOptions
from swarm.periodic import next_beat
from swarm.subjects import FROM_SERVER, TOKEN, in_domain
from swarm.wire.tensors import Part

log = logging.getLogger("swarm.link")

JOIN_BELOW = 16 * 1024  # bytes: a smaller message is joined, and not written in pieces
FIRST_BACKOFF = 0.1  # seconds between rounds over the servers; they grow to `max_backoff`
DEFAULT_MAX_PAYLOAD = 1 << 20  # bytes; a server's, unless it says another
NO_RESPONDERS = b"503"
GRANTS_TIMEOUT = 1.0  # seconds; a server may never answer the question for a user's rights
FLUSH_BEFORE_MOVING = 0.5  # seconds


class Link(asyncio.BufferedProtocol):
    """`run()` keeps it connected; `await ready()` waits for the first connection.

    on_up / on_down: lists of callbacks without arguments, called at each change. on_fewer: called
    when the server has lost sight of another one of its cluster. gather: its
    writes. servers: those that it knows. home: what the present one says of its cluster.
    server_inbox: below it the server alone answers. grants: what this user may do, as far as the
    server tells. server_domain: the JetStream domain of the server, "" where it has none.
    on_denied(subject, error): callbacks for a publish that the server refused.
    refusal: why the last attempt to connect was refused for who connects; None where it was not.
    reconnects, callback_errors, last_error: figures for people.

    It has many attributes, because asyncio wants one object that is the connection's reader,
    and its users one that outlives all connections: those parts that need neither stand alone
    (`Parser`, `Gather`, `Pings`, `Subscriptions`, `Replies`).
    """

    def __init__(self, options: LinkOptions) -> None:
        self.options = options
        self.servers = ServerList(options.servers)
        self.home = Greeting()
        self.revisions = Revisions()
        self.url: SplitResult | None = None
        self.connected = False
        # The server's limit on one message with its headers, bytes.
        self.max_payload = DEFAULT_MAX_PAYLOAD
        self.reconnects = 0
        self.callback_errors = 0
        self.last_error: str = ""
        self.server_domain = ""
        self.grants: Grants = EVERYTHING
        self.refusal: NotAdmitted | None = None
        self._vain = 0  # rounds over all servers since the last connection
        self.on_denied: list[Callable[[str, PermissionDenied], None]] = []
        self.on_up: list[Callable[[], None]] = []
        self.on_down: list[Callable[[], None]] = []
        self.on_fewer: list[Callable[[], None]] = []
        self.gather = Gather()
        self._parser = Parser(self._message, self._control)
        self.send_rate = SendRate()
        self._pings = Pings()
        self._subscriptions = Subscriptions()
        # A second inbox, for what the server alone answers. A node publishes its first inbox in its
        # status, and keeps this one secret: whoever knew it could send the server a request with
        # this inbox as its reply subject, and the server's answer would arrive here.
        user = options.inbox.rpartition(".")[0]
        self.server_inbox = f"{user}.{secrets.token_urlsafe(9)}.{FROM_SERVER}"
        replies = self._replies = Replies(options.inbox, self.server_inbox)
        # As the table does them, without a call between: each message needs all three.
        self.expect = replies.expect
        self.expect_from_server = replies.expect_from_server
        self.forget = replies.forget
        self.deliver = replies.deliver
        self._up = asyncio.Event()
        self._lost = asyncio.Event()
        self._closing = False
        self._why = "it was closed"
        self._decided = asyncio.Event()  # connected, or refused for who connects
        self._moving: asyncio.Task[None] | None = None  # looks for a better server
        self._next = ""  # the server to move to
        self._denials = DenialLog()
        self._asks_certificate = False
        self._deaf: PermissionDenied | None = None  # the user may not hear its own inbox
        self._asked = OpenRequests()
        self._backed_up = False  # the transport keeps more than a little that is not sent yet
        self.subscribe(f"{options.inbox}.*", self.deliver)
        self.subscribe(f"{self.server_inbox}.*", self.deliver)

    @property
    def is_clustered(self) -> bool:
        """Whether several servers may keep a stream; of another domain's nothing is known."""
        return bool(self.home.cluster or self.options.domain)

    @property
    def domain(self) -> str:
        """The JetStream domain in which this link's streams are, "" where it has no name."""
        return self.options.domain or self.server_domain

    def in_domain(self, subject: str) -> str:
        """The subject of a call of JetStream, or of a key, in the domain that was asked for."""
        return in_domain(subject, self.options.domain)

    def may_call(self, subject: str) -> bool:
        """Whether this user may make a call of JetStream, as far as the server tells."""
        return self.grants.may_publish(self.in_domain(subject))

    @property
    def open_replies(self) -> int:
        """Reply subjects that are expected and not forgotten."""
        return len(self._replies)

    # --- life -----------------------------------------------------------------------

    async def run(self) -> None:
        """Connect, and reconnect with jittered backoff, until `close()` or cancellation."""
        longest = self.options.max_backoff
        backoff = Backoff(min(FIRST_BACKOFF, longest), longest, Random())
        attempt, looked = 0, len(self.options.servers) < 2
        loop = asyncio.get_running_loop()
        try:
            while not self._closing:
                servers = self.servers.in_turn(self._next)
                server = servers[attempt % len(servers)]
                try:
                    if not looked:
                        await check_given(self.servers, self.options)
                        looked = True
                    await self._connect(server)
                except (OSError, TimeoutError, ValueError, ProtocolError, SwarmError) as error:
                    attempt += 1
                    where = without_credentials(server)
                    self.last_error = f"{where}: {why_not(error, self.options.connect_timeout)}"
                    self._abort()
                    self.refusal = error if isinstance(error, NotAdmitted) else None
                    whole_round = attempt % len(servers) == 0
                    self._vain += whole_round
                    if whole_round or (self.refusal is not None and attempt > len(servers)):
                        self._decided.set()
                    if whole_round:
                        await asyncio.sleep(backoff.next())
                    continue
                attempt = self._vain = 0
                self.refusal = None
                self._next = ""
                began = loop.time()
                await self._serve()
                if self._next or loop.time() - began >= self.options.ping_interval:
                    backoff.reset()
                else:  # it ended as it began, and the next one may end so too
                    await asyncio.sleep(backoff.next())
        except Exception as error:
            self._why = f"its work met a defect, {error!r}"
            raise
        finally:
            self._closing = True
            self._abort()
            self._went_down()
            self._decided.set()

    @property
    def ended(self) -> LinkEnded | None:
        """Why no connection will be made any more; None while one may be made."""
        return LinkEnded(f"this connection has ended: {self._why}") if self._closing else None

    async def ready(self, timeout: float | None = None, rounds: float = inf) -> None:
        """Wait for a connection. Raises `NotConnected` when `timeout` seconds pass or all servers
        were tried in vain `rounds` times, and at once `LinkEnded` where the link has ended, and
        `NotAdmitted` where the servers refuse who connects."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not (self._up.is_set() or self._closing) and self._vain < rounds:
                    await self._decided.wait()
                    if self.refusal is not None:
                        # Without its traceback, which would grow with each caller that waits.
                        raise self.refusal.with_traceback(None)
                    self._decided.clear()
        if self.ended is not None:
            raise self.ended
        if not self._up.is_set():
            raise no_answer(self.options.servers, self.last_error)

    async def close(self) -> None:
        """Send the buffered bytes, then end."""
        self._closing = True
        if self.connected:
            with contextlib.suppress(SwarmError, TimeoutError):
                await self.flush(1.0)
        self._lost.set()
        self._abort()
        self._went_down()

    async def _connect(self, server: str) -> None:
        self.url = split_url(server)
        self._parser = Parser(self._message, self._control)
        self._pings = Pings()
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self.options.connect_timeout):
            info = await open_session(loop, self, self.url, self.options)
            self._asks_certificate = bool(info.get("tls_verify"))
            if self.gather.transport is None:
                self.last_error = "the server closed the connection before the greeting"
                raise self._early_end(None)
            check_greeting(self.home, Greeting.of(info), endpoint(self.url), self.options)
            self._learn({"max_payload": DEFAULT_MAX_PAYLOAD, "domain": ""} | info)
            connect = connect_command(info, self.url, self.options)
            greeted = self._pings.expect()
            asked = time.monotonic()
            self.gather.write(connect + b"PING\r\n")
            await greeted
            self.send_rate.tripped(time.monotonic() - asked)
        self.gather.write(self._subscriptions.lines())
        self.grants, self._deaf = EVERYTHING, None
        if info.get("auth_required"):
            await self._learn_grants()
        if self.gather.transport is None:  # lost behind the greeting
            raise self._early_end(None)
        self.servers.connected(server)
        self.connected = True

    async def _learn_grants(self) -> None:
        """Ask the server what this user may do. Raises `PermissionDenied` where it may not even
        hear the answer."""
        answer: asyncio.Future[LinkMessage] = asyncio.get_running_loop().create_future()
        reply = self.expect_from_server(partial(answered, answer))
        self._asked.begin(reply, ASK, answer)
        self.gather.write(f"PUB {ASK} {reply} 0\r\n\r\n".encode())
        try:
            async with asyncio.timeout(GRANTS_TIMEOUT):
                message = await answer
        except PermissionDenied as error:
            if self._deaf is not None:
                raise
            log.debug("the server does not tell this user's rights: %s", error)
            return
        except TimeoutError:
            return
        finally:
            self.forget(reply)
            self._asked.end(reply)
        if not message.status:
            self.grants = read_grants(bytes(message.data))

    def _learn(self, info: dict[str, Any]) -> None:
        limit = info.get("max_payload")
        if type(limit) is int and limit > 0:
            self.max_payload = limit
        domain = info.get("domain", self.server_domain)
        self.server_domain = domain if isinstance(domain, str) and TOKEN.fullmatch(domain) else ""
        before, self.home = self.home, Greeting.of(info)
        self.servers.learn(self.home.peers)
        lost_sight = before.server == self.home.server and not before.peers <= self.home.peers
        if self.connected and self._moving is None and (self.home.leaves or lost_sight):
            self._moving = asyncio.get_running_loop().create_task(self._move(), name="move")
        if self.connected and lost_sight:
            self._notify(self.on_fewer)

    async def _move(self) -> None:
        """Go to another server where that is better: this one leaves, or sees less of the cluster.
        Who waits for an answer is told as of any lost connection."""
        better = await wait_for_better(lambda: self.home, self.servers, self.options)
        if better is not None:
            self.last_error = "it leaves" if self.home.leaves else "it has lost sight of others"
            log.info(
                "%s: %s; on to %s", endpoint(self.url), self.last_error, without_credentials(better)
            )
            self._next = better
            with contextlib.suppress(SwarmError, TimeoutError):
                await self.flush(FLUSH_BEFORE_MOVING)
            self._lost.set()
        else:
            self._moving = None

    async def _serve(self) -> None:
        self._up.set()
        self._decided.set()
        log.debug("connected to %s", endpoint(self.url))
        self._notify(self.on_up)
        while not self._lost.is_set() and not self._closing:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(next_beat(self.options.ping_interval)):
                    await self._lost.wait()
            if self._lost.is_set():
                break
            if self._pings.is_hung(self.send_rate.backlog / self.options.ping_interval):
                # wait_closed() can hang on unsent bytes when the server is stopped: abort.
                self.last_error = "the server does not answer pings"
                break
            self._pings.keep_alive(partial(self._alive, time.monotonic()))
            self.gather.write(b"PING\r\n")
        self._abort()
        self._went_down()
        self.reconnects += 1

    def _alive(self, asked: float) -> None:
        """The PONG of a keep-alive that was sent at `asked` came."""
        self.send_rate.tripped(time.monotonic() - asked)

    def _abort(self) -> None:
        self._up.clear()  # as in `connection_lost`, which comes a turn later
        if self._moving is not None:
            self._moving.cancel()
            self._moving = None
        if self.gather.transport is not None:
            self.gather.transport.abort()
            self.gather.reset(None)

    def _went_down(self) -> None:
        if not self.connected:
            return
        self.connected = False
        lost = NotConnected("the connection to NATS was lost")
        self._pings.fail(lost)
        self.send_rate.lost()
        # A server that has ended answers nothing any more: who asked may ask the next one.
        self._asked.fail(lost)
        self._notify(self.on_down)

    def _notify(self, callbacks: Sequence[Callable[..., None]], *told: object) -> None:
        for callback in list(callbacks):
            try:
                callback(*told)
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

        Raises `NotConnected`, `MessageTooLarge` above the server's `max_payload`, or
        `ResourceExhausted` when `max_pending` bytes are unsent.
        """
        transport = self.gather.transport
        if transport is None or not self.connected:
            raise self.ended or NotConnected("there is no connection to NATS at present")
        size = len(data) if isinstance(data, bytes) else sum(map(len, data))
        total = size + len(headers)
        if total > self.max_payload:
            # The server would end the connection.
            raise MessageTooLarge(
                f"a message of {total} bytes, and this server's max_payload is {self.max_payload}: "
                f"set `max_payload: {total}` or more in its configuration, send fewer rows at once,"
                " or choose a smaller cut"
            )
        if self._backed_up and transport.get_write_buffer_size() > self.options.max_pending:
            raise ResourceExhausted(
                f"more than {self.options.max_pending} bytes are waiting to be sent"
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
        transport.writelines([line, *([data] if isinstance(data, bytes) else data), b"\r\n"])
        if self.send_rate.sends(total, time.monotonic()):
            self._pings.then(self._carried)
            self.gather.write(b"PING\r\n")

    def _carried(self) -> None:
        """The server has read the large messages before a PING."""
        self.send_rate.answered(time.monotonic())

    def push(self) -> None:
        """Send the gathered bytes, unless several messages came at once: a callback that has more
        to do behind its message calls it."""
        if not self.bursting:
            self.gather.flush()

    @property
    def bursting(self) -> bool:
        """Whether messages that are sent now leave together: several came at once."""
        gather = self.gather
        return gather.corked and (gather.messages > 1 or self._parser.more)

    async def flush(self, timeout: float = 5.0) -> None:
        """Wait until the server has seen everything sent so far."""
        async with asyncio.timeout(timeout):
            await self.sync()

    def sync(self) -> asyncio.Future[None]:
        """Completes when the server has read everything sent so far (PING, PONG); fails with
        `NotConnected` when the connection is lost before. Raises `NotConnected`."""
        if not self.connected:
            raise self.ended or NotConnected("there is no connection to NATS at present")
        pong = self._pings.expect()
        self.gather.write(b"PING\r\n")
        return pong

    # --- receiving ------------------------------------------------------------------

    def subscribe(self, subject: str, callback: OnMessage, queue: str = "") -> int:
        """Returns the subscription's number. It is renewed after each reconnect."""
        sid = self._subscriptions.add(subject, queue, callback)
        if self.connected:
            self.gather.write(self._subscriptions.line(sid))
        return sid

    def unsubscribe(self, sid: int) -> None:
        """No message of this subscription is delivered from now on."""
        if self._subscriptions.remove(sid) and self.connected:
            self.gather.write(f"UNSUB {sid}\r\n".encode())

    async def unsubscribe_and_drain(self, sid: int, timeout: float = 2.0) -> None:
        """Stop a subscription; messages that the server has sent already are still delivered."""
        if sid in self._subscriptions.callbacks and self.connected:
            self.gather.write(f"UNSUB {sid}\r\n".encode())
            with contextlib.suppress(SwarmError, TimeoutError):
                await self.flush(timeout)
        self._subscriptions.remove(sid)

    async def request(
        self,
        subject: str,
        data: Sequence[Part] | bytes = b"",
        timeout: float = 2.0,
        headers: bytes = b"",
        *,
        from_server: bool = False,
    ) -> LinkMessage:
        """One request, one reply; `headers` is a whole `NATS/1.0` block. from_server: the server
        itself answers, as JetStream's API does: the one of the domain that was asked for.

        Raises `NoResponders` at once when nobody listens, `PermissionDenied` at once when this
        user may not ask, `TimeoutError` after `timeout` seconds, `NotConnected` when
        there is no connection or it is lost before the reply came.
        """
        if self._deaf is not None:
            raise self._deaf.with_traceback(None)
        answer: asyncio.Future[LinkMessage] = asyncio.get_running_loop().create_future()
        expect = self.expect_from_server if from_server else self.expect
        reply = expect(partial(answered, answer))
        if from_server:
            subject = self.in_domain(subject)
        self._asked.begin(reply, subject, answer)
        try:
            self.publish(subject, data, reply, headers)
            async with asyncio.timeout(timeout):
                message = await answer
        finally:
            self.forget(reply)
            self._asked.end(reply)
        if message.status == NO_RESPONDERS:
            raise NoResponders(f"nobody listens on {subject}")
        return message

    def _message(
        self,
        sid: int,
        subject: bytes,
        reply: bytes,
        headers: bytes | None,
        data: bytes | memoryview,
    ) -> None:
        self.gather.messages += 1
        callback = self._subscriptions.callbacks.get(sid)
        if callback is None:
            return
        try:
            callback(LinkMessage(subject.decode(), reply.decode(), headers, data))
        except Exception:
            self.callback_errors += 1
            log.exception("the callback for %s failed", subject.decode(errors="replace"))

    def _control(self, verb: bytes, argument: bytes) -> None:
        if verb == b"PING":
            self.gather.write(b"PONG\r\n")
        elif verb == b"PONG":
            self._pings.answered()
        elif verb == b"INFO":
            self._learn(parse_info(argument))
        elif verb == b"-ERR":
            self._refused(argument.decode(errors="replace").strip("' "))

    def _refused(self, text: str) -> None:
        self.last_error = f"server: {text}"
        if (denial := read_denial(text)) is not None:
            self._denied(denial)
        elif not self.connected:
            if is_about_identity(text):
                named = self.url is not None and bool(self.url.username)
                self._pings.fail(refusal(text, endpoint(self.url), self.options, named))
            else:
                self._pings.fail(NotConnected(f"the server refused: {text}"))
        else:
            log.warning("the server ended the connection: %s", text)

    def _denied(self, denial: Denial) -> None:
        """Tell those who wait for an answer, and those who asked to hear of it."""
        error = denial.error()
        self.last_error = str(error)
        if not denial.publish:
            self._denials.note(denial, error)
            if denial.subject.startswith((self.options.inbox, self.server_inbox)):
                self._deaf = error
                self._asked.fail(error)
            return
        if not self._asked.fail(error, denial.subject):
            self._denials.note(denial, error)
        self._notify(self.on_denied, denial.subject, error)

    # --- asyncio.BufferedProtocol -----------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._parser.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._pings.unanswered = 0  # a PONG behind a large message comes late on a slow link
        self.gather.begin()
        try:
            self._parser.received(nbytes)
        except ProtocolError as error:
            self.last_error = str(error)
            self._abort()
        finally:
            self.gather.end()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.gather.reset(cast(asyncio.Transport, transport))
        self._backed_up = False
        # The connection before may have reported its loss late, after it was given up.
        self._lost.clear()

    def pause_writing(self) -> None:
        self._backed_up = True

    def resume_writing(self) -> None:
        self._backed_up = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.gather.reset(None)  # uvloop raises RuntimeError on a write to a lost transport
        # A caller that finds it set would try again at once, and keep the loop from reconnecting.
        self._up.clear()
        if exc is not None:
            self.last_error = str(exc)
        if not self.connected:
            error = self._early_end(exc)
            self._pings.fail(error)
            self._asked.fail(error)
        self._lost.set()

    def _early_end(self, exc: Exception | None) -> NotConnected:
        """Why a connection ended before it was one."""
        said = NotConnected(self.last_error or "connection refused")
        return early_end(exc, endpoint(self.url), self.options, self._asks_certificate) or said
