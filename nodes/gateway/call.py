"""A request for an inference as HTTP and gRPC bring it, and its answer: shared by both servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from swarm.errors import PermissionDenied
from swarm.wire.messages import Request
from swarm.wire.urgency import NAMES


@dataclass(frozen=True, slots=True)
class Standing:
    """What a caller's requests are among those of others. priority: of requests that name none.
    most: the highest that they may name. share: of the turns while many wait, beside those of other
    callers; 0.0 where none is given, which counts as 1."""

    priority: str = "normal"
    most: str = "high"
    share: float = 0.0

    def priority_of(self, named: str, agent: str) -> str:
        """The priority of a request that names this one, or ""; "" is normal. Raises
        `PermissionDenied`."""
        if named and NAMES[named] > NAMES[self.most]:
            raise PermissionDenied(
                f"agent {agent!r} may ask with priority {self.most} at most, and asked with {named}"
            )
        return named or ("" if self.priority == "normal" else self.priority)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. agent: the mesh's name for the caller, for quotas and audit; "" for a caller on
    loopback who shows nothing. known_by: `loopback`, `key`, `token` or `certificate`. quotas:
    what the caller may use in a second, by its field of the callers' file; none for any number."""

    agent: str = ""
    known_by: str = "loopback"
    quotas: Mapping[str, float] = field(default_factory=dict, compare=False)
    standing: Standing = field(default=Standing(), compare=False)


@dataclass(frozen=True, slots=True)
class Region:
    """A piece of a registered shared memory region; offset and size in bytes."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class WantedOutput:
    """An output that the client names. binary: whether its bytes follow the JSON; None where the
    client does not say so. region: where the client wants it instead of in the answer."""

    binary: bool | None = None
    region: Region | None = None


@dataclass(frozen=True, slots=True)
class InferCall:
    """One request for an inference, decoded and bounded, but not yet compared with its model.

    request: its arrays may view the received bytes. wanted: the outputs that the client names, by
    name; those alone are in the result then, in this order. binary: whether outputs that say
    nothing of it go behind the JSON.
    """

    model: str
    request: Request
    wanted: Mapping[str, WantedOutput] = field(default_factory=dict)
    binary: bool = False


class Callers(Protocol):
    """Tells who asks, by what a request shows. Ask it once for each request, each of a stream too:
    an answer takes from the caller's quota."""

    def of(
        self, headers: dict[str, str], peer: str, certificate: str = "", *, takes: bool = True
    ) -> Caller:
        """headers: of HTTP, or gRPC's metadata, with names in lower case. peer: the address that
        the connection comes from. certificate: the common name of a client's verified certificate.
        takes: whether it is a request that takes from the quota; a view of a page is none.
        Raises `Unauthenticated`, `PermissionDenied`, `ResourceExhausted`."""
        ...
