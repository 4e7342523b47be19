"""Identifiers: ULIDs for requests, and node ids, which bear the name of the node's user."""

from __future__ import annotations

import os
import random
import socket
import time

from swarm.errors import InvalidArgument

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(a + b for a in _CROCKFORD for b in _CROCKFORD)
_DIGITS = bytes(ord(_CROCKFORD[value % 32]) for value in range(256))  # each as often

NODE_ID_CHARS = 64  # the longest node id
# Of what is unique to a start: 36 bits, which are unique enough beside the starts of one user. A
# user without a name is called by its public key of 56 characters.
_UNIQUE, _UNIQUE_CHARS = "0123456789abcdefghijklmnopqrstuvwxyz", 7

# Random bits are asked of the kernel for so many ids at a time. (Measured: a call for each id takes
# 20 of the 32 us that one takes with cold caches.)
_AT_ONCE = 64
_drawn: list[str] = []


def _forget() -> None:
    """A forked child draws anew: its ids must not be its parent's."""
    _drawn.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _draw() -> str:
    """As `unguessable`, and more of them for the next calls."""
    text = os.urandom(16 * _AT_ONCE).translate(_DIGITS).decode("ascii")
    _drawn.extend([text[at : at + 16] for at in range(16, len(text), 16)])
    return text[:16]


def unguessable() -> str:
    """80 random bits: 16 characters of Crockford base 32."""
    try:
        return _drawn.pop()  # for one thread alone, as is each operation of a list
    except IndexError:
        return _draw()


def ulid() -> str:
    """A new ULID (github.com/ulid/spec): 48 bits of milliseconds, then 80 random ones. Who has seen
    any number of them can guess no other one.

    26 characters of Crockford base 32; sorts by time; needs no coordination.
    """
    now, pairs = time.time_ns() // 1_000_000, _PAIRS
    return (
        f"{pairs[now >> 40 & 1023]}{pairs[now >> 30 & 1023]}{pairs[now >> 20 & 1023]}"
        f"{pairs[now >> 10 & 1023]}{pairs[now & 1023]}{unguessable()}"
    )


def node_id(user: str) -> str:
    """The id of a node of this user, unique per start: `<user>-<random>`, fit for a subject.

    Raises `InvalidArgument` for a name that leaves no room in the `NODE_ID_CHARS` of an id.
    """
    if len(user) > NODE_ID_CHARS - 1 - _UNIQUE_CHARS:
        most = NODE_ID_CHARS - 1 - _UNIQUE_CHARS
        raise InvalidArgument(f"user name {user!r}: a node's user has {most} characters at most")
    drawn = random.SystemRandom()
    return f"{user}-{''.join(drawn.choice(_UNIQUE) for _ in range(_UNIQUE_CHARS))}"


def nobodys_user(role: str) -> str:
    """What stands for the user's name in the id of a node without credentials: `<role>-<host>`."""
    host = (
        "".join(c if c.isascii() and c.isalnum() else "-" for c in socket.gethostname())[:24]
        or "host"
    )
    return f"{role}-{host}"
