"""Traces by OpenTelemetry, sent to a collector by OTLP over HTTP (extra `otel`).

One span for a request, below it one for each hop, and below that one for each part of the hop (see
`swarm.tracing.anatomy`), and for each piece of work inside its run (`swarm.tracing.inside`). The
gaps and lengths of hops are those of the mesh's common clock; they are placed in the requester's
time, in the middle of what nobody knows the division of (`outside`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from swarm.errors import InvalidArgument, Status
from swarm.tracing.anatomy import TimePart, parts_of
from swarm.tracing.inside import InnerWork, inside_of
from swarm.tracing.traceparent import is_sampled
from swarm.wire.hops import Hop
from swarm.wire.messages import Result

INSTALL = "pip install 'swarm-mesh[otel]'"
EXPORT_TIMEOUT = 5.0  # seconds for one attempt to reach the collector
LONGEST_TEXT = 500  # characters of a span's status
# gRPC's name for how such a request ends. No result has it: nobody is there to get one.
CANCELLED = "CANCELLED"
DEEPEST = 4  # runs inside runs that get spans
MOST_WAITING = 2048  # spans that wait to be sent; more are dropped, and counted by the SDK's log


class OtlpTracer:
    """A `Tracer`.

    endpoint: URL of a collector, e.g. `http://127.0.0.1:4318`. share: of the requests whose caller
    has not decided that are traced, 0 to 1. service: the name that the traces show. resource: more
    attributes of who sends. Raises `InvalidArgument` where OpenTelemetry is not installed, or the
    URL is none.
    """

    def __init__(
        self, endpoint: str, share: float, service: str, resource: dict[str, str] | None = None
    ) -> None:
        if not endpoint.startswith(("http://", "https://")):
            raise InvalidArgument(f"{endpoint!r} is no URL of a collector: http://HOST:4318")
        if not 0.0 <= share <= 1.0:
            raise InvalidArgument(f"a share of {share} of the requests: it is 0 to 1")
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
            from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
            from opentelemetry.trace.propagation.tracecontext import (
                TraceContextTextMapPropagator,
            )
        except ImportError as error:
            raise InvalidArgument(f"traces need OpenTelemetry ({error}): {INSTALL}") from None

        class Ids(RandomIdGenerator):
            """Spans get the id that a node has asked others with, if there is one."""

            given = 0

            def generate_span_id(self) -> int:
                given, self.given = self.given, 0
                return given or super().generate_span_id()

        self._ids = Ids()
        self._api = trace
        self._read = TraceContextTextMapPropagator().extract
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": service, **(resource or {})}),
            sampler=ParentBased(TraceIdRatioBased(share)),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        url = endpoint.rstrip("/")
        url = url if url.endswith("/v1/traces") else f"{url}/v1/traces"
        exporter = OTLPSpanExporter(endpoint=url, timeout=EXPORT_TIMEOUT)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, MOST_WAITING))
        self._tracer = self._provider.get_tracer("swarm")

    def begin(self, model: str, traceparent: str) -> OtlpTrace:
        """See `Tracer`."""
        caller = self._read({"traceparent": traceparent}) if traceparent else None
        span = self._tracer.start_span(
            f"infer {model.partition('@')[0]}", caller, kind=self._api.SpanKind.CLIENT
        )
        return OtlpTrace(self._tracer, self._api, span, traceparent, self._ids)

    def close(self) -> None:
        """See `Tracer`."""
        self._provider.shutdown()


class OtlpTrace:
    """A `Trace`: one request's span, which gets its children when the result is there."""

    def __init__(self, tracer: Any, api: Any, span: Any, caller: str, ids: Any = None) -> None:
        self._tracer, self._api, self._span, self._ids = tracer, api, span, ids
        # A length is of one clock that nobody sets; the wall clock says only when it began.
        self._began, self._from = time.time_ns(), time.monotonic_ns()
        about = span.get_span_context()
        sampled = bool(about.trace_flags & 1)
        self.traceparent = ""
        if sampled or caller:
            flags = "01" if sampled else "00"
            self.traceparent = f"00-{about.trace_id:032x}-{about.span_id:016x}-{flags}"

    def end(self, result: Result) -> None:
        """See `Trace`."""
        if not is_sampled(self.traceparent):
            self._span.end()
            return
        span = self._span
        span.set_attributes(
            {
                "swarm.request_id": result.id,
                "swarm.model": result.model,
                "swarm.version": result.version,
                "swarm.status": str(result.status),
                "swarm.attempt": _fitting(result.attempt),
                "swarm.degraded": result.degraded,
            }
        )
        if result.status is not Status.OK:
            span.set_status(self._api.StatusCode.ERROR, result.message[:LONGEST_TEXT])
        took = time.monotonic_ns() - self._from
        ended = self._began + took
        self._hops(result.hops, self._began, took // 1000, span)
        span.end(ended)

    def _hops(
        self, hops: Sequence[Hop], began: int, length: int, parent: Any, depth: int = 0
    ) -> None:
        """Spans of a request's hops. began: ns since 1970. length: µs."""
        parts = parts_of(length / 1e6, hops)
        outside = sum(part.length for part in parts if part.kind == "outside")
        first = began + outside * 500  # half of it, in ns
        for hop in hops:
            own = [p for p in parts if p.stage == hop.stage and p.node == hop.node]
            self._hop(hop, own, first, parent, depth)

    def give_up(self, error: BaseException) -> None:
        """See `Trace`."""
        is_cancelled = isinstance(error, asyncio.CancelledError)
        status = CANCELLED if is_cancelled else str(Status.INTERNAL)
        text = "cancelled by its caller" if is_cancelled else repr(error)
        self._span.set_attribute("swarm.status", status)
        self._span.set_status(self._api.StatusCode.ERROR, text[:LONGEST_TEXT])
        self._span.end()

    def _hop(
        self, hop: Hop, parts: Sequence[TimePart], first: int, parent: Any, depth: int
    ) -> None:
        if not parts:
            return
        inside = self._api.set_span_in_context(parent)
        span = self._tracer.start_span(
            f"stage {hop.stage}",
            inside,
            kind=self._api.SpanKind.CONSUMER,
            start_time=first + parts[0].start * 1000,
            attributes={
                "swarm.stage": _fitting(hop.stage),
                "swarm.node": hop.node,
                "swarm.batch": _fitting(hop.batch),
                "swarm.weights": _fitting(hop.weights),
                "swarm.queue_us": _fitting(hop.queue_us),
                "swarm.compute_us": _fitting(hop.compute_us),
            },
        )
        below = self._api.set_span_in_context(span)
        for part in parts:
            start = first + part.start * 1000
            child = self._tracer.start_span(part.kind, below, start_time=start)
            child.end(start + part.length * 1000)
            if part.kind == "compute" and depth < DEEPEST:
                for work in inside_of(hop):
                    self._inside(work, start, below, depth)
        last = parts[-1]
        span.end(first + (last.start + last.length) * 1000)

    def _inside(self, work: InnerWork, first: int, around: Any, depth: int) -> None:
        """A piece of work inside a hop's run, which begins at `first`."""
        if self._ids is not None and work.span:
            self._ids.given = int(work.span, 16)
        start = first + work.at * 1000
        span = self._tracer.start_span(
            f"part {work.name}",
            around,
            start_time=start,
            attributes={
                f"swarm.part.{key}": _fitting(value) if type(value) is int else value
                for key, value in work.about.items()
            },
        )
        for ask in () if work.own else work.asks:
            self._hops(ask.hops, first + ask.at * 1000, ask.length, span, depth + 1)
        span.end(start + work.length * 1000)


def _fitting(told: int) -> int:
    """A number of another node, in 64 bits: another one would lose all spans beside it."""
    return max(-(1 << 63), min(told, (1 << 63) - 1))
