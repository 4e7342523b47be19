"""Identifiers: ULIDs for requests, and node ids."""

from __future__ import annotations

import os
import random
import socket
import time

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(a + b for a in _CROCKFORD for b in _CROCKFORD)

# Unique, not secret: asking the system for each took as long as all the rest. Nobody else can
# seed it, and a forked child draws other numbers than its parent.
_random = random.Random()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_random.seed)


def ulid() -> str:
    """A new ULID (github.com/ulid/spec): 48 bits of milliseconds, 80 random bits.

    26 characters of Crockford base 32; sorts by time; needs no coordination.
    """
    value = (time.time_ns() // 1_000_000) << 80 | _random.getrandbits(80)
    # Ten bits a step: half the work of one character a step.
    return "".join([_PAIRS[value >> shift & 1023] for shift in range(120, -1, -10)])


def node_id(role: str) -> str:
    """A node id, unique per start: `<role>-<host>-<random>`, fit for a subject."""
    host = (
        "".join(c if c.isascii() and c.isalnum() else "-" for c in socket.gethostname())[:24]
        or "host"
    )
    return f"{role}-{host}-{os.urandom(4).hex()}"
