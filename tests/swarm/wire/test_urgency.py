"""The priority of a request, as clients say it and as it travels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import DecodeError, InvalidArgument
from swarm.samehost.compact import decode_features, features_parts
from swarm.samehost.lending import NO_LOAN
from swarm.wire import oip
from swarm.wire.messages import Features, Request
from swarm.wire.urgency import HIGH, LOW, NAME_OF, NORMAL, checked_priority, urgency_of

FEATURES = Features("id", "m", "1", 1, "_INBOX.r.1", 10, {"x": np.zeros((1, 4), np.float32)})


@pytest.mark.parametrize(
    ("said", "name", "urgency"),
    [
        ("", "", NORMAL),
        ("low", "low", LOW),
        ("normal", "normal", NORMAL),
        ("HIGH", "high", HIGH),
        (0, "", NORMAL),
        (1, "high", HIGH),
        ("1", "high", HIGH),
        (2, "normal", NORMAL),
        (3, "low", LOW),
        (4, "", NORMAL),  # as Triton does: a level that is none is the model's default
        (2**63, "", NORMAL),
    ],
)
def test_a_priority_is_a_name_or_the_number_of_triton(said: Any, name: str, urgency: int) -> None:
    assert (checked_priority(said), urgency_of(checked_priority(said))) == (name, urgency)


@pytest.mark.parametrize(
    "said", ["urgent", "-1", -1, 1.0, 0.5, True, None, [], {}, b"high", "high\n", "1" * 30, "²"]
)
def test_whatever_else_is_refused_with_the_words_that_there_are(said: Any) -> None:
    with pytest.raises(InvalidArgument, match="it is low, normal or high"):
        checked_priority(said)
    packed = msgpack.packb({"v": 1, "priority": said, "tensors": {}})
    with pytest.raises(DecodeError, match="it is low, normal or high"):
        Request.decode(packed)


@given(st.one_of(st.text(), st.integers(), st.floats(), st.binary(), st.booleans()))
def test_no_value_does_anything_but_name_a_priority_or_be_refused(said: Any) -> None:
    text = ""
    try:
        text = checked_priority(said)
    except InvalidArgument as error:
        text = str(error)
    assert text in ("", "low", "normal", "high") or "it is low" in text
    assert len(text) < 300


@pytest.mark.parametrize("name", ["low", "normal", "high"])
def test_a_request_carries_it_in_both_forms(name: str) -> None:
    sent = Request({"x": np.zeros((1, 4), np.float32)}, priority=name)
    assert Request.decode(b"".join(sent.parts())).priority == name
    text = b'{"inputs": [], "parameters": {"priority": "%b"}}' % name.encode()
    read = oip.decode_request(text)
    assert (read.priority, read.ignored) == (name, "")
    with pytest.raises(DecodeError, match="low, normal or high"):
        oip.decode_request(b'{"inputs": [], "parameters": {"priority": "soon"}}')


@pytest.mark.parametrize("urgency", [LOW, HIGH])
def test_features_carry_it_in_both_forms(urgency: int) -> None:
    sent = replace(FEATURES, urgency=urgency)
    assert Features.decode(b"".join(sent.parts())).urgency == urgency
    assert decode_features(b"".join(features_parts(sent, NO_LOAN))).urgency == urgency


@pytest.mark.parametrize("more", [{}, {"weights": 4}, {"accepts": "f16", "answer_rate": 7}])
def test_features_of_a_normal_request_are_as_they_were(more: dict[str, Any]) -> None:
    """An older node reads them, and so it does those of other priorities, as normal ones."""
    normal, high = replace(FEATURES, **more), replace(FEATURES, urgency=HIGH, **more)
    assert b"urgency" not in b"".join(normal.parts())
    assert b"priority" not in b"".join(Request({}, priority="").parts())
    before = len(b"".join(features_parts(normal, NO_LOAN)))
    assert len(b"".join(features_parts(high, NO_LOAN))) > before
    for form in (high.parts(), features_parts(high, NO_LOAN)):
        read = decode_features(b"".join(form))
        assert (read.weights, read.accepts, read.answer_rate) == (
            normal.weights,
            normal.accepts,
            normal.answer_rate,
        )


@pytest.mark.parametrize("value", [2, -2, "high", None, 1.0, True, 10**30])
def test_an_urgency_that_a_later_version_may_know_counts_as_normal(value: Any) -> None:
    document = FEATURES.header() | {"urgency": value, "tensors": {}}
    if value == 10**30:
        document["urgency"] = 2**63
    assert Features.decode(msgpack.packb(document)).urgency == NORMAL


def test_each_urgency_has_a_name() -> None:
    assert [NAME_OF[each] for each in (LOW, NORMAL, HIGH)] == ["low", "normal", "high"]
