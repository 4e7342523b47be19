"""Open Inference Protocol JSON: what a client without MessagePack may send, and get."""

from __future__ import annotations

import json
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from messages_strategies import arrays, same

from swarm.errors import DecodeError, Status
from swarm.wire import oip
from swarm.wire.hops import Hop
from swarm.wire.maps import pack
from swarm.wire.messages import Result
from swarm.wire.tensors import DTYPES, MessageLimits, datatype_of

HUGE = 1 << 31


def request(entry: Any = None, **doc: Any) -> bytes:
    entry = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2]} | (entry or {})
    return json.dumps({"inputs": [entry]} | doc).encode()


def decoded(entry: Any = None, **doc: Any) -> Any:
    return oip.decode_request(request(entry, **doc))


def test_a_request_with_all_its_parameters_is_understood() -> None:
    parameters = {"budget_ms": 50, "session": "s", "agent": "a", "version": "3"}
    got = decoded(id="r1", parameters=parameters)
    assert (got.id, got.version, got.budget) == ("r1", "3", pytest.approx(0.05))
    assert (got.session, got.agent) == ("s", "a")
    assert same(got.inputs["x"], np.array([1, 2], np.float32))
    assert decoded().budget is None


def finite(array: np.ndarray) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


@settings(deadline=None)
@given(arrays().filter(finite), st.booleans())
def test_values_survive_the_way_through_json_flat_or_nested(array: np.ndarray, flat: bool) -> None:
    entry = {
        "shape": list(array.shape),
        "datatype": datatype_of(array),
        "data": array.reshape(-1).tolist() if flat else array.tolist(),
    }
    assert same(decoded(entry).inputs["x"], array)
    answer = json.loads(oip.encode_result(Result("id", "m", "1", outputs={"x": array})))
    output = answer["outputs"][0]
    assert same(decoded(output).inputs["x"], array)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_floats_and_nothing_else(value: float) -> None:
    for datatype, dtype in DTYPES.items():
        entry = {"shape": [1], "datatype": datatype, "data": [value]}
        if dtype.kind == "f":
            assert same(decoded(entry).inputs["x"], np.array([value], dtype))
        else:
            with pytest.raises(DecodeError, match=datatype):
                decoded(entry)


@pytest.mark.parametrize(
    ("datatype", "values"),
    [
        ("UINT8", [256]),
        ("UINT8", [-1]),
        ("INT8", [128]),
        ("INT32", [2**31]),
        ("INT64", [2**63]),
        ("UINT64", [2**64]),
        ("INT32", [1.5]),
        ("BOOL", [2]),
        ("BOOL", ["yes"]),
        ("BOOL", [{}]),
        ("FP16", [1e5]),
        ("FP32", [1e39]),
        ("FP64", [10**400]),
        ("FP32", ["1.5"]),
        ("FP32", [None]),
        ("FP32", [[1], 2]),
        ("FP32", [{}]),
        ("FP32", ["x" * 100_000]),
    ],
)
def test_a_value_that_would_change_is_refused_in_a_short_text(
    datatype: str, values: list[Any]
) -> None:
    with pytest.raises(DecodeError, match=f"data is no {datatype}") as refusal:
        decoded({"shape": [len(values)], "datatype": datatype, "data": values})
    assert len(str(refusal.value)) < 400


def test_whole_numbers_are_integers_however_they_are_written() -> None:
    got = decoded({"datatype": "UINT64", "data": [2**64 - 1, 1]}).inputs["x"]
    assert got.tolist() == [2**64 - 1, 1]
    assert decoded({"datatype": "INT32", "data": [3.0, -4.0]}).inputs["x"].tolist() == [3, -4]
    assert decoded({"datatype": "BOOL", "data": [True, 0]}).inputs["x"].tolist() == [True, False]


@pytest.mark.parametrize(
    "shape",
    [
        None,
        "2",
        2,
        {},
        [3],
        [],
        [2, 2],
        [-2],
        [2.0],
        [True, 2],
        [[2]],
        [None],
        [HUGE + 1],
        [1] * 17,
        [HUGE] * 16,
        [0, HUGE, HUGE, HUGE],
        ["x" * 100_000],
    ],
    ids=lambda shape: repr(shape)[:30],
)
def test_a_shape_that_is_none_or_does_not_fit_is_refused(shape: Any) -> None:
    for data in ([1, 2], []):
        with pytest.raises(DecodeError, match="input 'x'") as refusal:
            decoded({"shape": shape, "data": data if shape != [] else [1, 2]})
        assert len(str(refusal.value)) < 600


@pytest.mark.parametrize(
    "entry",
    [
        {"name": None},
        {"name": ""},
        {"name": 7},
        {"name": "n" * 513},
        {"datatype": "FP8"},
        {"datatype": None},
        {"datatype": [1]},
        {"data": None},
        {"data": 1},
        {"data": "AAAA"},
    ],
    ids=lambda entry: repr(entry)[:30],
)
def test_an_input_that_is_incomplete_is_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(DecodeError):
        decoded(entry)


@pytest.mark.parametrize(
    "budget",
    ["50", True, [50], {}, math.nan, math.inf, -math.inf, 10**400, 1e300],
    ids=lambda budget: repr(budget)[:20],
)
def test_a_budget_that_is_no_time_is_refused(budget: Any) -> None:
    with pytest.raises(DecodeError, match="budget_ms"):
        decoded(parameters={"budget_ms": budget})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"7",
        b'"x"',
        b"\xff\xfe",
        b"{}",
        b'{"inputs": {}}',
        b'{"inputs": [7]}',
        b'{"inputs": [null]}',
        b'{"inputs": null}',
        b"\x00" * 40,
        b'{"inputs": [], "parameters": [1]}',
        b'{"inputs": [], "parameters": "x"}',
        b'{"a":' * 50_000,
        b"[" * 100_000,
        b'{"inputs": [' + b"9" * 10_000 + b"]}",
    ],
    ids=lambda data: repr(data[:30]),
)
def test_what_is_no_request_is_a_decode_error(data: bytes) -> None:
    with pytest.raises(DecodeError):
        oip.decode_request(data)


@pytest.mark.parametrize("depth", [3, 65, 900, 100_000])
def test_data_nested_too_deep_is_a_decode_error(depth: int) -> None:
    data = request().replace(b"[1, 2]", b"[" * depth + b"1,2" + b"]" * depth)
    if depth == 3:
        assert oip.decode_request(data).inputs["x"].tolist() == [1.0, 2.0]
    else:
        with pytest.raises(DecodeError):
            oip.decode_request(data)


def test_the_limits_on_bytes_and_on_the_number_of_inputs_hold() -> None:
    with pytest.raises(DecodeError, match="at most 10"):
        oip.decode_request(request(), MessageLimits(bytes=10))
    with pytest.raises(DecodeError):
        oip.decode_request(request(), MessageLimits(tensors=0))


@settings(deadline=None)
@given(st.binary(max_size=100))
def test_random_bytes_raise_nothing_but_a_decode_error(data: bytes) -> None:
    with pytest.raises(DecodeError):
        oip.decode_request(data)
    begins_a_map = data[:1] in {*(bytes([byte]) for byte in range(0x80, 0x90)), b"\xde", b"\xdf"}
    assert oip.is_json(data) == (not begins_a_map)


@settings(deadline=None)
@given(st.text())
def test_whatever_somebody_types_is_text_and_is_told_the_form(text: str) -> None:
    data = text.encode("utf-8", "ignore")
    assert oip.is_json(data)
    with pytest.raises(DecodeError, match='"inputs"'):
        oip.decode_request(data)


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=20))
def test_every_packed_map_is_told_from_text(doc: dict[str, int]) -> None:
    assert not oip.is_json(pack(doc))


def test_what_means_nothing_in_a_request_is_named() -> None:
    entry = {"parameters": {"binary_data_size": 4, "version": "7"}}
    doc = {
        "parameters": {"budget_ms": 5, "bugdet_ms": 6, "timeout": 7},
        "outputs": [{"name": "y", "parameters": {"classification": 3}}, {"name": "z"}],
    }
    asked = oip.decode_request(request(entry, **doc))
    assert asked.outputs == ("y", "z")
    named = "binary_data_size, bugdet_ms, classification, timeout, version"
    assert asked.ignored == named
    assert oip.decode_request(request({})).ignored == ""
    answer = Result("r", outputs={}, ignored=asked.ignored)
    assert json.loads(oip.encode_result(answer))["parameters"]["ignored"] == named
    assert oip.decode_result(oip.encode_result(answer)).ignored == named
    many = {f"p{n:03d}": n for n in range(50)}
    assert len(oip.decode_request(request({}, parameters=many)).ignored.split(", ")) == 8


@pytest.mark.parametrize(
    "outputs", [7, {}, "y", ["y"], [{}], [{"name": ""}], [{"name": "y"}, {"name": "y"}]]
)
def test_outputs_that_are_no_list_of_names_are_refused(outputs: Any) -> None:
    with pytest.raises(DecodeError, match="output"):
        oip.decode_request(request({}, outputs=outputs))


@pytest.mark.parametrize("of", ["inputs", "outputs"])
def test_parameters_of_a_tensor_are_an_object(of: str) -> None:
    entry = {"name": "x", "parameters": 5}
    doc = request(entry) if of == "inputs" else request({}, outputs=[entry])
    with pytest.raises(DecodeError, match="parameters"):
        oip.decode_request(doc)


def test_a_refusal_says_when_to_come_back_in_both_forms() -> None:
    refused = Result("r", status=Status.RESOURCE_EXHAUSTED, message="full", retry_after=0.25)
    assert json.loads(oip.encode_result(refused))["parameters"]["retry_after"] == 0.25
    assert oip.decode_result(oip.encode_result(refused)).retry_after == 0.25
    assert Result.decode(b"".join(refused.parts())).retry_after == 0.25


def test_a_failure_as_json_says_what_where_and_why() -> None:
    hop = Hop(1, "n1", 5, 7)
    failed = Result(
        "id", status=Status.UNAVAILABLE, message="gone", stage=2, node="n2", hops=(hop,)
    )
    doc = json.loads(oip.encode_result(failed))
    assert (doc["id"], doc["error"], doc["status"]) == ("id", "gone", "UNAVAILABLE")
    assert doc["parameters"]["stage"] == 2
    assert doc["parameters"]["node"] == "n2"
    assert doc["parameters"]["hops"] == [hop.as_doc()]
    assert "outputs" not in doc


def test_text_whose_objects_would_fill_the_memory_is_refused_before_it_is_parsed() -> None:
    text = b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[' + b"[]," * 400_000
    text += b"[]]}]}"
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match="MessagePack"):
            oip.decode_request(text, MessageLimits(bytes=2 << 20))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(text)


def test_text_of_many_numbers_is_taken_within_the_limits() -> None:
    entry = {"name": "x", "shape": [200_000], "datatype": "FP32", "data": [0.12345] * 200_000}
    text = json.dumps({"inputs": [entry]}).encode()
    assert oip.decode_request(text).inputs["x"].shape == (200_000,)
