"""Addresses of servers: checked where they are set, split where they are used. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

from swarm.errors import BadAddress

PORT = 4222  # where an address names none
SCHEMES = ("nats", "tls")
EXAMPLE = "write nats://HOST:PORT, several of one cluster separated by commas"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_NO_SLASHES = re.compile(r"(nats|tls|wss?|https?|tcp):(?!//|[0-9]+/?$)", re.IGNORECASE)
_PLACE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)?(\[[^\]]*\]|[^:/?#]*)(:[0-9]{1,5}(?![0-9]))?")
_HOST = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_.])?")


def checked(servers: str | Iterable[str]) -> tuple[str, ...]:
    """The addresses of a list, or of a text that separates them by commas; blanks around each are
    left out. Raises `BadAddress` for a list without any, and for one that cannot be an address: no
    message shows the credentials that an address may hold."""
    if isinstance(servers, bytes) or not isinstance(servers, str | Iterable):
        raise BadAddress(f"{type(servers).__name__}: it is no address of a server: {EXAMPLE}")
    parts = servers.split(",") if isinstance(servers, str) else list(servers)
    if not parts:
        raise BadAddress(f"no address of a server is given: {EXAMPLE}")
    return tuple(_checked(part, len(parts) > 1) for part in parts)


def _checked(given: object, one_of_several: bool) -> str:
    if not isinstance(given, str):
        raise BadAddress(f"{type(given).__name__}: it is no address of a server: {EXAMPLE}")
    server = given.strip()
    if not server:
        where = "between the commas of a list of servers" if one_of_several else "of a server"
        raise BadAddress(f"an address {where} is empty: {EXAMPLE}")
    if fault := _fault(server):
        raise BadAddress(f"{_shown(server)!r} is no address of a server: {fault}")
    return server


def _shown(server: str) -> str:
    """As much of a wrong address as surely holds no part of a password, which may hold a comma."""
    text = without_credentials(server)
    place = _PLACE.match(text)
    shown = place[0] if place else ""
    return shown if shown == text else f"{shown}…"


def _fault(server: str) -> str:
    """Why this cannot be a server's address, without its credentials; "" where it can."""
    if any(char.isspace() or not char.isprintable() for char in server):
        return "it has a blank in it; several addresses are separated by commas"
    if _NO_SLASHES.match(server):
        return "// is missing behind its scheme"
    scheme = _SCHEME.match(server)
    if scheme and scheme[1].lower() in ("ws", "wss"):
        return "WebSockets are for browsers; give the server's port for nats:// or tls://"
    if scheme and scheme[1].lower() not in SCHEMES:
        return f"{scheme[1]}:// is neither nats:// nor tls://"
    try:
        url = split_url(server)
    except ValueError:
        return f"its host cannot be read; an IPv6 address stands in brackets; {EXAMPLE}"
    user, at, place = url.netloc.rpartition("@")
    if at and not user.partition(":")[0]:
        return "no user stands in front of its @"
    if url.path not in ("", "/") or url.query or url.fragment:
        return "behind its host and port stands more; / ? # in a user or password are %2F %3F %23"
    if place.count(":") > 1 and not place.startswith("["):
        return "an IPv6 address stands in brackets, as in nats://[::1]:4222"
    return _fault_of_host(url.hostname or "", place.startswith("[")) or _fault_of_port(url)


def _fault_of_host(host: str, in_brackets: bool) -> str:
    if not host:
        return f"it names no host; {EXAMPLE}"
    if in_brackets:
        try:
            return "" if ip_address(host).version == 6 else f"{host} needs no brackets"
        except ValueError:
            return f"{host} is no IPv6 address"
    try:
        name = host.encode("idna").decode()
    except UnicodeError:
        name = ""
    return "" if _HOST.fullmatch(name) else f"{host} is no name of a host"


def _fault_of_port(url: SplitResult) -> str:
    """Of a URL that names a host."""
    try:
        port = url.port
    except ValueError:
        port = 0
    if port == 0 or url.netloc.endswith(":"):
        return "its port is no number from 1 to 65535"
    return ""


def split_url(server: str) -> SplitResult:
    """A server's URL in its parts; `nats://` may be left out. Raises `ValueError`."""
    return urlsplit(server if "//" in server else f"nats://{server}")


def address(server: str) -> str:
    """Host and port of a server's URL. Raises `ValueError`."""
    url = split_url(server)
    host = url.hostname or "127.0.0.1"
    return f"[{host}]:{url.port or PORT}" if ":" in host else f"{host}:{url.port or PORT}"


def endpoint(url: SplitResult | None) -> str:
    """Host and port, as people may read them: without the credentials that a URL may hold."""
    return "nowhere" if url is None else f"{url.hostname}:{url.port or PORT}"


def without_credentials(server: str) -> str:
    """A server's URL, as people and logs may read it."""
    scheme = _SCHEME.match(server)
    head = scheme[0] if scheme else ""
    return head + server.removeprefix(head).rpartition("@")[2]
