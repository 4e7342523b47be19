"""A tracer that notes what it is called for."""

from __future__ import annotations

from swarm.wire.messages import Result


class NotedTrace:
    """ended: the result, or the error that came in its place."""

    def __init__(self, traceparent: str) -> None:
        self.traceparent = traceparent
        self.ended: Result | BaseException | None = None

    def end(self, result: Result) -> None:
        assert self.ended is None
        self.ended = result

    def give_up(self, error: BaseException) -> None:
        assert self.ended is None
        self.ended = error


class NotedTracer:
    """begun: one trace for each request, in their order."""

    def __init__(self) -> None:
        self.begun: list[NotedTrace] = []

    def begin(self, model: str, traceparent: str) -> NotedTrace:
        self.begun.append(NotedTrace(traceparent))
        return self.begun[-1]

    def close(self) -> None:
        """Nothing is sent."""
