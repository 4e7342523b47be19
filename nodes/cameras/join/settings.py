"""The settings of a node that joins views."""

from __future__ import annotations

from dataclasses import dataclass

from nodes.settings import check, tuning
from swarm.errors import InvalidArgument
from swarm.subjects import token

MOST_EDGES = 16


@dataclass(frozen=True)
class JoinOptions:
    """within, wait: seconds. Raises `InvalidArgument`."""

    of: str = tuning(
        "", "join: names of edges' results (their --sink), separated by commas; in this order."
    )
    within: float = tuning(
        50.0,
        "join: milliseconds between two captures that show one moment.",
        unit="ms",
        least=0,
    )
    wait: float = tuning(
        200.0,
        "join: milliseconds that a result waits for the others; then it goes on without them.",
        unit="ms",
        least=1,
    )
    match: str = tuning(
        "",
        "join: match boxes of detectors, and ask no fusion model. class: by class and time. "
        "FILE.json: by where they stand on a plane that all edges see, which the file tells.",
    )

    def __post_init__(self) -> None:
        check(self)
        for edge in self.edges:
            token(edge, "result name (--of NAME,NAME)")
        if self.of and not 2 <= len(set(self.edges)) == len(self.edges) <= MOST_EDGES:
            raise InvalidArgument(
                f"--of {self.of}: it is 2 to {MOST_EDGES} different names, separated by commas"
            )

    @property
    def edges(self) -> tuple[str, ...]:
        return tuple(each for each in self.of.split(",") if each)
