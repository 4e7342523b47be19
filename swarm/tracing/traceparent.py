"""The header `traceparent` (W3C Trace Context, level 1): which trace a request belongs to.

00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
   trace                            parent           flags: 01 is sampled
"""

from __future__ import annotations

import re
import secrets
from typing import Protocol

from swarm.wire.messages import Result

_FORM = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
_SAMPLED = frozenset("13579bdf")  # last digits of flags whose lowest bit is set
LONGEST = 128  # characters; a longer one is of a version that nobody has defined


def is_valid(header: str) -> bool:
    """Whether a caller's header names a trace. One that does not is ignored, as the standard
    says."""
    found = _FORM.fullmatch(header) if len(header) <= LONGEST else None
    if found is None or header.startswith("ff"):
        return False
    if header.startswith("00") and found[4]:
        return False  # version 00 has four fields
    return found[1] != _NO_TRACE and found[2] != _NO_SPAN


def is_sampled(header: str) -> bool:
    """Whether the request is to be traced. header: any text."""
    return header[54:55] in _SAMPLED


def make(*, sampled: bool = True) -> str:
    """A new header: a span of a new trace."""
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-{'01' if sampled else '00'}"


def below(header: str) -> tuple[str, str]:
    """The header of what a new span asks, and that span's id, below a sampled header. The id is ""
    for another header, which stays."""
    if not is_sampled(header):
        return header, ""
    span = secrets.token_hex(8)
    return f"{header[:36]}{span}{header[52:]}", span


def checked(header: str) -> str:
    """A caller's header; "" for one that names no trace: a new trace begins then, as the standard
    says."""
    return header if is_valid(header) else ""


# What the mesh calls for each request that somebody may want to see; imports no library.


class Trace(Protocol):
    """One request. traceparent: travels with it; "" where it is not traced."""

    traceparent: str

    def end(self, result: Result) -> None:
        """The request has its result. Never raises, never waits."""
        ...

    def give_up(self, error: BaseException) -> None:
        """The request gets no result: its caller has cancelled it (`asyncio.CancelledError`), or
        `error` is a fault on the way. Called instead of `end`. Never raises, never waits."""
        ...


class Tracer(Protocol):
    """Makes a `Trace` of each request."""

    def begin(self, model: str, traceparent: str) -> Trace:
        """traceparent: the caller's valid header, "" for none. Never raises, never waits."""
        ...

    def close(self) -> None:
        """Send what was not sent yet, within a few seconds. Blocking."""
        ...
