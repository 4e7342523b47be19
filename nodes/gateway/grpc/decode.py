"""What a request for an inference asks, out of its message: decided without sockets or waits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from nodes.gateway import parameters as words
from nodes.gateway.call import Caller, InferCall, Region, WantedOutput
from nodes.gateway.shared_memory import Regions
from swarm.errors import InvalidArgument
from swarm.requests.request import MAX_BUDGET
from swarm.wire.tensors import DTYPES, LIMITS, MessageLimits

# For each datatype the field of `InferTensorContents`, and the datatype of that field's values.
CONTENTS = {
    "BOOL": ("bool_contents", "BOOL"),
    "INT8": ("int_contents", "INT32"),
    "INT16": ("int_contents", "INT32"),
    "INT32": ("int_contents", "INT32"),
    "INT64": ("int64_contents", "INT64"),
    "UINT8": ("uint_contents", "UINT32"),
    "UINT16": ("uint_contents", "UINT32"),
    "UINT32": ("uint_contents", "UINT32"),
    "UINT64": ("uint64_contents", "UINT64"),
    "FP32": ("fp32_contents", "FP32"),
    "FP64": ("fp64_contents", "FP64"),
}


def infer_call(
    message: Any,
    caller: Caller,
    headers: Mapping[str, str],
    remaining: float | None,
    regions: Regions | None,
    limits: MessageLimits = LIMITS,
) -> InferCall:
    """message: a `ModelInferRequest`. headers: the call's metadata. remaining: seconds to the
    client's deadline, None without one. regions: None where shared memory is off. The arrays view
    its bytes. Raises `InvalidArgument`, `NotOffered` and what `Regions.read` raises."""
    if len(message.inputs) > limits.tensors or len(message.outputs) > limits.tensors:
        raise InvalidArgument(f"a request has at most {limits.tensors} inputs and as many outputs")
    parameters = _parameters(message.parameters, "request")
    inputs = _inputs(message, regions, limits)
    wanted = _outputs(message, regions, limits)
    request = words.request_of(
        inputs,
        wanted,
        caller,
        parameters,
        headers,
        id=message.id,
        version=message.model_version,
        of_tensors=[each.parameters for each in (*message.inputs, *message.outputs)],
    )
    if remaining is not None:  # a deadline beyond all budgets is no wish for one
        request.budget = min(remaining, MAX_BUDGET if request.budget is None else request.budget)
    return InferCall(message.model_name, request, wanted)


def _parameters(fields: Any, of: str) -> dict[str, Any]:
    """The values by name, without those that are not set."""
    if len(fields) > words.MOST:
        raise InvalidArgument(f"{of}: at most {words.MOST} parameters")
    chosen = {name: field.WhichOneof("parameter_choice") for name, field in fields.items()}
    return {name: getattr(fields[name], kind) for name, kind in chosen.items() if kind}


def _inputs(request: Any, regions: Regions | None, limits: MessageLimits) -> dict[str, np.ndarray]:
    raw = request.raw_input_contents
    given = len(raw)
    taken = 0
    inputs: dict[str, np.ndarray] = {}
    for tensor in request.inputs:
        name = _name(tensor.name, inputs, "input", limits)
        if tensor.datatype not in DTYPES:
            raise InvalidArgument(
                f"input {name!r}: datatype {tensor.datatype!r:.80} is none of {', '.join(DTYPES)}"
            )
        shape = _shape(tensor, limits)
        region = _region(tensor.parameters, regions, f"input {name!r}")
        has_contents = tensor.HasField("contents")
        if region is not None and regions is not None:
            if has_contents:
                raise InvalidArgument(f"input {name!r} has contents and a shared memory region")
            inputs[name] = regions.read(region, tensor.datatype, shape)
        elif given:
            if has_contents:
                raise InvalidArgument(f"input {name!r} has contents beside raw_input_contents")
            if taken == given:
                raise InvalidArgument(f"raw_input_contents has no bytes for input {name!r}")
            inputs[name] = _raw(raw[taken], tensor, shape)
            taken += 1
        else:
            inputs[name] = _typed(tensor, shape)
    if taken != given:
        raise InvalidArgument(f"raw_input_contents has {given} entries for {taken} inputs")
    return inputs


def _name(name: str, known: Mapping[str, Any], of: str, limits: MessageLimits) -> str:
    if not 0 < len(name) <= limits.name:
        raise InvalidArgument(f"each {of} has a name of at most {limits.name} characters")
    if name in known:
        raise InvalidArgument(f"{of} {name!r} comes twice")
    return name


def _shape(tensor: Any, limits: MessageLimits) -> tuple[int, ...]:
    shape = tuple(tensor.shape[: limits.rank + 1])
    if len(shape) > limits.rank or not all(0 <= each <= limits.dimension for each in shape):
        raise InvalidArgument(
            f"input {tensor.name!r}: a shape has at most {limits.rank} dimensions of 0 to "
            f"{limits.dimension}"
        )
    return shape


def _raw(data: bytes, tensor: Any, shape: tuple[int, ...]) -> np.ndarray:
    dtype = DTYPES[tensor.datatype]
    wanted = math.prod(shape) * dtype.itemsize
    if len(data) != wanted:
        raise InvalidArgument(
            f"input {tensor.name!r}: {len(data)} bytes where {tensor.datatype} of shape "
            f"{list(shape)} has {wanted}"
        )
    return _reshaped(np.frombuffer(data, dtype), tensor, shape)


def _typed(tensor: Any, shape: tuple[int, ...]) -> np.ndarray:
    if tensor.datatype not in CONTENTS:
        raise InvalidArgument(
            f"input {tensor.name!r}: {tensor.datatype} has no typed contents: send its bytes in "
            "raw_input_contents"
        )
    field, held_as = CONTENTS[tensor.datatype]
    other = [each.name for each, _ in tensor.contents.ListFields() if each.name != field]
    if other:
        raise InvalidArgument(
            f"input {tensor.name!r}: {tensor.datatype} goes into {field}, not {', '.join(other)}"
        )
    values = getattr(tensor.contents, field)
    if len(values) != math.prod(shape):
        raise InvalidArgument(
            f"input {tensor.name!r}: {len(values)} values where shape {list(shape)} has "
            f"{math.prod(shape)}"
        )
    given = _values(tensor.contents, field, len(values), DTYPES[held_as])
    array = given.astype(DTYPES[tensor.datatype], copy=False)
    if array is not given and not np.array_equal(given, array):
        raise InvalidArgument(f"input {tensor.name!r}: a value is out of {tensor.datatype}'s range")
    return _reshaped(array, tensor, shape)


def _values(contents: Any, field: str, count: int, dtype: np.dtype[Any]) -> np.ndarray:
    """The values of the only field that is set. Floats and booleans lie in the message as in
    memory, behind a tag of one byte and their length: they are not read one by one."""
    if dtype.kind not in "fb" or not count:
        return np.array(getattr(contents, field), dtype)
    data = contents.SerializeToString()
    start = 2
    while data[start - 1] & 0x80:  # the length goes on
        start += 1
    return np.frombuffer(data, dtype, count, start)


def _reshaped(array: np.ndarray, tensor: Any, shape: tuple[int, ...]) -> np.ndarray:
    try:
        return array.reshape(shape)
    except ValueError:  # a dimension of 0 beside ones whose product no array may have
        text = f"input {tensor.name!r}: shape {list(shape)} is too large"
        raise InvalidArgument(text) from None


def _region(parameters: Any, regions: Regions | None, of: str) -> Region | None:
    """Where a tensor's parameters place it; None for one that comes in the message."""
    if not parameters:
        return None
    region = words.region(_parameters(parameters, of))
    if region is not None and regions is None:
        raise words.no_shared_memory(f"{of}: ")
    return region


def _outputs(
    request: Any, regions: Regions | None, limits: MessageLimits
) -> dict[str, WantedOutput]:
    wanted: dict[str, WantedOutput] = {}
    for tensor in request.outputs:
        name = _name(tensor.name, wanted, "output", limits)
        if tensor.parameters:
            words.check_no_classes(_parameters(tensor.parameters, name), name)
        region = _region(tensor.parameters, regions, f"output {name!r}")
        wanted[name] = WantedOutput(True, region)
    return wanted
