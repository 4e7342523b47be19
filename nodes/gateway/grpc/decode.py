"""What a request for an inference asks, out of its message: decided without sockets or waits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from nodes.gateway.call import Caller, InferCall, Region, Regions, WantedOutput
from nodes.gateway.statuses import NotOffered
from swarm.errors import InvalidArgument
from swarm.mesh import MAX_BUDGET
from swarm.wire.tensors import DTYPES, LIMITS, Limits

LONGEST_WORD = 128  # characters of an id, a version, a session
MOST_PARAMETERS = 64  # of a request, of a tensor
SHM_REGION = "shared_memory_region"
SHM_OFFSET = "shared_memory_offset"
SHM_SIZE = "shared_memory_byte_size"

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
    request: Any,
    caller: Caller,
    headers: Mapping[str, str],
    remaining: float | None,
    regions: Regions | None,
    limits: Limits = LIMITS,
) -> InferCall:
    """request: a `ModelInferRequest`. headers: the call's metadata. remaining: seconds to the
    client's deadline, None without one. regions: None where shared memory is off. The arrays view
    the request's bytes. Raises `InvalidArgument`, `NotOffered` and what `Regions.read` raises."""
    if len(request.inputs) > limits.tensors or len(request.outputs) > limits.tensors:
        raise InvalidArgument(f"a request has at most {limits.tensors} inputs and as many outputs")
    parameters = _parameters(request.parameters, "request")
    if parameters.get("sequence_id"):
        raise NotOffered("sequences (parameter sequence_id) are not offered: send whole inputs")
    return InferCall(
        request.model_name,
        _inputs(request, regions, limits),
        caller,
        version=_word(request.model_version, "model_version"),
        id=_word(request.id, "id"),
        outputs=_outputs(request, regions, limits),
        budget=_budget(parameters.get("timeout", 0), remaining),
        session=_word(headers.get("swarm-session", "") or parameters.get("session", ""), "session"),
        weights=_count(parameters.get("weights", 0), "parameter weights"),
        traceparent=headers.get("traceparent", "")[:LONGEST_WORD],
    )


def _budget(timeout: Any, remaining: float | None) -> float | None:
    """timeout: the parameter, in microseconds, 0 for none. The shorter of both counts, and None
    stands for neither. A deadline that is further away than any budget is none of ours."""
    asked = _count(timeout, "parameter timeout (microseconds)") / 1e6
    given = [each for each in (asked or None, remaining) if each is not None]
    return min(*given, MAX_BUDGET) if given else None


def _parameters(fields: Any, of: str) -> dict[str, Any]:
    """The values by name, without those that are not set."""
    if len(fields) > MOST_PARAMETERS:
        raise InvalidArgument(f"a {of} has at most {MOST_PARAMETERS} parameters")
    chosen = {name: field.WhichOneof("parameter_choice") for name, field in fields.items()}
    return {name: getattr(fields[name], kind) for name, kind in chosen.items() if kind}


def _word(value: Any, name: str) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_WORD:
        raise InvalidArgument(f"{name} is a text of at most {LONGEST_WORD} characters")
    return value


def _count(value: Any, name: str) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise InvalidArgument(f"{name} must be a whole number from 0 on, not {value!r:.80}")
    return value


def _inputs(request: Any, regions: Regions | None, limits: Limits) -> dict[str, np.ndarray]:
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
        region = _region(tensor, regions, f"input {name!r}")
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


def _name(name: str, known: Mapping[str, Any], of: str, limits: Limits) -> str:
    if not 0 < len(name) <= limits.name:
        raise InvalidArgument(f"each {of} has a name of at most {limits.name} characters")
    if name in known:
        raise InvalidArgument(f"{of} {name!r} comes twice")
    return name


def _shape(tensor: Any, limits: Limits) -> tuple[int, ...]:
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


def _region(tensor: Any, regions: Regions | None, of: str) -> Region | None:
    """Where a tensor's parameters place it; None for one that comes in the message."""
    if not tensor.parameters:
        return None
    parameters = _parameters(tensor.parameters, "tensor")
    if SHM_REGION not in parameters:
        return None
    if regions is None:
        raise NotOffered(f"{of}: this gateway takes no shared memory (--allow-client-shm)")
    return Region(
        _word(parameters[SHM_REGION], SHM_REGION),
        _count(parameters.get(SHM_OFFSET, 0), SHM_OFFSET),
        _count(parameters.get(SHM_SIZE, 0), SHM_SIZE),
    )


def _outputs(request: Any, regions: Regions | None, limits: Limits) -> tuple[WantedOutput, ...]:
    wanted: dict[str, WantedOutput] = {}
    for tensor in request.outputs:
        name = _name(tensor.name, wanted, "output", limits)
        if "classification" in tensor.parameters:
            raise NotOffered(
                f"output {name!r}: classes (class_count) are not offered: take the whole output"
            )
        wanted[name] = WantedOutput(name, True, _region(tensor, regions, f"output {name!r}"))
    return tuple(wanted.values())
