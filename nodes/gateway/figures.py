"""What a gateway's doors tell as figures."""

from __future__ import annotations

from http import HTTPStatus

from nodes.cli.fields import part
from nodes.figures import Fields, FiguresOf, counters, gauge, known
from swarm.errors import Status

# What an alert reads of each door.
FAILURES = {
    "http": ("500", "502", "503", "504"),
    "grpc": ("UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "UNKNOWN"),
}
# Of HTTP and of gRPC, with which a gateway answers; 499: the client went away.
CODES = {
    *map(str, Status),
    *("CANCELLED", "UNKNOWN", "UNIMPLEMENTED", "499"),
    *map(str, map(int, HTTPStatus)),
}


def _doors(status: Fields) -> list[Fields]:
    doors = part(part(status, "gateway"), "doors")
    return [{**counts, "door": door} for door in FAILURES if (counts := part(doors, door))]


def _codes(door: Fields) -> list[tuple[str, int]]:
    # From zero on: a counter that begins with failures would have no rate.
    return known(dict.fromkeys(FAILURES[door["door"]], 0) | part(door, "by_code"), CODES)


FIGURES = (
    FiguresOf(
        _doors,
        {
            "swarm_gateway_requests": counters(
                "Answers to clients of HTTP and gRPC, by the protocol's code.", _codes, "code"
            ),
            "swarm_gateway_in_flight": gauge(
                "Requests of clients of HTTP and gRPC that wait for their answer.", "in_flight"
            ),
            "swarm_gateway_connections": gauge(
                "Open connections of clients of HTTP.", "connections"
            ),
        },
        labels={"door": "door"},
    ),
)
