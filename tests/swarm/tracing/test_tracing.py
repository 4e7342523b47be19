"""The W3C header: which ones are valid, which ask for a trace. Examples are the standard's own."""

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

from swarm.tracing.anatomy import AT, BATCH_WAIT, LANE, moments, parts_of
from swarm.tracing.otel import LONGEST_TEXT, OtlpTrace
from swarm.tracing.traceparent import checked, is_sampled, is_valid, make
from swarm.wire.hops import Hop
from swarm.wire.messages import Result

VALID = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_the_standards_example_is_read() -> None:
    assert is_valid(VALID)
    assert is_sampled(VALID)
    assert not is_sampled(VALID[:-1] + "0")


@pytest.mark.parametrize(
    "header",
    [
        "",
        "01",
        VALID.upper(),
        "ff" + VALID[2:],
        VALID + "-more",
        VALID.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32),
        VALID.replace("00f067aa0ba902b7", "0" * 16),
        VALID[:-1] + "g",
        "01" + VALID[2:] + "-" + "x" * 200,
    ],
)
def test_a_header_that_names_no_trace_is_ignored(header: str) -> None:
    assert checked(header) == ""


def test_a_later_version_may_have_more_fields() -> None:
    assert is_valid("01" + VALID[2:] + "-future")


@given(st.text(max_size=60))
def test_no_text_breaks_the_question_whether_it_is_sampled(text: str) -> None:
    assert is_sampled(text) in (True, False)
    assert checked(text) in ("", text)


@given(st.booleans())
def test_a_new_header_is_valid_and_says_what_was_asked(sampled: bool) -> None:
    header = make(sampled=sampled)
    assert is_valid(header)
    assert is_sampled(header) == sampled


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


BEGIN = 1_700_000_000_000_000  # µs


def hop(stage: int, at: int, lane: int, queue: int, batch: int, compute: int) -> Hop:
    """at: µs since BEGIN when its run began. queue: without lane and batch."""
    told = moments(BEGIN + at, lane, batch)
    return Hop(stage, f"n{stage}", lane + queue + batch, compute, extra=told)


def test_two_stages_are_laid_out_in_time() -> None:
    hops = [hop(1, 160, 100, 50, 10, 300), hop(2, 600, 20, 30, 0, 100)]
    parts = [(p.kind, p.stage, p.start, p.length) for p in parts_of(0.001, hops)]
    assert parts == [
        ("lane", 1, 0, 100),
        ("queue", 1, 100, 50),
        ("batch wait", 1, 150, 10),
        ("compute", 1, 160, 300),
        ("onward", 1, 460, 90),
        ("lane", 2, 550, 20),
        ("queue", 2, 570, 30),
        ("compute", 2, 600, 100),
        ("outside", 0, 700, 300),
    ]


def test_hops_of_nodes_that_say_no_moments_follow_each_other() -> None:
    hops = [Hop(1, "a", 10, 20), Hop(2, "b", 30, 40)]
    parts = [(p.kind, p.start, p.length) for p in parts_of(0.0002, hops)]
    assert parts == [
        ("queue", 0, 10),
        ("compute", 10, 20),
        ("queue", 30, 30),
        ("compute", 60, 40),
        ("outside", 100, 100),
    ]


def test_the_edges_own_layers_come_before_the_first_stage() -> None:
    parts = parts_of(0.001, [Hop(0, "edge", 0, 200), hop(1, 50, 10, 0, 0, 100)])
    assert [(p.kind, p.stage) for p in parts] == [
        ("compute", 0),
        ("lane", 1),
        ("compute", 1),
        ("outside", 0),
    ]


amount = st.integers(0, 10_000)


@given(
    st.lists(st.tuples(st.integers(-5_000, 50_000), amount, amount, amount, amount), max_size=6),
    st.floats(0, 1),
)
def test_parts_never_overlap_and_fill_the_latency(
    stages: list[tuple[int, int, int, int, int]], latency: float
) -> None:
    hops = [hop(index + 1, *each) for index, each in enumerate(stages)]
    parts = parts_of(latency, hops)
    end = 0
    for part in parts:
        assert part.start == end
        assert part.length > 0
        end += part.length
    assert end >= round(latency * 1e6)
    computed = sum(part.length for part in parts if part.kind == "compute")
    assert computed == sum(each.compute_us for each in hops)
