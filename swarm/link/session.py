"""Opening a session: TCP, INFO, TLS, and the CONNECT command with its credentials."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote

from swarm.addresses import PORT, endpoint, split_url, without_credentials
from swarm.errors import NotAdmitted, NotConnected, SwarmError
from swarm.link.access import ended_in_tls, own_context, signer_of, tls_context, tls_refusal
from swarm.link.parser import ProtocolError

if TYPE_CHECKING:
    from swarm.link.types import LinkOptions


log = logging.getLogger("swarm.link")

_refused: set[str] = set()  # algorithms whose refusal was told


HANGS = "it hangs, or the port is another program's"
REACHES = 0.9  # of `connect_timeout` for TCP: silence after TCP is told apart


def no_answer(servers: Iterable[str], why: str) -> NotConnected:
    """None of the servers could be connected to; why: what the last attempt said."""
    remedy = "start that server again" if why.endswith(HANGS) else "start one (`nats-server -js`)"
    return NotConnected(
        f"no NATS server answers at {', '.join(map(without_credentials, servers))} "
        f"({why or 'no reply'}); {remedy} or pass --nats URL"
    )


def why_not(error: Exception, connect_timeout: float) -> str:
    """Why an attempt to connect failed, for people. A timeout after TCP carries no message, so it
    gets one here."""
    if isinstance(error, TimeoutError) and not str(error):
        return f"it took the connection and did not answer within {connect_timeout:g} s: {HANGS}"
    return str(error) or type(error).__name__


async def open_session(
    loop: asyncio.AbstractEventLoop,
    protocol: asyncio.BufferedProtocol,
    url: SplitResult,
    options: LinkOptions,
) -> dict[str, Any]:
    """Connect `protocol` to the server; returns the server's INFO.

    INFO is read from the bare socket first: TLS may have to start right after it.
    Raises `OSError`, `ProtocolError`, `NotAdmitted`.
    """
    host, port = url.hostname or "127.0.0.1", url.port or PORT
    within = options.connect_timeout * REACHES
    try:
        async with asyncio.timeout(within):  # a name server may be silent too
            sock = await _tcp(loop, host, port, within)
    except TimeoutError:
        raise TimeoutError(
            f"no connection within {within:g} s: its host is off, or a firewall drops what comes"
        ) from None
    if options.congestion:
        control_congestion(sock, options.congestion)
    info: dict[str, Any] = {}
    try:
        context = tls_context(options)
        if context is None and url.scheme == "tls":
            context = own_context("", "", "")
        if not options.tls_first:
            info = await _read_info(loop, sock)
            if info.get("tls_required") and context is None:
                context = own_context("", "", "")
            if not info.get("tls_required") and not info.get("tls_available"):
                if context is not None:
                    raise NotAdmitted(
                        f"{endpoint(url)} offers no TLS, and TLS was asked for: add `tls {{…}}` to "
                        "the server's configuration (`swarm auth server` writes it), or leave out "
                        "--tls-ca, --tls-cert and tls://"
                    )
                context = None
        await loop.create_connection(
            lambda: protocol,
            sock=sock,
            ssl=context,
            server_hostname=host if context is not None else None,
        )
    except ssl.SSLError as error:
        sock.close()
        raise tls_refusal(error, endpoint(url), options) from None
    except ConnectionError as error:
        sock.close()
        if info.get("tls_verify"):
            raise ended_in_tls(endpoint(url)) from error
        raise
    except BaseException:
        sock.close()
        raise
    return info


async def greet_all(
    servers: Iterable[str], options: LinkOptions, timeout: float
) -> dict[str, dict[str, Any]]:
    """INFO of each server that greets within `timeout` seconds, by its URL; nothing is sent. An
    empty document stands for a server that greets behind TLS only (`tls_first`)."""
    wanted = list(servers)
    greetings = await asyncio.gather(*(_greet(server, options, timeout) for server in wanted))
    pairs = zip(wanted, greetings, strict=True)
    return {server: info for server, info in pairs if info is not None}


async def _greet(server: str, options: LinkOptions, timeout: float) -> dict[str, Any] | None:
    loop = asyncio.get_running_loop()
    try:
        url = split_url(server)
        async with asyncio.timeout(timeout):
            with await _tcp(loop, url.hostname or "127.0.0.1", url.port or PORT, timeout) as sock:
                return {} if options.tls_first else await _read_info(loop, sock)
    except (OSError, ValueError, SwarmError):  # a timeout is an OSError; one may have no room
        return None


async def _tcp(
    loop: asyncio.AbstractEventLoop, host: str, port: int, within: float
) -> socket.socket:
    """Connect to the first address of the host that answers. within: seconds for all together: one
    that is silent, as IPv6 is behind some routers, must not use up those of the others."""
    error: OSError | None = None
    addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for family, kind, proto, _, address in addresses:
        sock = socket.socket(family, kind, proto)
        sock.setblocking(False)
        try:
            async with asyncio.timeout(within / len(addresses)):
                await loop.sock_connect(sock, address)
        except OSError as failure:  # a timeout is one
            sock.close()
            error = failure
        except BaseException:
            sock.close()
            raise
        else:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
    raise error or OSError(f"no address for {host}")


def control_congestion(sock: socket.socket, name: str) -> bool:
    """Let TCP send by this algorithm (tcp(7)); whether the kernel has it, and lets this user."""
    try:
        set_congestion(sock, name)
    except OSError as error:
        if name not in _refused:
            _refused.add(name)
            log.warning("TCP congestion control %r: %s; the system's own is used", name, error)
        return False
    return True


def set_congestion(sock: socket.socket, name: str) -> None:
    """As `control_congestion`. Raises `OSError` where the kernel has no such algorithm, or does not
    let this user take it."""
    option = getattr(socket, "TCP_CONGESTION", None)
    if option is None:
        raise OSError("this system does not let programs choose")
    sock.setsockopt(socket.IPPROTO_TCP, option, name.encode())


async def _read_info(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> dict[str, Any]:
    """The document of the INFO line, with which every server greets. Raises `ProtocolError`, and
    `NotConnected` where the server has no room."""
    line = bytearray()
    while not line.endswith(b"\r\n"):
        # Until it gets CONNECT, the server sends INFO alone, or a refusal behind it as its last
        # word: a read is safe.
        piece = await loop.sock_recv(sock, 4096)
        if not piece:
            raise ProtocolError("the server closed the connection before its greeting")
        line += piece
        if len(line) > 1 << 20:
            raise ProtocolError("the greeting is longer than 1 MB; is this a NATS server?")
    if not line.startswith(b"INFO "):
        raise ProtocolError(f"not a NATS server: it greets with {bytes(line[:40])!r}")
    _, _, refusal = bytes(line).partition(b"\r\n-ERR ")
    if refusal:
        said = refusal.decode(errors="replace").strip("'\r\n ")
        raise NotConnected(f"the server refused: {said}")
    return parse_info(bytes(line[5:]))


def parse_info(argument: bytes) -> dict[str, Any]:
    """The document of an INFO line. Raises `ProtocolError`."""
    try:
        info = json.loads(argument)
    except (ValueError, RecursionError):
        info = None
    if not isinstance(info, dict):
        raise ProtocolError(f"malformed INFO {argument[:80]!r}")
    return info


def connect_command(info: dict[str, Any], url: SplitResult, options: LinkOptions) -> bytes:
    """The CONNECT line, with the credentials of the options or of the URL.

    Raises `NotAdmitted` where the file of credentials cannot be used.
    """
    doc: dict[str, Any] = {
        "verbose": False,
        "pedantic": False,
        "lang": "python",
        "version": "swarm",
        "protocol": 1,
        "headers": True,
        "no_responders": True,
        "name": options.name,
    }
    if (signer := signer_of(options)) is not None:
        if info.get("auth_required"):  # else the server sends no challenge to sign
            doc |= signer.answer(str(info.get("nonce", "")))
    elif options.token is not None:
        doc["auth_token"] = options.token
    elif options.user is not None:
        doc |= {"user": options.user, "pass": options.password or ""}
    elif url.username is not None and url.password is not None:
        doc |= {"user": unquote(url.username), "pass": unquote(url.password)}
    elif url.username is not None:
        doc["auth_token"] = unquote(url.username)
    return b"CONNECT " + json.dumps(doc).encode() + b"\r\n"
