"""A request for an inference as HTTP and gRPC bring it, and its answer: shared by both servers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from swarm.wire.messages import Result


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. agent: the mesh's name for the caller, for quotas and audit; "" for a caller on
    loopback who shows nothing. known_by: `loopback`, `key`, `token` or `certificate`. tokens:
    a second, of prompts and answers of language models, that the caller may use; 0.0 for any
    number."""

    agent: str = ""
    known_by: str = "loopback"
    tokens: float = 0.0


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

    name: str
    binary: bool | None = None
    region: Region | None = None


@dataclass(slots=True)
class InferCall:
    """One request for an inference, decoded and bounded, but not yet compared with its model.

    inputs: arrays by name, which may view the received bytes. budget: seconds, None for the
    gateway's default. outputs: those that the client names, () for all of them. ignored: names of
    parameters that mean nothing here.
    """

    model: str
    inputs: dict[str, np.ndarray]
    caller: Caller
    version: str = ""
    id: str = ""
    outputs: tuple[WantedOutput, ...] = ()
    budget: float | None = None
    session: str = ""
    weights: int = 0
    traceparent: str = ""
    ignored: str = ""


@dataclass(frozen=True, slots=True)
class InferAnswer:
    """What a client gets. outputs: those that it named, in its order; else all of the model's.
    result: with status OK; its hops, version and `degraded` go into response parameters, and so do
    the names of the request's parameters that were ignored."""

    result: Result
    outputs: dict[str, np.ndarray]
    wanted: dict[str, WantedOutput] = field(default_factory=dict)
    ignored: str = ""


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


class Regions(Protocol):
    """Shared memory that clients of this host have registered (Triton's system shared memory)."""

    def register(self, name: str, key: str, offset: int, size: int) -> None:
        """Raises `InvalidArgument`, `NotFound`, `PermissionDenied`, `ResourceExhausted`."""
        ...

    def unregister(self, name: str) -> None:
        """Forget one, or with "" all."""
        ...

    def registered(self, name: str = "") -> dict[str, tuple[str, int, int]]:
        """Key, offset and size by name. Raises `NotFound` for a name that is not registered."""
        ...

    def read(self, region: Region, datatype: str, shape: tuple[int, ...]) -> np.ndarray:
        """A copy of a tensor: the client may write again once it has its answer. Raises
        `InvalidArgument`, `NotFound`."""
        ...

    def write(self, region: Region, array: np.ndarray) -> None:
        """Raises `InvalidArgument` where it does not fit."""
        ...
