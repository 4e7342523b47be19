"""The W3C header: which ones are valid, which ask for a trace. Examples are the standard's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.tracing.traceparent import checked, is_sampled, is_valid, make, span_id, trace_id

VALID = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_the_standards_example_is_read() -> None:
    assert is_valid(VALID)
    assert is_sampled(VALID)
    assert not is_sampled(VALID[:-1] + "0")
    assert trace_id(VALID) == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert span_id(VALID) == "00f067aa0ba902b7"


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
    assert trace_id(make(trace_id(header))) == trace_id(header)
    assert span_id(make(trace_id(header))) != span_id(header)
