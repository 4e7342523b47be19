"""Spans of hops that other nodes tell: whatever they tell, the spans can be sent."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from swarm.tracing.anatomy import AT, BATCH_WAIT, LANE
from swarm.tracing.otel import LONGEST_TEXT, OtlpTrace
from swarm.wire.hops import Hop
from swarm.wire.messages import Result

ANY = st.integers(-(1 << 63), (1 << 64) - 1)  # as MessagePack holds them
HOPS = st.builds(
    lambda numbers, at, lane, wait: Hop(
        numbers[0], "n", *numbers[1:], extra={AT: at, LANE: lane, BATCH_WAIT: wait}
    ),
    st.tuples(ANY, ANY, ANY, ANY),
    ANY,
    ANY,
    ANY,
)


def begun() -> tuple[OtlpTrace, InMemorySpanExporter]:
    """A request's trace, and the spans that have ended."""
    sent = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(sent))
    tracer = provider.get_tracer("test")
    return OtlpTrace(tracer, trace, tracer.start_span("infer m"), ""), sent


@given(st.lists(HOPS, min_size=1, max_size=3))
def test_whatever_a_node_tells_of_its_hop_the_spans_of_a_request_can_be_sent(
    hops: list[Hop],
) -> None:
    traced, sent = begun()
    traced.end(Result("r", "m", hops=tuple(hops)))
    spans = sent.get_finished_spans()
    assert "infer m" in [span.name for span in spans]
    assert encode_spans(spans).SerializePartialToString()


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (asyncio.CancelledError(), "CANCELLED", "cancelled by its caller"),
        (ValueError("x" * 5000), "INTERNAL", "ValueError('xxx"),
    ],
)
def test_a_request_that_gets_no_result_is_a_span_that_says_why(
    error: BaseException, status: str, text: str
) -> None:
    traced, sent = begun()
    traced.give_up(error)
    [span] = sent.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes["swarm.status"] == status
    assert span.status.status_code is trace.StatusCode.ERROR
    assert span.status.description is not None
    assert span.status.description.startswith(text)
    assert len(span.status.description) <= LONGEST_TEXT
