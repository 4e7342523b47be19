"""How the connection of a process is: its round trip and loss, as the kernel measures them; and
when what it was admitted by ends."""

from __future__ import annotations

import os
import socket
import ssl
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass

from swarm.errors import NotAdmitted
from swarm.link.access import certificate_end, signer_of
from swarm.link.link import Link

# Of `struct tcp_info` in linux/tcp.h: microseconds of the smoothed round trip, segments that were
# sent again, and segments that were sent at all (Linux 4.2 and newer).
_RTT, _RESENT, _SENT = 68, 100, 136
_SIZE = 256


@dataclass(frozen=True, slots=True)
class Condition:
    """round_trip: seconds. sent, resent: segments of TCP since this connection began; where a link
    loses packets, `resent` grows."""

    round_trip: float
    sent: int
    resent: int


def condition(link: Link) -> Condition | None:
    """Of the present connection to the server; None without one, and where this system's kernel
    does not tell."""
    transport = link.gather.transport
    if transport is None or not link.connected or sys.platform != "linux":
        return None
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return None
    # The loop's own object of the socket need not have all methods of one.
    with suppress(OSError), socket.socket(fileno=os.dup(sock.fileno())) as own:
        return read_tcp_info(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE))
    return None


def read_tcp_info(data: bytes) -> Condition | None:
    """The kernel's figures; None where an older kernel gives too few of them."""
    if len(data) < _SENT + 4:
        return None
    told = (int(struct.unpack_from("=I", data, at)[0]) for at in (_RTT, _SENT, _RESENT))
    round_trip_us, sent, resent = told
    return Condition(round_trip_us / 1e6, sent, resent)


def expiries(link: Link) -> dict[str, float]:
    """When this process's `credentials`, its own `certificate` and the present connection's
    `server` certificate expire, in seconds since 1970. One that never expires, or cannot be read
    just now, is left out."""
    found: dict[str, float] = {}
    options = link.options
    with suppress(NotAdmitted):
        signer = signer_of(options)
        if signer is not None and signer.expires:
            found["credentials"] = signer.expires
    if options.tls_cert:
        with suppress(OSError, ValueError):
            found["certificate"] = certificate_end(options.tls_cert)
    transport = link.gather.transport
    told = transport.get_extra_info("peercert") if transport is not None else None
    if told and "notAfter" in told:
        with suppress(ValueError):
            found["server"] = float(ssl.cert_time_to_seconds(told["notAfter"]))
    return found
