"""The compact form of messages between processes of one host: it says what MessagePack says."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from messages_strategies import features, same, tensor_maps

from swarm.errors import DecodeError, InvalidArgument, Status
from swarm.samehost.compact import answer_parts, decode_features, decode_result, features_parts
from swarm.samehost.lending import NO_LOAN, Loan
from swarm.samehost.memory import Claim
from swarm.wire.hops import Hop, pack_hop, unpack_hops
from swarm.wire.messages import Features, Result, result_parts
from swarm.wire.tensors import LIMITS, Claimed

HOP = {"stage": 1, "node": "shard-1-host-ab", "queue_us": 5, "compute_us": 7, "batch": 2}
CLAIM = Claim("0123456789abcdef", "swarm-m-1-0123456789abcdef", 4096, 24, 2, 9, 3)
OWNER = "_INBOX.owner.claims.x"


def packed(sent: Features, lent: Loan = NO_LOAN) -> bytes:
    data = b"".join(features_parts(sent, lent))
    assert data[0] == 0xC1
    return data


def answered(result: Result, sent: Features | None = None, lent: Loan = NO_LOAN) -> bytes:
    data = b"".join(answer_parts(result, sent or features(), lent))
    assert data[0] == 0xC1
    return data


def equal(one: Features, other: Features) -> bool:
    assert list(one.tensors) == list(other.tensors)
    assert all(same(one.tensors[name], other.tensors[name]) for name in one.tensors)
    return (one.all_hops, replace(one, tensors={}, hops=[], packed_hops=b"")) == (
        other.all_hops,
        replace(other, tensors={}, hops=[], packed_hops=b""),
    )


words = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)
numbers = st.integers(0, 1 << 31)
hops = st.builds(
    lambda *values: Hop(*values).as_doc(),
    st.integers(1, 60_000),
    words,
    numbers,
    numbers,
    st.integers(1, 999),
)


@settings(deadline=None)
@given(tensor_maps, st.lists(hops, max_size=4), words, words, st.integers(-5, 1 << 40), numbers)
def test_whatever_features_say_their_compact_form_says_as_messagepack_does(
    tensors: dict[str, np.ndarray],
    before: list[dict[str, Any]],
    name: str,
    agent: str,
    budget: int,
    sequence: int,
) -> None:
    sent = features(
        id=name,
        tensors=tensors,
        hops=before,
        agent=agent,
        budget_us=budget,
        sequence=sequence,
        attempt=3,
        session="s",
        host="h",
        traceparent="00-ab-cd-01",
    )
    assert equal(decode_features(packed(sent)), Features.decode(b"".join(sent.parts())))


@settings(deadline=None)
@given(tensor_maps, st.lists(hops, max_size=4), words)
def test_whatever_a_result_says_its_compact_form_says_as_messagepack_does(
    outputs: dict[str, np.ndarray], before: list[dict[str, Any]], name: str
) -> None:
    sent = Result(name, "m", "1", outputs=outputs, attempt=2)
    back = decode_result(answered(sent, features(hops=before)))
    other = Result.decode(b"".join(result_parts(sent, before)))
    assert list(back.outputs) == list(other.outputs)
    assert all(same(back.outputs[key], other.outputs[key]) for key in outputs)
    assert replace(back, outputs={}) == replace(other, outputs={})


def test_hops_of_all_stages_arrive_over_compact_legs_and_others() -> None:
    sent = features(hops=[HOP])
    for stage in (2, 3):
        sent = decode_features(packed(sent))
        sent.hops.append(HOP | {"stage": stage})
    stages = [1, 2, 3]
    assert [hop["stage"] for hop in sent.all_hops] == stages
    by_lane = Features.decode(b"".join(sent.parts()))
    assert [hop["stage"] for hop in by_lane.hops] == stages
    assert [hop.stage for hop in decode_result(answered(Result("01J"), sent)).hops] == stages


def test_arrays_are_aligned_as_some_processors_want_them() -> None:
    tensors = {"odd": np.ones(3, np.int8), "x": np.ones(5, np.float64)}
    assert decode_features(packed(features(tensors=tensors))).tensors["x"].flags.aligned


def test_claims_travel_beside_small_tensors() -> None:
    large, small = np.zeros(6, np.float32), np.ones(2, np.int64)
    lent = Loan({"large": large, "small": small}, None, {"large": CLAIM}, OWNER)
    sent = features(tensors={"large": large, "small": small})
    for back in (
        decode_features(packed(sent, lent)),
        Features.decode(b"".join(sent.parts(lent.packed))),
    ):
        got = back.tensors["large"]
        assert isinstance(got, Claimed)
        assert (got.dtype, got.shape, got.nbytes) == (large.dtype, (6,), 24)
        assert Claim.from_wire(got.claim["claim"]) == CLAIM
        assert got.claim["owner"] == OWNER
        assert same(back.tensors["small"], small)
    outputs = Result("01J", "m", "1", outputs={"large": large})
    got = decode_result(answered(outputs, lent=lent)).outputs["large"]
    assert Claim.from_wire(got.claim["claim"]) == CLAIM


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "ü"},
        {"traceparent": "ü"},
        {"sequence": 1 << 63},
        {"attempt": 1 << 16},
        {"reply": "r" * 70_000},
        {"hops": [HOP | {"node": "maß"}]},
        {"hops": [HOP | {"node": "n" * 256}]},
        {"hops": [HOP | {"stage": 1 << 16}]},
        {"hops": [HOP | {"queue_us": -1}]},
        {"session": "s" * 70_000},
    ],
)
def test_what_does_not_fit_goes_as_messagepack(changes: dict[str, Any]) -> None:
    sent = features(**changes)
    assert b"".join(features_parts(sent, NO_LOAN)) == b"".join(sent.parts())


def test_a_result_that_does_not_fit_goes_as_messagepack() -> None:
    sent, before = Result("ü" * 9, "m", "1"), features(hops=[HOP])
    data = b"".join(answer_parts(sent, before, NO_LOAN))
    assert data == b"".join(result_parts(sent, [HOP]))
    assert decode_result(data).id == sent.id


def test_an_hour_in_a_queue_is_no_more_than_an_hour() -> None:
    [hop] = unpack_hops(pack_hop(HOP | {"queue_us": 1 << 40}))
    assert hop.queue_us == (1 << 32) - 1


def test_a_dtype_that_has_no_datatype_is_the_senders_mistake() -> None:
    with pytest.raises(InvalidArgument, match="complex64"):
        features_parts(features(tensors={"x": np.zeros(2, np.complex64)}), NO_LOAN)


def test_other_values_in_the_same_places_are_other_messages() -> None:
    first, second = features(), features(id="other", tensors={"x": np.ones((2, 3), np.float32)})
    assert equal(decode_features(packed(first)), first)
    assert equal(decode_features(packed(second)), second)
    third = features(tensors={"x": np.ones((3, 2), np.float32)}, model="n")
    assert equal(decode_features(packed(third)), third)


# --- bad input --------------------------------------------------------------------


@pytest.mark.parametrize("decode", [decode_features, decode_result])
def test_bytes_that_end_too_soon_are_refused(decode: Any) -> None:
    whole = packed(features()) if decode is decode_features else answered(Result("i", "m", "1"))
    for end in range(1, len(whole)):
        with pytest.raises(DecodeError):
            decode(whole[:end])


@pytest.mark.parametrize("decode", [decode_features, decode_result])
def test_bytes_behind_the_end_are_refused(decode: Any) -> None:
    whole = packed(features()) if decode is decode_features else answered(Result("i", "m", "1"))
    with pytest.raises(DecodeError, match="1 bytes behind"):
        decode(whole + b"x")


def test_features_are_no_result_and_a_result_is_none() -> None:
    with pytest.raises(DecodeError):
        decode_result(packed(features()))
    with pytest.raises(DecodeError):
        decode_features(answered(Result("i", "m", "1")))


@pytest.mark.parametrize("reply", ["_INBOX.a b", "_INBOX.a\r\nPUB x 0", "_INBOX.\t", "", "x" * 513])
def test_a_reply_subject_that_is_a_command_is_refused(reply: str) -> None:
    with pytest.raises(DecodeError):
        decode_features(packed(features(reply=reply)))


@pytest.mark.parametrize("field", ["model", "version"])
@pytest.mark.parametrize("value", ["", "a b", "x" * 129, "a\nb"])
def test_a_name_that_stands_in_no_subject_is_refused(field: str, value: str) -> None:
    with pytest.raises(DecodeError):
        decode_features(packed(features(**{field: value})))


def test_shapes_beyond_the_limits_are_refused() -> None:
    many = {f"x{i}": np.zeros(1, np.int8) for i in range(LIMITS.tensors + 1)}
    for tensors in (many, {"x": np.zeros((1,) * (LIMITS.rank + 1), np.int8)}):
        with pytest.raises(DecodeError):
            decode_features(packed(features(tensors=tensors)))


def test_a_shape_that_no_array_may_have_is_refused() -> None:
    whole = packed(features(tensors={"x": np.zeros((0, 7), np.int8)}))
    # 7 as a MessagePack integer of one byte becomes one of five: as large as dimensions may be.
    at = whole.index(b"\x92\x00\x07")
    shape = b"\x95\x00" + 4 * b"\xce\x7f\xff\xff\xff"
    longer = whole[:at] + shape + whole[at + 3 :]
    sizes = struct.unpack_from("<5H", whole, 4)
    grown = struct.pack("<5H", *sizes[:3], sizes[3] + len(shape) - 3, sizes[4])
    with pytest.raises(DecodeError, match="malformed"):
        decode_features(longer[:4] + grown + longer[14:])


def test_packed_hops_that_are_none_are_refused() -> None:
    whole = pack_hop(HOP)
    for end in range(1, len(whole)):
        with pytest.raises(DecodeError):
            unpack_hops(whole[:end])
    with pytest.raises(DecodeError):
        unpack_hops(whole[:-1] + b"\xff")
    assert unpack_hops(whole + whole) == [Hop.from_doc(HOP)] * 2


def test_a_failure_is_messagepack_and_tells_the_hops_before_it() -> None:
    result = Result(
        "01J", "m", "1", status=Status.INTERNAL, message="broken", hops=(Hop.from_doc(HOP),)
    )
    assert decode_result(b"".join(result.parts())).hops == result.hops


@given(st.integers(0, 2**53))
def test_the_least_weight_version_travels_in_both_forms(weights: int) -> None:
    sent = replace(features(), weights=weights)
    assert decode_features(packed(sent)).weights == weights
    assert Features.decode(b"".join(sent.parts())).weights == weights


def test_a_message_that_asks_for_no_weights_is_as_it_was() -> None:
    assert b"weights" not in b"".join(features().parts())
    assert len(packed(replace(features(), weights=1))) == len(packed(features())) + 1
