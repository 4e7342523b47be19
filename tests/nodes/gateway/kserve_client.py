"""A program that drives a gateway by KServe's SDK, and prints a report.

    python kserve_client.py URL GRPC_ADDRESS MODEL FILE.npz

FILE has the model's input. The report is one JSON object: the values of the output by the way that
they came, and what was said of health.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig


def request(model: str, name: str, array: np.ndarray, binary: bool) -> InferRequest:
    tensor = InferInput(name, list(array.shape), "FP32")
    tensor.set_data_from_numpy(array, binary_data=binary)
    return InferRequest(model, [tensor], request_id="kserve")


def values(answer: Any) -> list[float]:
    return list(map(float, answer.outputs[0].as_numpy().ravel()))


async def main() -> None:
    url, address, model, file = sys.argv[1:]
    with np.load(file) as known:
        [name] = known.files
        array = known[name]
    report: dict[str, Any] = {}
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as rest:
        report["health"] = [
            await rest.is_server_live(url),
            await rest.is_server_ready(url),
            await rest.is_model_ready(url, model),
        ]
        for way, binary in {"json": False, "binary": True}.items():
            report[way] = values(await rest.infer(url, request(model, name, array, binary), model))
        try:
            await rest.infer(url, request("absent", name, array, True), "absent")
        except Exception as error:
            report["refused"] = str(error)
    async with InferenceGRPCClient(address) as grpc:
        report["health"] += [
            await grpc.is_server_live(),
            await grpc.is_server_ready(),
            await grpc.is_model_ready(model),
        ]
        report["grpc"] = values(await grpc.infer(request(model, name, array, True)))
    print(json.dumps(report))


asyncio.run(main())
