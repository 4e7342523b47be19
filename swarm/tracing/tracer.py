"""What the mesh calls for each request that somebody may want to see; imports no library."""

from __future__ import annotations

from typing import Protocol

from swarm.wire.messages import Result


class Trace(Protocol):
    """One request. traceparent: travels with it; "" where it is not traced."""

    traceparent: str

    def end(self, result: Result) -> None:
        """The request has its result. Never raises, never waits."""
        ...

    def give_up(self, error: BaseException) -> None:
        """The request gets no result: its caller has cancelled it (`asyncio.CancelledError`), or
        `error` is a fault on the way. Called instead of `end`. Never raises, never waits."""
        ...


class Tracer(Protocol):
    """Makes a `Trace` of each request."""

    def begin(self, model: str, traceparent: str) -> Trace:
        """traceparent: the caller's valid header, "" for none. Never raises, never waits."""
        ...

    def close(self) -> None:
        """Send what was not sent yet, within a few seconds. Blocking."""
        ...
