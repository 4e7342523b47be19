"""The work inside a run is told within bounds, read from anybody, and drawn as spans."""

from __future__ import annotations

import json

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

from nodes.cli.bars import inside_lines, nodes_of
from swarm.tracing.anatomy import moments
from swarm.tracing.inside import (
    CUT,
    INSIDE,
    MOST_BYTES,
    InnerAsk,
    InnerWork,
    inside_of,
    told_inside,
)
from swarm.tracing.otel import OtlpTrace
from swarm.tracing.traceparent import below, is_sampled, is_valid, make
from swarm.wire.hops import Hop
from swarm.wire.messages import Result

BEGIN = 1_700_000_000_000_000  # µs
SPAN = "00f067aa0ba902b7"


def hop_with(*work: InnerWork) -> Hop:
    told = told_inside(work)
    return Hop(1, "c", 10, 1000, extra={**moments(BEGIN, 0, 0), **told})


LEAF = Hop(1, "n", 10, 50, extra=moments(BEGIN + 150, 0, 0))
WORK = (
    InnerWork("label", 100, 800, reads=("small",), about={"taken": "small"}),
    InnerWork("small", 100, 700, SPAN, about={"rows": 3}, asks=(InnerAsk(110, 600, (LEAF,)),)),
)
TEXTS = st.text(max_size=300)
PIECES = st.builds(
    InnerWork,
    TEXTS,
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 40),
    st.sampled_from(["", SPAN]),
    st.lists(TEXTS, max_size=3).map(tuple),
    st.dictionaries(TEXTS, st.one_of(TEXTS, st.integers(0, 99), st.booleans()), max_size=3),
    st.lists(st.builds(InnerAsk, st.just(0), st.just(1), st.just((LEAF,) * 3)), max_size=9).map(
        tuple
    ),
)


@given(st.lists(PIECES, max_size=90))
def test_what_is_told_is_bounded_and_what_is_missing_is_counted(work: list[InnerWork]) -> None:
    told = told_inside(work)
    assert len(msgpack.packb(told)) <= MOST_BYTES + 100
    assert len(told[INSIDE]) + told.get(CUT, 0) == len(work)


def test_what_is_told_is_read_again_and_is_json() -> None:
    hop = hop_with(*WORK)
    assert [(w.name, w.at, w.length, w.span, w.reads) for w in inside_of(hop)] == [
        (w.name, w.at, w.length, w.span, w.reads) for w in WORK
    ]
    (ask,) = inside_of(hop)[1].asks
    assert [inner.node for inner in ask.hops] == ["n"]
    assert json.loads(json.dumps(hop.as_json()))[INSIDE] == told_inside(WORK)[INSIDE]


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(1 << 63), 1 << 63), st.floats(), TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(["name", "at_us", "us", "span", "reads", "about", "asks", "hops"]),
            inner,
            max_size=6,
        ),
    ),
    max_leaves=30,
)


@given(JSON)
def test_whatever_a_node_tells_of_its_run_is_shown_and_sent(told: object) -> None:
    hop = Hop(1, "c", 10, 1000, extra={INSIDE: told})
    inside_lines(hop, {})
    nodes_of([hop])
    traced, sent = begun()
    traced.end(Result("r", "m", hops=(hop,)))
    assert "infer m" in {span.name for span in sent.get_finished_spans()}


class Ids(RandomIdGenerator):
    given = 0

    def generate_span_id(self) -> int:
        given, self.given = self.given, 0
        return given or super().generate_span_id()


def begun() -> tuple[OtlpTrace, InMemorySpanExporter]:
    sent, ids = InMemorySpanExporter(), Ids()
    provider = TracerProvider(id_generator=ids, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(sent))
    tracer = provider.get_tracer("test")
    return OtlpTrace(tracer, trace, tracer.start_span("infer m"), "", ids), sent


@pytest.mark.parametrize("own", [False, True])
def test_a_piece_of_work_is_a_span_with_the_id_that_it_asked_with(own: bool) -> None:
    label, small = WORK
    small = InnerWork("small", 100, 700, SPAN, asks=small.asks, own=own)
    traced, sent = begun()
    traced.end(Result("r", "m", hops=(hop_with(label, small),)))
    spans = sent.get_finished_spans()
    by_id = {span.context.span_id: span for span in spans}
    part = by_id[int(SPAN, 16)]
    assert part.name == "part small"
    assert part.parent is not None
    assert by_id[part.parent.span_id].name == "stage 1"
    below_it = {span.name for span in spans if span.parent and span.parent.span_id == int(SPAN, 16)}
    assert below_it == (set() if own else {"stage 1"}), "else the node sends them itself"


def test_the_header_below_a_sampled_one_names_a_new_span_of_the_same_trace() -> None:
    header = make()
    lower, span = below(header)
    assert is_valid(lower)
    assert is_sampled(lower)
    assert lower.split("-") == [*header.split("-")[:2], span, "01"]
    for other in ("", make(sampled=False)):
        assert below(other) == (other, "")


def test_the_tree_tells_each_piece_once_below_those_that_read_it() -> None:
    lines = inside_lines(hop_with(*WORK), {"n": "…n", "c": "…c"})
    assert [line.split()[0] for line in lines] == ["inside", "label", "small", "asks"]
    assert "taken: small" in lines[1]
    assert "rows: 3" in lines[2]
    assert "…n" in lines[3]
