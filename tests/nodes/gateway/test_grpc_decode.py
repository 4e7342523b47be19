"""Each message of a client becomes a request, or an error that says what is wrong with it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2, service_pb2

import nodes.gateway.grpc.protos
from nodes.gateway.call import Caller
from nodes.gateway.grpc.decode import infer_call
from nodes.gateway.grpc.messages import POOL, ModelInferRequest
from nodes.gateway.statuses import NotOffered
from swarm.errors import InvalidArgument
from swarm.requests.request import MAX_BUDGET


def request(datatype: str = "FP32", shape: tuple[int, ...] = (2,), **fields: Any) -> Any:
    """A request with one input `x`; fields: of the request, or contents of the input."""
    contents = {name: fields.pop(name) for name in list(fields) if name.endswith("_contents")}
    raw = contents.pop("raw_input_contents", [])
    made = ModelInferRequest(model_name="m", raw_input_contents=raw, **fields)
    tensor = made.inputs.add(name="x", datatype=datatype, shape=shape)
    for name, values in contents.items():
        getattr(tensor.contents, name).extend(values)
    return made


def call(asked: Any, remaining: float | None = None, **headers: str) -> Any:
    return infer_call(asked, Caller(), headers, remaining, None).request


@pytest.mark.parametrize(
    ("datatype", "field", "values"),
    [
        ("BOOL", "bool_contents", [True, False]),
        ("INT8", "int_contents", [-128, 127]),
        ("INT16", "int_contents", [-32768, 32767]),
        ("INT32", "int_contents", [-(2**31), 2**31 - 1]),
        ("INT64", "int64_contents", [-(2**63), 2**63 - 1]),
        ("UINT8", "uint_contents", [0, 255]),
        ("UINT16", "uint_contents", [0, 65535]),
        ("UINT32", "uint_contents", [0, 2**32 - 1]),
        ("UINT64", "uint64_contents", [0, 2**64 - 1]),
        ("FP32", "fp32_contents", [0.5, -3.0]),
        ("FP64", "fp64_contents", [1e300, -3.0]),
    ],
)
def test_typed_contents_keep_each_value(datatype: str, field: str, values: list[Any]) -> None:
    array = call(request(datatype, (2,), **{field: values})).inputs["x"]
    assert array.tolist() == values
    raw = request(datatype, (2,), raw_input_contents=[array.tobytes()])
    np.testing.assert_array_equal(call(raw).inputs["x"], array)


@given(st.lists(st.floats(width=32), max_size=400))
def test_floats_are_taken_from_the_message_as_they_lie(values: list[float]) -> None:
    array = call(request("FP32", (len(values),), fp32_contents=values)).inputs["x"]
    np.testing.assert_array_equal(array, np.array(values, np.float32))


@pytest.mark.parametrize(
    "asked",
    [
        request("FP32", (3,), fp32_contents=[1, 2]),
        request("FP32", (2,), int_contents=[1, 2]),
        request("FP32", (2,), fp32_contents=[1, 2], int_contents=[1, 2]),
        request("INT8", (1,), int_contents=[128]),
        request("UINT8", (1,), uint_contents=[256]),
        request("FP16", (1,), fp32_contents=[1]),
        request("BYTES", (1,), bytes_contents=[b"a"]),
        request("FP31", (1,), raw_input_contents=[bytes(4)]),
        request("FP32", (2,), raw_input_contents=[bytes(7)]),
        request("FP32", (2,), raw_input_contents=[bytes(8), bytes(8)]),
        request("FP32", (1,), raw_input_contents=[bytes(4)], fp32_contents=[1.0]),
        request("FP32", (-1,), raw_input_contents=[bytes(4)]),
        request("FP32", (0, 2**31, 2**31, 2**31), raw_input_contents=[b""]),
        request("FP32", (2**31, 2**31, 2**31), raw_input_contents=[b""]),
        request("FP32", (1,) * 17, raw_input_contents=[bytes(4)]),
        request("FP32", (2,)),
        request("FP32", (1,), raw_input_contents=[bytes(4)], id="i" * 129),
        request("FP32", (1,), raw_input_contents=[bytes(4)], model_version="v" * 129),
    ],
    ids=lambda asked: str(asked)[:60].replace("\n", " "),
)
def test_a_request_that_contradicts_itself_is_refused(asked: Any) -> None:
    with pytest.raises(InvalidArgument):
        call(asked)


def test_an_input_comes_once() -> None:
    asked = request("FP32", (1,), raw_input_contents=[bytes(4), bytes(4)])
    asked.inputs.add(name="x", datatype="FP32", shape=(1,))
    with pytest.raises(InvalidArgument, match="comes twice"):
        call(asked)


def test_a_budget_is_what_the_client_waits_and_never_more_than_the_mesh_gives() -> None:
    asked = request("FP32", (1,), raw_input_contents=[bytes(4)])
    assert call(asked).budget is None
    assert call(asked, remaining=9e9).budget == MAX_BUDGET
    asked.parameters["timeout"].int64_param = 5000
    assert call(asked, remaining=9e9).budget == 0.005
    assert call(asked, remaining=0.001).budget == 0.001
    asked.parameters["timeout"].int64_param = -1
    with pytest.raises(InvalidArgument, match="timeout"):
        call(asked)
    asked.parameters["timeout"].string_param = "soon"
    with pytest.raises(InvalidArgument, match="timeout"):
        call(asked)


def test_shared_memory_is_refused_where_it_is_off() -> None:
    asked = request("FP32", (1,))
    asked.inputs[0].parameters["shared_memory_region"].string_param = "r"
    with pytest.raises(NotOffered, match="--allow-client-shm"):
        call(asked)


def test_the_descriptors_are_those_of_the_protos() -> None:
    folder = Path(nodes.gateway.grpc.protos.__file__).parent
    files = sorted(folder.glob("*.proto"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    said = (folder / "sources.sha256").read_text().strip()
    assert digest == said, "run nodes/gateway/grpc/protos/generate.py"


def test_each_field_is_tritons_but_for_the_one_that_triton_lacks() -> None:
    theirs = fields_of(service_pb2.DESCRIPTOR) | fields_of(model_config_pb2.DESCRIPTOR)
    ours = fields_of(POOL.FindFileByName("inference.proto"))
    assert set(ours) - set(theirs) == {"inference.ModelMetadataResponse.properties"}
    assert {name: theirs[name] for name in ours if name in theirs} == {
        name: ours[name] for name in ours if name in theirs
    }


def fields_of(file: Any) -> dict[str, tuple[Any, ...]]:
    """Number, type and message of each field, and each enumeration's values, by their names."""
    kinds = list(file.message_types_by_name.values())
    enumerations = list(file.enum_types_by_name.values())
    for kind in kinds:
        kinds += kind.nested_types
        enumerations += kind.enum_types
    fields = [field for kind in kinds if not is_properties(kind) for field in kind.fields]
    found: dict[str, tuple[Any, ...]] = {
        field.full_name: (field.number, field.type, field.is_repeated, type_of(field))
        for field in fields
    }
    return found | {
        f"{each.full_name}.{value.name}": (value.number,)
        for each in enumerations
        for value in each.values
    }


def is_properties(kind: Any) -> bool:
    return bool(kind.name == "PropertiesEntry")


def type_of(field: Any) -> str:
    kind = field.message_type or field.enum_type
    return kind.full_name if kind else ""
