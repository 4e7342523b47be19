"""An answer as HTTP's clients get it: JSON, with binary tensors behind it where they want them."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson

from nodes.gateway import parameters as words
from nodes.gateway.call import InferAnswer, Regions, WantedOutput
from swarm.wire.tensors import Part, datatype_of, memory_of, plain

_NOTHING = WantedOutput("")


def encoded(answer: InferAnswer, binary: bool, regions: Regions | None) -> tuple[bytes, list[Part]]:
    """The JSON, and the tensors that follow it. binary: for outputs that say nothing of it. An
    output that the client wants in shared memory is written there. Raises what `Regions.write`
    raises."""
    result = answer.result
    outputs: list[dict[str, Any]] = []
    parts: list[Part] = []
    for name, array in answer.outputs.items():
        array, shape = plain(array), list(array.shape)
        output: dict[str, Any] = {"name": name, "datatype": datatype_of(array), "shape": shape}
        wanted = answer.wanted.get(name, _NOTHING)
        region = wanted.region
        if region is not None and regions is not None:
            regions.write(region, array)
            output["parameters"] = {words.SHM_REGION: region.name, words.SHM_SIZE: array.nbytes}
            if region.offset:
                output["parameters"][words.SHM_OFFSET] = region.offset
        elif binary if wanted.binary is None else wanted.binary:
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
        "parameters": words.of_answer(result, answer.ignored),
        "outputs": outputs,
    }
    return orjson.dumps(doc, option=orjson.OPT_SERIALIZE_NUMPY), parts
