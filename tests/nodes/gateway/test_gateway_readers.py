"""The readers of HTTP and gRPC agree: equal content is the same request, or the same refusal."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nodes.gateway.call import Caller, InferCall
from nodes.gateway.grpc.decode import CONTENTS, infer_call
from nodes.gateway.grpc.messages import ModelInferRequest
from nodes.gateway.http.infer import HEADER_LENGTH, decoded
from nodes.gateway.statuses import NotOffered
from swarm.errors import SwarmError
from swarm.wire.tensors import DTYPES


@dataclass
class Tensor:
    """values: as many as the shape has, or not."""

    name: str
    datatype: str
    shape: list[int]
    values: list[Any]

    @property
    def bytes(self) -> bytes:
        return np.array(self.values, DTYPES.get(self.datatype, np.float32)).tobytes()


@dataclass
class Content:
    """What a client wants to say, in any protocol."""

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)
    id: str = ""
    version: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    def document(self, binary: bool) -> dict[str, Any]:
        inputs = []
        for each in self.inputs:
            entry: dict[str, Any] = {"name": each.name, "datatype": each.datatype}
            entry["shape"] = each.shape
            if binary:
                entry["parameters"] = {"binary_data_size": len(each.bytes)}
            else:
                entry["data"] = each.values
            inputs.append(entry)
        document = {"inputs": inputs, "parameters": self.parameters, "id": self.id}
        return document | {"outputs": [{"name": name} for name in self.outputs]}


def by_json(content: Content) -> InferCall:
    body = json.dumps(content.document(binary=False)).encode()
    return decoded("m", content.version, body, content.headers, Caller(), None)


def by_binary(content: Content) -> InferCall:
    head = json.dumps(content.document(binary=True)).encode()
    headers = content.headers | {HEADER_LENGTH: str(len(head))}
    body = head + b"".join(each.bytes for each in content.inputs)
    return decoded("m", content.version, body, headers, Caller(), None)


def _message(content: Content) -> Any:
    message = ModelInferRequest(model_name="m", model_version=content.version, id=content.id)
    for name, value in content.parameters.items():
        kind = {bool: "bool_param", int: "int64_param", float: "double_param"}.get(type(value))
        setattr(message.parameters[name], kind or "string_param", value)
    for each in content.inputs:
        message.inputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
    for name in content.outputs:
        message.outputs.add(name=name)
    return message


def by_raw(content: Content) -> InferCall:
    message = _message(content)
    message.raw_input_contents.extend(each.bytes for each in content.inputs)
    message = ModelInferRequest.FromString(message.SerializeToString())
    return infer_call(message, Caller(), content.headers, None, None)


def by_contents(content: Content) -> InferCall:
    message = _message(content)
    for tensor, each in zip(message.inputs, content.inputs, strict=True):
        if each.datatype in CONTENTS:
            getattr(tensor.contents, CONTENTS[each.datatype][0]).extend(each.values)
    message = ModelInferRequest.FromString(message.SerializeToString())
    return infer_call(message, Caller(), content.headers, None, None)


def outcome(content: Content, read: Any) -> Any:
    """The request as plain values, or the kind of its refusal."""
    try:
        call = read(content)
    except NotOffered:
        return "not offered"
    except SwarmError as error:
        return str(error.status)
    asked = call.request
    inputs = {
        name: (array.dtype.str, array.shape, array.tobytes())
        for name, array in asked.inputs.items()
    }
    named = list(call.wanted)
    said = (asked.version, asked.id, asked.budget, asked.session, asked.weights, asked.traceparent)
    return inputs, named, said


def agree(content: Content) -> Any:
    """The outcome, which is the same by all readers."""
    found = {read: outcome(content, read) for read in (by_json, by_binary, by_raw)}
    # Without raw bytes a client cannot send halves: gRPC has no typed contents for them.
    if all(each.datatype != "FP16" for each in content.inputs):
        found[by_contents] = outcome(content, by_contents)
    first = found[by_json]
    assert all(each == first for each in found.values()), found
    return first


def _values(datatype: str) -> st.SearchStrategy[Any]:
    kind = DTYPES.get(datatype, np.dtype(np.float32))
    if datatype == "BOOL":
        return st.booleans()
    if kind.kind == "f":
        width = min(kind.itemsize * 8, 64)
        return st.floats(allow_nan=False, allow_infinity=False, width=width)
    info = np.iinfo(kind)
    return st.integers(int(info.min), int(info.max))


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
WORDS = st.one_of(NAMES, st.text("ab", min_size=126, max_size=131))


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    datatype = draw(st.sampled_from([*DTYPES, "FP32", "FP32", "BYTES", "BF16", "", "fp32"]))
    shape = draw(st.one_of(st.lists(st.integers(0, 3), max_size=3), st.just([1] * 40)))
    count = max(0, math.prod(shape) + draw(st.sampled_from([0, 0, 0, 0, 1, -1])))
    values = draw(st.lists(_values(datatype), min_size=count, max_size=count))
    return Tensor(draw(NAMES), datatype, shape, values)


NUMBERS = st.one_of(st.integers(-2, 10**6), st.just(2**63 - 1), st.sampled_from(["7", "x", True]))
PARAMETERS = st.fixed_dictionaries(
    {},
    optional={
        "timeout": NUMBERS,
        "priority": NUMBERS,
        "weights": NUMBERS,
        "budget_ms": st.one_of(NUMBERS, st.sampled_from([0.5, 1e13, -3.5])),
        "session": WORDS,
        "version": WORDS,
        "traceparent": WORDS,
        "sequence_id": st.sampled_from([0, 1, "", "a"]),
        "sequence_start": st.booleans(),
        "anything": WORDS,
    },
)
CONTENTS_OF_ANY_KIND = st.builds(
    Content,
    st.lists(tensors(), max_size=3),
    st.lists(NAMES, max_size=3),
    PARAMETERS,
    WORDS,
    WORDS,
    st.fixed_dictionaries({}, optional={"swarm-session": WORDS, "traceparent": WORDS}),
)
ONE = [Tensor("x", "FP32", [2], [1.0, 2.5])]


@given(CONTENTS_OF_ANY_KIND)
@example(Content(ONE))
@example(Content(ONE, parameters={"sequence_id": 5}))
@example(Content(ONE, ["y"], {"timeout": 250_000, "session": "s", "weights": 3}, "id", "2"))
@example(Content(ONE + ONE))
@example(Content(ONE, ["y", "y"]))
def test_equal_content_is_the_same_request_or_the_same_refusal(content: Content) -> None:
    agree(content)


def test_a_good_request_is_read_whole() -> None:
    content = Content(ONE, ["y"], {"timeout": 250_000, "session": "s", "weights": 3}, "id", "2")
    inputs, outputs, said = agree(content)
    assert inputs == {"x": ("<f4", (2,), np.array([1, 2.5], np.float32).tobytes())}
    assert (outputs, said) == (["y"], ("2", "id", 0.25, "s", 3, ""))


@pytest.mark.parametrize(
    "content",
    [
        Content(ONE, headers={"swarm-session": "s" * 129}),
        Content(ONE, parameters={"session": "s" * 129}),
        Content(ONE, parameters={"version": "1" * 129}),
        Content(ONE, id="i" * 129),
        Content(ONE, version="1" * 129),
    ],
)
def test_words_over_128_characters_are_refused_and_never_cut(content: Content) -> None:
    assert agree(content) == "INVALID_ARGUMENT"
