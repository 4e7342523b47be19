"""Requests and results as Open Inference Protocol v2 JSON (kserve/open-inference-protocol).

Any client without MessagePack sends this: `{"inputs":[{"name","shape","datatype","data"}]}`,
`data` flat or nested; `parameters` may carry `budget_ms`, `session`, `agent`, `version`, `weights`,
the least weight version, `priority`, `allow_degraded`, and `key`, by which its client can end it.
`outputs` names those that are wanted. FP16 travels as numbers too.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from swarm.errors import DecodeError, Status
from swarm.wire import unfamiliar
from swarm.wire.maps import is_packed_map
from swarm.wire.messages import Request, Result, checked_key, read_priority
from swarm.wire.tensors import DTYPES, LIMITS, MessageLimits, datatype_of

# As Python has them: a number with its place in a list (32 and 8), or an empty list (56 and 8), and
# in arrays of two types; an object with a key.
VALUE_BYTES = 80
OBJECT_BYTES = 320
COUNTED_FROM = 1 << 20
BYTE_BYTES = 134  # at most, of a text: three bytes are an object and its place, `{},`
# The form of a list's numbers, by datatype, in this machine's own order, which is the fastest.
_CODES = {"f2": "d", "f4": "d", "f8": "d", "i1": "b", "u1": "B", "i2": "h", "u2": "H"}
_CODES |= {"i4": "i", "u4": "I", "i8": "q", "u8": "Q"}
_FORM = 'a request is {"inputs": [{"name", "shape", "datatype", "data"}, …]}'
KNOWN = frozenset(
    {
        "agent", "allow_degraded", "budget_ms", "key", "priority", "session", "traceparent",
        "version", "weights",
    }
)  # fmt: skip
MOST_NAMED = 8  # parameters that an answer names as unknown
LONGEST_NAMED = 128  # characters of such a name


def is_json(data: bytes | memoryview) -> bool:
    """Whether a request is text: read as JSON, and answered in JSON. Every MessagePack map begins
    with a byte that no JSON begins with; whatever else comes, somebody has typed."""
    return not is_packed_map(data)


def decode_request(data: bytes | memoryview, limits: MessageLimits = LIMITS) -> Request:
    """Raises `DecodeError`, saying what is wrong with which input."""
    doc = document(data, limits)
    request = request_of(doc, inputs_of(doc, tensor, limits))
    outputs = outputs_of(doc, limits)
    request.outputs = tuple(entry["name"] for entry in outputs)
    unknown = set(doc.get("parameters") or ()) - KNOWN
    for entry in (*doc["inputs"], *outputs):
        unknown |= set(_parameters(entry))
    request.ignored = ignored(unknown)
    return request


def document(
    data: bytes | memoryview,
    limits: MessageLimits = LIMITS,
    loads: Callable[[bytes], Any] = json.loads,
) -> dict[str, Any]:
    """The object that a request is. loads: raises `ValueError`. Raises `DecodeError`."""
    if len(data) > limits.bytes:
        raise DecodeError(f"request of {len(data)} bytes; at most {limits.bytes} are accepted")
    data = bytes(data)
    most = 4 * limits.bytes
    if len(data) * BYTE_BYTES > most and most_memory(data) > most:
        raise DecodeError(
            "so many numbers as text would fill the memory: send them in several requests, or as "
            "MessagePack with the tensors' bytes"
        )
    try:
        doc = loads(data)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"not JSON: {error}; {_FORM}") from None
    if not isinstance(doc, dict):
        raise DecodeError(_FORM)
    return doc


def inputs_of(
    doc: dict[str, Any],
    read: Callable[[dict[str, Any], MessageLimits], tuple[str, np.ndarray]],
    limits: MessageLimits = LIMITS,
) -> dict[str, np.ndarray]:
    """The arrays by name. read: one entry's name and array, as `tensor`. Raises `DecodeError`."""
    entries = doc.get("inputs")
    if not isinstance(entries, list) or len(entries) > limits.tensors:
        raise DecodeError(_FORM)
    inputs: dict[str, np.ndarray] = {}
    for entry in entries:
        name, array = read(entry, limits)
        if name in inputs:
            raise DecodeError(f"input {name!r} comes twice")
        inputs[name] = array
    return inputs


def outputs_of(doc: dict[str, Any], limits: MessageLimits = LIMITS) -> list[dict[str, Any]]:
    """The entries of the outputs that a request names, [] for all. Raises `DecodeError`."""
    entries = doc.get("outputs")
    if entries is None:
        return []
    if not isinstance(entries, list) or len(entries) > limits.tensors:
        raise DecodeError('outputs is a list of {"name", "parameters"}')
    names = set()
    for entry in entries:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not 0 < len(name) <= limits.name:
            raise DecodeError("every output needs a name")
        if name in names:
            raise DecodeError(f"output {name!r} comes twice")
        names.add(name)
    return entries


def ignored(unknown: Collection[str]) -> str:
    """Names of parameters that mean nothing, sorted; at most `MOST_NAMED` of them. An answer tells
    them: a word that was misspelt is seen."""
    return ", ".join(name[:LONGEST_NAMED] for name in sorted(unknown)[:MOST_NAMED])


def _parameters(entry: dict[str, Any]) -> Collection[str]:
    """The parameters of a tensor, none of which means anything in a request of JSON alone. Raises
    `DecodeError`."""
    given = entry.get("parameters") or {}
    if not isinstance(given, dict):
        raise DecodeError(f"{entry['name']!r:.80}: parameters must be an object")
    return given


def request_of(doc: dict[str, Any], inputs: dict[str, np.ndarray]) -> Request:
    """A request of these inputs, with its id and parameters. Raises `DecodeError`."""
    parameters = doc.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise DecodeError("parameters must be an object")
    budget = parameters.get("budget_ms")
    if budget is not None and (
        isinstance(budget, bool)
        or not isinstance(budget, (int, float))
        or not -1e12 < budget < 1e12  # also refuses nan, and integers no float can hold
    ):
        raise DecodeError(f"budget_ms must be a number of milliseconds, not {budget!r:.80}")
    weights = parameters.get("weights", 0)
    if type(weights) is not int or weights < 0:
        raise DecodeError(f"weights must be the number of a weight version, not {weights!r:.80}")
    allowed = parameters.get("allow_degraded")
    if allowed is not None and type(allowed) is not bool:
        raise DecodeError(f"allow_degraded must be true or false, not {allowed!r:.80}")
    return Request(
        inputs=inputs,
        id=str(doc.get("id", ""))[:128],
        version=str(parameters.get("version", ""))[:128],
        budget=None if budget is None else budget / 1e3,
        session=str(parameters.get("session", ""))[:128],
        agent=str(parameters.get("agent", ""))[:128],
        weights=weights,
        traceparent=str(parameters.get("traceparent", ""))[:128],
        key=checked_key(parameters.get("key", "")),
        priority=read_priority(parameters.get("priority", "")),
        allow_degraded=allowed,
    )


def most_memory(data: bytes) -> int:
    """The bytes that a JSON text takes at most as Python's objects and as arrays. 0 for a text that
    is too short to matter: it is not looked through."""
    if len(data) < COUNTED_FROM:
        return 0
    values = data.count(b",") + data.count(b"[")
    return VALUE_BYTES * values + OBJECT_BYTES * data.count(b"{")


def described(entry: Any, limits: MessageLimits) -> tuple[str, np.dtype[Any], list[int]]:
    """A tensor's name, dtype and shape. Raises `DecodeError`."""
    name = entry.get("name") if isinstance(entry, dict) else None
    if not isinstance(name, str) or not 0 < len(name) <= limits.name:
        raise DecodeError("every input needs a name, shape, datatype and data")
    dtype = DTYPES.get(str(entry.get("datatype")))
    if dtype is None:
        raise DecodeError(f"input {name!r}: datatype must be one of {', '.join(DTYPES)}")
    shape = entry.get("shape")
    if (
        not isinstance(shape, list)
        or len(shape) > limits.rank
        or not all(type(d) is int and 0 <= d <= limits.dimension for d in shape)
    ):
        raise DecodeError(f"input {name!r}: shape must be a list of dimensions, not {shape!r:.80}")
    return name, dtype, shape


def tensor(entry: Any, limits: MessageLimits = LIMITS) -> tuple[str, np.ndarray]:
    """A tensor whose values stand in JSON. Raises `DecodeError`."""
    name, dtype, shape = described(entry, limits)
    try:
        array = _values(entry.get("data"), dtype)
    except (ValueError, TypeError, OverflowError, FloatingPointError) as error:
        text = f"input {name!r}: data is no {entry['datatype']}: {error!s:.200}"
        raise DecodeError(text) from None
    if array.size != math.prod(shape):
        raise DecodeError(
            f"input {name!r}: {array.size} values where shape {shape} takes {math.prod(shape)}"
        )
    return name, shaped(name, array, shape)


def shaped(name: str, array: np.ndarray, shape: list[int]) -> np.ndarray:
    """A flat array in its shape, which has as many values. Raises `DecodeError`."""
    try:
        return array.reshape(shape)
    except ValueError:  # a dimension of 0 beside ones whose product no array may have
        raise DecodeError(f"input {name!r}: shape {shape} is too large") from None


def _values(data: Any, dtype: np.dtype[Any]) -> np.ndarray:
    """Numbers as they stand in JSON, exactly or rounded to a float; nothing is made up of
    null or text, cut off, or wrapped around. Raises what numpy raises, or `ValueError`."""
    if type(data) is list and (packed := _packed(data, dtype)) is not None:
        return packed
    given = np.asarray(data)
    if given.dtype.kind not in "biuf":
        raise ValueError("it must hold numbers or booleans only")
    if dtype.kind == "f":
        with np.errstate(over="raise"):
            return given.astype(dtype)
    array = np.asarray(data, dtype=dtype)
    if not np.array_equal(given, array):
        raise ValueError("a value is out of its range")
    return array


def _packed(data: list[Any], dtype: np.dtype[Any]) -> np.ndarray | None:
    """A flat list of numbers, in a quarter of numpy's time; None for what needs a closer look."""
    code = _CODES.get(dtype.str[1:])
    if code is None:
        return None
    try:
        packed = struct.pack(f"{len(data)}{code}", *data)
    except (struct.error, OverflowError):
        return None
    with np.errstate(over="raise"):
        return np.frombuffer(packed, code).astype(dtype, copy=False)


def encode_result(result: Result) -> bytes:
    """A result as JSON; a failure as `{"error", "status"}` with where it happened."""
    return json.dumps(as_doc(result)).encode()


def as_doc(result: Result) -> dict[str, Any]:
    """The document of `encode_result`."""
    parameters: dict[str, Any] = {
        "degraded": result.degraded,
        "latency_ms": round(result.latency * 1e3, 3),
        "hops": [hop.as_json() for hop in result.hops],
    }
    if (age := result.cached_ms) is not None:
        parameters |= {"cached": True, "age_ms": age}
    if result.degraded and result.message:
        parameters["message"] = result.message
    if result.way:
        parameters |= {"way": result.way, "why": result.why}
    if result.unfamiliarity:
        parameters |= unfamiliar.told_of(result.unfamiliarity, result.unfamiliar_rows)
    if result.ignored:
        parameters["ignored"] = result.ignored
    if result.retry_after:
        parameters["retry_after"] = result.retry_after
    if result.status is not Status.OK:
        return {
            "id": result.id,
            "error": result.message,
            "status": str(result.status),
            "parameters": parameters | {"stage": result.stage, "node": result.node},
        }
    return {
        "model_name": result.model,
        "model_version": result.version,
        "id": result.id,
        "outputs": [
            {
                "name": name,
                "shape": list(array.shape),
                "datatype": datatype_of(array),
                "data": _flat_values(array),
            }
            for name, array in result.outputs.items()
        ],
        "parameters": parameters,
    }


def decode_result(data: bytes | memoryview, limits: MessageLimits = LIMITS) -> Result:
    """What `encode_result` wrote, but for the hops. Raises `DecodeError`."""
    try:
        doc = json.loads(bytes(data))
        parameters = doc.get("parameters") or {}
        result = Result(
            str(doc.get("id", ""))[:128],
            str(doc.get("model_name", "")),
            str(doc.get("model_version", "")),
            status=Status(str(doc.get("status", Status.OK))),
            message=str(doc.get("error") or parameters.get("message", "")),
            stage=int(parameters.get("stage", 0)),
            node=str(parameters.get("node", "")),
            degraded=bool(parameters.get("degraded", False)),
            retry_after=max(0.0, float(parameters.get("retry_after", 0.0))),
            ignored=str(parameters.get("ignored", "")),
        )
        entries = doc.get("outputs") or []
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DecodeError(f"no result in JSON: {error}") from None
    if not isinstance(entries, list) or len(entries) > limits.tensors:
        raise DecodeError("the outputs of a result are a list of tensors")
    result.outputs = dict(tensor(entry, limits) for entry in entries)
    return result


def _flat_values(array: np.ndarray) -> list[Any]:
    """The values, flat; NaN and infinity, which JSON does not have, as null."""
    flat = array.reshape(-1)
    if array.dtype.kind == "f" and not np.isfinite(flat).all():
        return [v if math.isfinite(v) else None for v in flat.tolist()]
    return list(flat.tolist())
