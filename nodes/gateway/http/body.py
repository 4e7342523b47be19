"""The body of a request: whole, unpacked, within its bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Protocol

from nodes.gateway.http import compression
from nodes.gateway.statuses import TooLarge, TooSlow

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class Holder(Protocol):
    """Keeps count of the bytes of one request, until it is answered."""

    def hold(self, size: int) -> None:
        """So many bytes more. Raises `ResourceExhausted`."""
        ...

    def expect(self, size: int) -> None:
        """Hold so many bytes, which are still to come. Raises `ResourceExhausted`."""
        ...


async def whole_body(
    headers: Mapping[str, str], receive: Receive, limit: int, seconds: float, holder: Holder
) -> bytes:
    """headers: names in lower case. limit: bytes, unpacked. seconds: in which it has to come. A
    body that says its length is refused before it comes where there is no room for it.
    Raises `TooLarge`, `TooSlow`, `ResourceExhausted`, and what `unpacked` raises."""
    announced = headers.get("content-length", "0")
    if not (announced.isascii() and announced.isdigit()) or int(announced[:20]) > limit:
        raise TooLarge(f"a body of {announced:.20} bytes: at most {limit} are taken")
    holder.expect(expected := int(announced))
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            more = True
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    raise asyncio.CancelledError  # the client is gone
                pieces.append(message.get("body", b""))
                size += len(pieces[-1])
                if size > limit:
                    raise TooLarge(f"a body of more than {limit} bytes")
                if not expected:
                    holder.hold(len(pieces[-1]))
                more = message.get("more_body", False)
    except TimeoutError:
        raise TooSlow(f"the body did not come within {seconds:g} s") from None
    body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    encoding = headers.get("content-encoding")
    return await compression.unpacked(body, encoding, limit, holder.hold) if encoding else body
