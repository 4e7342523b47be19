"""Errors of the mesh as the answers that HTTP clients get."""

from __future__ import annotations

import math

from swarm.errors import InvalidArgument, ResourceExhausted, Status, SwarmError

HTTP_CODES = {
    Status.INVALID_ARGUMENT: 400,
    Status.UNAUTHENTICATED: 401,
    Status.PERMISSION_DENIED: 403,
    Status.NOT_FOUND: 404,
    Status.RESOURCE_EXHAUSTED: 429,
    Status.CANCELLED: 499,
    Status.UNAVAILABLE: 503,
    Status.DEADLINE_EXCEEDED: 504,
    Status.INTERNAL: 500,
}

FAULT = "a fault of the gateway, which its log describes"


class NotOffered(InvalidArgument):
    """A part of the protocol that the gateway leaves out: 501, or gRPC's UNIMPLEMENTED."""


class TooLarge(InvalidArgument):
    """More bytes than a request may have: 413."""


class UnknownEncoding(InvalidArgument):
    """A body in a form that nobody here unpacks: 415."""


class NoSuchMethod(InvalidArgument):
    """The path is known, and takes another method: 405."""


class NoSuchPath(InvalidArgument):
    """Nothing is there: 404."""


class TooSlow(InvalidArgument):
    """The client took too long to send its request: 408."""


_CODES_OF_HTTP: dict[type[SwarmError], int] = {
    NotOffered: 501,
    TooLarge: 413,
    UnknownEncoding: 415,
    NoSuchMethod: 405,
    NoSuchPath: 404,
    TooSlow: 408,
}


def http_code(error: SwarmError, full: int = 429) -> int:
    """The status code of an answer. full: the one for `ResourceExhausted`, 429 or 503."""
    special = _CODES_OF_HTTP.get(type(error))
    if special is not None:
        return special
    if error.status is Status.RESOURCE_EXHAUSTED:
        return full
    return HTTP_CODES.get(error.status, 500)


def retry_after(error: SwarmError) -> list[tuple[bytes, bytes]]:
    """Headers that say when a refused request may come again; none for other errors, and where no
    wait helps. `Retry-After` has whole seconds, as HTTP wants; `Retry-After-Ms` beside it has the
    milliseconds, which some clients obey first."""
    if not isinstance(error, ResourceExhausted) or not math.isfinite(error.retry_after):
        return []
    seconds = max(1, math.ceil(error.retry_after))
    headers = [(b"retry-after", b"%d" % seconds)]
    if error.retry_after > 0:
        headers.append((b"retry-after-ms", b"%d" % max(1, math.ceil(error.retry_after * 1e3))))
    return headers
