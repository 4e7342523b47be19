"""Errors of routing.

InvalidArgument (swarm.errors)
├── UnknownPolicy      no policy of that name, built in or by entry point
├── PolicyLoadFailed   an entry point that does not load, or gives no Policy
├── BadPolicyOption    an option that the policy does not have, or out of its range
└── BadDesiredState    a document of desired state with problems: refused as a whole
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swarm.errors import InvalidArgument


class UnknownPolicy(InvalidArgument):
    """No policy of that name; `known` lists those there are."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(f"no routing policy {name!r}; there are: {', '.join(known)}")
        self.name = name
        self.known = tuple(known)


class PolicyLoadFailed(InvalidArgument):
    """An entry point of group "swarm.routing" that does not load, or gives no Policy."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"routing policy {name!r} could not be loaded: {reason}")
        self.name = name
        self.reason = reason


class BadPolicyOption(InvalidArgument):
    """An option that the policy does not have, or whose value is out of range."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"routing policy {name!r}: {reason}")
        self.name = name
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in a document: where (JSON path, "serve[1].share") and what."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path or 'document'}: {self.reason}"


class BadDesiredState(InvalidArgument):
    """A document of desired state that is refused as a whole; `problems` lists all of them."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("desired state refused: " + "; ".join(map(str, problems)))
        self.problems = tuple(problems)
