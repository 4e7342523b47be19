"""Answers as gRPC's clients get them: a result as its message, an error as its status."""

from __future__ import annotations

import math
from typing import Any

import grpc
import numpy as np

from nodes.gateway import parameters as words
from nodes.gateway.call import InferCall
from nodes.gateway.shared_memory import Regions
from nodes.gateway.statuses import NotOffered
from swarm.errors import ResourceExhausted, SwarmError
from swarm.wire.messages import Result
from swarm.wire.tensors import datatype_of, plain

LONGEST_TEXT = 2000  # characters of an error: with its metadata below gRPC's bound of 8 KiB
_FIELDS = {
    bool: "bool_param",
    float: "double_param",
    int: "int64_param",
    str: "string_param",
}
PUSHBACK = "grpc-retry-pushback-ms"  # grpc/proposal A6: clients that retry wait so long


def fill(response: Any, result: Result, call: InferCall, regions: Regions | None) -> None:
    """response: an empty `ModelInferResponse`. An output that the client wants in a region of
    shared memory is written there. Raises what `Regions.write` raises."""
    response.model_name, response.model_version = result.model, result.version
    response.id = result.id
    for name, value in words.of_answer(result, call.request).items():
        setattr(response.parameters[name], _FIELDS[type(value)], value)
    for name, array in result.outputs.items():
        tensor = response.outputs.add(name=name, datatype=datatype_of(array), shape=array.shape)
        wanted = call.wanted.get(name)
        if wanted is None or wanted.region is None or regions is None:
            response.raw_output_contents.append(_bytes(array))
            continue
        regions.write(wanted.region, array)
        tensor.parameters[words.SHM_REGION].string_param = wanted.region.name
        tensor.parameters[words.SHM_SIZE].int64_param = array.nbytes
        if wanted.region.offset:
            tensor.parameters[words.SHM_OFFSET].int64_param = wanted.region.offset


def _bytes(array: np.ndarray) -> bytes:
    return plain(array).tobytes()


def status_code(error: SwarmError) -> grpc.StatusCode:
    """The mesh's status words are gRPC's own."""
    if isinstance(error, NotOffered):
        return grpc.StatusCode.UNIMPLEMENTED
    code: grpc.StatusCode = grpc.StatusCode[str(error.status)]
    return code


def error_text(error: SwarmError) -> str:
    """At most `LONGEST_TEXT` characters."""
    return str(error)[:LONGEST_TEXT]


def retry_hint(error: SwarmError) -> tuple[tuple[str, str], ...]:
    """Trailing metadata: after how many milliseconds a refused call may be sent again; `-1`, and no
    `retry-after-ms`, where that is of no use."""
    if not isinstance(error, ResourceExhausted) or error.retry_after == 0.0:
        return ()
    if not math.isfinite(error.retry_after):
        return ((PUSHBACK, "-1"),)
    after = str(max(1, math.ceil(error.retry_after * 1e3)))
    return (("retry-after-ms", after), (PUSHBACK, after))
