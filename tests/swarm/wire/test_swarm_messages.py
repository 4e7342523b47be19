"""Features, results and requests: there and back, and what no sender may do to a node."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from messages_strategies import features, same, tensor_maps

from swarm.errors import DecodeError, Status
from swarm.wire.hops import Hop
from swarm.wire.maps import ZERO_COPY_FROM, pack, unpack_map
from swarm.wire.messages import MAX_HOPS, Features, Request, Result, failure
from swarm.wire.tensors import DTYPES, Claimed, claim_prefix

MIB = 1 << 20
KINDS = (Features, Result, Request)
HOP = {"stage": 1, "node": "n", "queue_us": 5, "compute_us": 7, "batch": 2}


def joined(message: Features | Result | Request) -> bytes:
    return b"".join(message.parts())


def changed(message: Features | Result | Request, **changes: Any) -> bytes:
    doc = unpack_map(joined(message), 64 * MIB) | changes
    return pack({k: v for k, v in doc.items() if v is not ...})


def test_features_come_back_with_every_field() -> None:
    sent = features(
        attempt=3,
        agent="cam-1",
        sequence=9,
        session="s",
        traceparent="00-ab-cd-01",
        hops=[HOP],
    )
    back = Features.decode(joined(sent))
    tensors, back.tensors = back.tensors, sent.tensors
    assert back == sent
    assert same(tensors["x"], sent.tensors["x"])
    assert back.message_id == "01J/2/3"


@settings(deadline=None)
@given(tensor_maps, st.booleans())
def test_any_tensors_come_back_in_each_kind_of_message(
    tensors: dict[str, np.ndarray], large: bool
) -> None:
    if large:
        tensors = tensors | {"_large": np.ones(ZERO_COPY_FROM, np.uint8)}
    back = (
        Features.decode(joined(features(tensors=tensors))).tensors,
        Result.decode(joined(Result("id", outputs=tensors))).outputs,
        Request.decode(joined(Request(tensors))).inputs,
    )
    for got in back:
        assert list(got) == list(tensors)
        assert all(same(got[name], tensors[name]) for name in tensors)


def test_a_result_comes_back_with_its_hops_and_flags() -> None:
    sent = Result("id", "m", "1", degraded=True, attempt=2, hops=(Hop(1, "n", 5, 7, 2),))
    assert Result.decode(joined(sent)) == sent
    assert sent.compute == pytest.approx(7e-6)


def test_a_failure_says_where_and_why_and_keeps_the_hops() -> None:
    parts = failure(features(hops=[HOP]), Status.DEADLINE_EXCEEDED, "too late", 2, "shard-2-x")
    result = Result.decode(b"".join(parts))
    assert (result.status, result.message) == (Status.DEADLINE_EXCEEDED, "too late")
    assert (result.stage, result.node, result.id) == (2, "shard-2-x", "01J")
    assert result.hops == (Hop(1, "n", 5, 7, 2),)
    assert result.outputs == {}


def test_a_request_comes_back_with_its_budget_and_its_inputs_under_either_name() -> None:
    sent = Request({"x": np.zeros(2)}, "id", "3", 0.25, "s", "a")
    data = joined(sent)
    for form in (data, data.replace(b"\xa7tensors", b"\xa6inputs")):
        back = Request.decode(form)
        assert (back.id, back.version, back.budget, back.session, back.agent) == (
            "id",
            "3",
            0.25,
            "s",
            "a",
        )
        assert same(back.inputs["x"], sent.inputs["x"])


@pytest.mark.parametrize("kind", KINDS)
def test_large_tensors_are_views_of_the_message(kind: Any) -> None:
    array = np.arange(MIB, dtype=np.uint8)
    message = {
        Features: features(tensors={"x": array}),
        Result: Result("id", outputs={"x": array}),
        Request: Request({"x": array}),
    }[kind]
    data = joined(message)
    back = kind.decode(data)
    got = getattr(back, {Features: "tensors", Result: "outputs", Request: "inputs"}[kind])["x"]
    assert np.shares_memory(got, np.frombuffer(data, np.uint8))
    assert same(got, array)


def test_features_may_carry_claims_on_shared_memory_and_simple_requests_may_not() -> None:
    shape = (2,)
    claims = b"\x81" + claim_prefix("x", DTYPES["FP32"], shape) + b"\xc4\x05claim"
    data = b"".join(features().parts(claims))
    assert Features.decode(data).tensors == {"x": Claimed(DTYPES["FP32"], shape, 8, b"claim")}
    with pytest.raises(DecodeError, match="one host only"):
        Request.decode(b"\x82\xa1v\x01\xa7tensors" + claims)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", [0, 2, -1, "1", None, ..., 1.5, [1] * 50, "x" * 50_000])
def test_another_major_version_is_refused_clearly(kind: Any, version: Any) -> None:
    with pytest.raises(DecodeError, match="this node speaks version 1") as refusal:
        kind.decode(changed(features(), v=version))
    assert len(str(refusal.value)) < 300


@settings(deadline=None)
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8).map("new_".__add__), st.integers() | st.text(), max_size=4
    )
)
def test_fields_of_a_later_minor_version_are_ignored(extra: dict[str, Any]) -> None:
    extra = {k: v for k, v in extra.items() if not isinstance(v, int) or abs(v) < 2**63}
    assert Features.decode(changed(features(), **extra)).id == "01J"
    assert Result.decode(changed(Result("id"), **extra)).id == "id"
    assert Request.decode(changed(Request({}), **extra)).inputs == {}
    hop = HOP | extra
    passed_on = Features.decode(changed(features(), hops=[hop]))
    assert passed_on.hops == [hop]
    answered = Result.decode(b"".join(failure(passed_on, Status.INTERNAL, "no", 2, "n")))
    assert [hop.as_doc() for hop in answered.hops] == [hop]


WRONG: list[Any] = [None, True, 7, 1.5, "text", b"bytes", [], [1], {}, {"a": 1}]
TYPES = {
    "id": str,
    "model": str,
    "version": str,
    "stage": int,
    "reply": str,
    "budget_us": int,
    "attempt": int,
    "agent": str,
    "sequence": int,
    "session": str,
    "traceparent": str,
    "hops": list,
    "tensors": dict,
}


@pytest.mark.parametrize("field", sorted(TYPES))
def test_a_field_of_another_type_is_refused_by_name(field: str) -> None:
    for value in WRONG:
        if type(value) is TYPES[field] and value not in ([1], {"a": 1}):
            continue
        with pytest.raises(DecodeError, match=r"field|hop|tensor"):
            Features.decode(changed(features(), **{field: value}))


@pytest.mark.parametrize(
    "reply",
    [
        *("", " ", "a b", "a\r\nPUB swarm.default.events.died 2\r\n{}", "a\n", "a\tb", "é"),
        *("x" * 513, "_INBOX.*", "_INBOX.>", "swarm.m.status.a", "swarm.other.x", "swarm.>"),
        *("$JS.ACK.a", "$JS.API.STREAM.PURGE.x", "$KV.x.y", "$SYS.x", "$SRV.PING", "$"),
    ],
)
def test_no_sender_can_smuggle_a_command_into_the_answers_subject(reply: str) -> None:
    with pytest.raises(DecodeError, match="reply"):
        Features.decode(changed(features(), reply=reply))


@pytest.mark.parametrize("field", ["id", "model", "version"])
@pytest.mark.parametrize("value", ["", "a b", "a\r\nNats-Rollup: all", "x" * 129, "\0"])
def test_no_sender_can_smuggle_a_header_into_the_message_id(field: str, value: str) -> None:
    with pytest.raises(DecodeError, match=field):
        Features.decode(changed(features(), **{field: value}))


BAD_HOPS: list[Any] = [
    None,
    [],
    "hop",
    {},
    HOP | {"stage": float("inf")},
    HOP | {"queue_us": "5"},
    HOP | {"compute_us": None},
    HOP | {"node": 7},
    HOP | {"batch": [1]},
    {k: v for k, v in HOP.items() if k != "queue_us"},
]


@pytest.mark.parametrize("hop", BAD_HOPS, ids=repr)
def test_what_is_no_hop_is_refused_in_features_and_in_results(hop: Any) -> None:
    with pytest.raises(DecodeError):
        Features.decode(changed(features(), hops=[HOP, hop]))
    with pytest.raises(DecodeError):
        Result.decode(changed(Result("id"), hops=[HOP, hop]))


def test_the_number_of_hops_is_bounded() -> None:
    assert len(Features.decode(changed(features(), hops=[HOP] * MAX_HOPS)).hops) == MAX_HOPS
    with pytest.raises(DecodeError, match="hops"):
        Features.decode(changed(features(), hops=[HOP] * (MAX_HOPS + 1)))


@pytest.mark.parametrize("status", ["", "ok", "GREAT", "x" * 50_000])
def test_a_status_that_is_no_status_is_refused(status: str) -> None:
    with pytest.raises(DecodeError, match="gRPC status") as refusal:
        Result.decode(changed(Result("id"), status=status))
    assert len(str(refusal.value)) < 300
