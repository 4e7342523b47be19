"""A request for an inference out of its body, and the body of its answer: JSON, or with binary
tensors behind the JSON. Decided without sockets or waits."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from nodes.gateway import parameters as words
from nodes.gateway.call import Caller, InferCall, WantedOutput
from nodes.gateway.shared_memory import Regions
from swarm.errors import DecodeError, InvalidArgument
from swarm.wire import oip
from swarm.wire.messages import Result
from swarm.wire.tensors import DTYPES, LIMITS, MessageLimits, Part, datatype_of, memory_of, plain

HEADER_LENGTH = "inference-header-content-length"  # bytes of JSON before the binary tensors


def decoded(
    model: str,
    version: str,
    body: bytes,
    headers: Mapping[str, str],
    caller: Caller,
    regions: Regions | None,
    limits: MessageLimits = LIMITS,
) -> InferCall:
    """version: of the path, "" for none. body: unpacked; the arrays view it. regions: None where
    shared memory is off. Raises `DecodeError`, `InvalidArgument`, `NotOffered`, and what
    `Regions.read` raises."""
    head, tail = _split(body, headers.get(HEADER_LENGTH))
    doc = oip.document(head, limits, _loads)
    parameters = words.checked(doc.get("parameters"), "request")
    reader = _Reader(tail, regions)
    inputs = oip.inputs_of(doc, reader.tensor, limits)
    reader.check_end()
    wanted, id = _outputs(doc, regions, limits), doc.get("id")
    request = words.request_of(
        inputs,
        wanted,
        caller,
        parameters,
        headers,
        id=str(id) if type(id) is int else "" if id is None else id,  # clients send numbers too
        version=version,
        of_tensors=_of_tensors(doc),
    )
    binary = words.flag(parameters.get("binary_data_output"), "binary_data_output") or False
    return InferCall(model, request, wanted, binary)


def _of_tensors(doc: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The parameters of the inputs and outputs of a document whose tensors have been read."""
    entries = [*doc["inputs"], *(doc.get("outputs") or [])]
    return [given for entry in entries if (given := entry.get("parameters"))]


def _split(body: bytes, length: str | None) -> tuple[bytes, memoryview]:
    """The JSON, and the binary tensors behind it. Raises `DecodeError`."""
    if length is None:
        return body, memoryview(b"")
    if not (length.isascii() and length.isdigit()) or int(length[:20]) > len(body):
        raise DecodeError(f"{HEADER_LENGTH} {length!r:.80} in a body of {len(body)} bytes")
    view = memoryview(body)
    return bytes(view[: int(length)]), view[int(length) :]


def _loads(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        # NaN and Infinity are no JSON, but clients write them, and the mesh's reader takes them.
        if b"NaN" in data or b"Infinity" in data:
            return json.loads(data)
        raise


class _Reader:
    """Takes binary tensors from the body, in the order of the inputs."""

    def __init__(self, tail: memoryview, regions: Regions | None) -> None:
        self._tail = tail
        self._regions = regions
        self._at = 0

    def tensor(self, entry: Any, limits: MessageLimits) -> tuple[str, np.ndarray]:
        """One input. Raises `DecodeError`, `InvalidArgument`, `NotOffered`."""
        parameters = entry.get("parameters") if type(entry) is dict else None
        _check_datatype(entry)
        if not parameters:
            return oip.tensor(entry, limits)
        name, dtype, shape = oip.described(entry, limits)
        given = words.checked(parameters, f"input {name!r}")
        region = words.region(given)
        if region is None and words.BINARY_SIZE not in given:
            return oip.tensor(entry, limits)
        if "data" in entry:
            raise DecodeError(f"input {name!r} has data beside its bytes elsewhere")
        if region is None:
            return name, self._binary(name, dtype, shape, given[words.BINARY_SIZE])
        if self._regions is None:
            raise words.no_shared_memory(f"input {name!r}: ")
        return name, self._regions.read(region, entry["datatype"], tuple(shape))

    def _binary(self, name: str, dtype: np.dtype[Any], shape: list[int], size: Any) -> np.ndarray:
        size = words.count(size, f"input {name!r}: {words.BINARY_SIZE}")
        wanted = dtype.itemsize * math.prod(shape)
        if size != wanted:
            raise DecodeError(
                f"input {name!r}: {words.BINARY_SIZE} {size} where shape {shape} takes {wanted}"
            )
        data = self._tail[self._at : self._at + size]
        if len(data) != size:
            raise DecodeError(
                f"input {name!r}: {size} bytes, of which the body has {len(data)}"
                f" (header {HEADER_LENGTH})"
            )
        self._at += size
        return oip.shaped(name, np.frombuffer(data, dtype), shape)

    def check_end(self) -> None:
        """Raises `DecodeError` for bytes behind the last binary tensor."""
        if left := len(self._tail) - self._at:
            raise DecodeError(f"{left} bytes of the body belong to no input")


def _check_datatype(entry: Any) -> None:
    """Raises `InvalidArgument` for datatypes of the protocol that no model of the mesh has."""
    datatype = entry.get("datatype") if type(entry) is dict else None
    if datatype in ("BYTES", "BF16"):
        raise InvalidArgument(
            f"input {entry.get('name')!r:.80}: datatype {datatype} is not taken: models of the "
            f"mesh have {', '.join(DTYPES)}"
        )


def _outputs(
    doc: dict[str, Any], regions: Regions | None, limits: MessageLimits
) -> dict[str, WantedOutput]:
    wanted: dict[str, WantedOutput] = {}
    for entry in oip.outputs_of(doc, limits):
        name = entry["name"]
        given = words.checked(entry.get("parameters"), f"output {name!r}")
        words.check_no_classes(given, name)
        region = words.region(given)
        if region is not None and regions is None:
            raise words.no_shared_memory(f"output {name!r}: ")
        binary = words.flag(given.get(words.BINARY), f"output {name!r}: {words.BINARY}")
        wanted[name] = WantedOutput(binary, region)
    return wanted


_NOTHING = WantedOutput()


def encoded(result: Result, call: InferCall, regions: Regions | None) -> tuple[bytes, list[Part]]:
    """The JSON, and the tensors that follow it. An output that the client wants in shared
    memory is written there. Raises what `Regions.write` raises."""
    outputs: list[dict[str, Any]] = []
    parts: list[Part] = []
    for name, array in result.outputs.items():
        array, shape = plain(array), list(array.shape)
        output: dict[str, Any] = {"name": name, "datatype": datatype_of(array), "shape": shape}
        wanted = call.wanted.get(name, _NOTHING)
        region = wanted.region
        if region is not None and regions is not None:
            regions.write(region, array)
            output["parameters"] = {words.SHM_REGION: region.name, words.SHM_SIZE: array.nbytes}
            if region.offset:
                output["parameters"][words.SHM_OFFSET] = region.offset
        elif call.binary if wanted.binary is None else wanted.binary:
            output["parameters"] = {words.BINARY_SIZE: array.nbytes}
            parts.append(memory_of(array))
        else:
            output["data"] = array.reshape(-1)  # NaN and infinity become null
            if array.dtype.kind == "f" and (lost := array.size - int(np.isfinite(array).sum())):
                output["parameters"] = {words.NOT_FINITE: lost}
        outputs.append(output)
    doc = {
        "model_name": result.model,
        "model_version": result.version,
        "id": result.id,
        "parameters": words.of_answer(result, call.request),
        "outputs": outputs,
    }
    return orjson.dumps(doc, option=orjson.OPT_SERIALIZE_NUMPY), parts
